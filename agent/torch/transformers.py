"""Hugging Face's `Trainer`: `Trainer(…, callbacks=[RankscopeCallback(run="x")])`."""

from __future__ import annotations

from typing import Any

import torch
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import IntervalStrategy
from transformers.training_args import TrainingArguments

from .loops import LoopCallback


class RankscopeCallback(LoopCallback, TrainerCallback):
    """Observes what a `Trainer` trains, from its first step to its last, on every rank.

    Step i begins with `global_step` i, of a resumed training, too: its weights are those of
    `checkpoint-i`. What the `Trainer` logs after a step is kept with that step. Forwards of an
    evaluation are left out, and so are those that generate.

    Args:
        options: those of `observe`, but for `start` and `scaler`, which the `Trainer` knows.

    Raises:
        TypeError: an option is none of these.
    """

    _awaits_log = False
    """Whether the step that is open has been trained, and what is logged of it comes next."""

    # `Any`: what a `Trainer` gives to all callbacks, by name.
    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        **_: Any,
    ) -> None:
        """The model is wrapped, restored, and has not run."""
        scaler = getattr(optimizer, "scaler", None)
        self._awaits_log = False
        self._begin(model, optimizer, start=state.global_step, scaler=scaler)
        if self.scope is not None:  # what it generates before its first forward is none of a step
            self.scope.begin_forward()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Gradients are set to zero next, be the update skipped or not."""
        if self.scope is not None:
            self.scope.end_update()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """The optimizer has updated, and what is logged of the step comes next."""
        # Which step is an epoch's last is known once it is over.
        self._awaits_log = control.should_log or _logs_by_epoch(args)
        if not self._awaits_log:
            self._step({})

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        logs: dict[str, Any],
        **_: Any,
    ) -> None:
        """The numbers of a step, of an evaluation, or, last of all, of the whole training."""
        if _logs_by_epoch(args) and not {"loss", "train_loss"} & logs.keys():
            return  # an evaluation within the epoch
        self._end_step({k: v for k, v in logs.items() if isinstance(v, int | float)})
        if "train_loss" in logs:  # what comes next may be the loading of better weights
            self._end()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Nothing was logged of the step before."""
        self._end_step({})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """The training has ended well."""
        self._end_step({})
        self._end()

    def _end_step(self, numbers: dict[str, float]) -> None:
        if self._awaits_log:
            self._awaits_log = False
            self._step(numbers)


def _logs_by_epoch(args: TrainingArguments) -> bool:
    return args.logging_strategy == IntervalStrategy.EPOCH
