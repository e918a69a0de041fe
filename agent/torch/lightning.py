"""Lightning's `Trainer`: `Trainer(…, callbacks=[RankscopeCallback(run="x")])`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .loops import LoopCallback

# Both are the same code, but neither takes the other's callbacks.
if TYPE_CHECKING or "pytorch_lightning" not in sys.modules or "lightning.pytorch" in sys.modules:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    from pytorch_lightning import Callback, LightningModule, Trainer


class RankscopeCallback(LoopCallback, Callback):
    """Observes what a `Trainer` fits, from its first step to its last, on every rank.

    A step is a batch, or several whose gradients are accumulated. Step i begins with `global_step`
    i, of a resumed fit, too; where a batch has several updates, which `global_step` counts, the
    checkpoint has the number of steps. The loss is kept with each step. Forwards of a validation
    are left out.

    Args:
        options: those of `observe`, but for `start` and `scaler`, which the `Trainer` knows.

    Raises:
        TypeError: an option is none of these.
    """

    # `Any`: the options are those of `observe`, which has their types.
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._updates = self._steps = 0
        """What the `Trainer` calls `global_step`, and the steps that had them."""

    def state_dict(self) -> dict[str, int]:
        """What goes into a checkpoint: nothing where each step has one update."""
        if self._steps == self._updates:
            return {}
        return {"updates": self._updates, "steps": self._steps}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """What has come from a checkpoint."""
        self._updates, self._steps = state_dict["updates"], state_dict["steps"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The model is wrapped, restored, and has run in nothing but the sanity check."""
        if self._updates != trainer.global_step:  # neither this checkpoint's nor the last fit's
            self._updates = self._steps = trainer.global_step
        self._losses: list[torch.Tensor] = []
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._begin(pl_module, trainer.optimizers, start=self._steps, scaler=scaler)

    # `Any`: a batch is what the user's loader gives.
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """What comes is a `training_step`, which may call parts of the model, never itself."""
        if self.scope is not None:
            self.scope.begin_forward()

    # `Any`: so is what `training_step` returns.
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """An optimizer has updated, or a batch's gradients were added to those before."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
        if isinstance(loss, torch.Tensor):
            if not pl_module.automatic_optimization:
                self._losses.clear()
            self._losses.append(loss)
        if trainer.global_step != self._updates:
            losses, self._losses = self._losses, []
            self._updates, self._steps = trainer.global_step, self._steps + 1
            divisor = trainer.accumulate_grad_batches
            self._step({"loss": _mean_of(losses, divisor)} if losses else {})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The fit has ended well."""
        self._end()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """The fit has not."""
        self._end(exception)


def _mean_of(losses: Sequence[torch.Tensor], divisor: int) -> torch.Tensor:
    """The mean of a step's batches, of losses that automatic optimization has divided by `divisor`.

    The last step of an epoch may have fewer batches.
    """
    total = torch.stack(list(losses)).sum() if len(losses) > 1 else losses[0]
    return total if len(losses) == divisor else total * (divisor / len(losses))
