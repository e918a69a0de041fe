"""The job of test_libraries.py: what libraries train, each under its own callback.

Usage: RANKSCOPE_TO=tcp://… python -m tests.agent.libraries_job

It is one process, and two ranks that are made of it: the libraries take eight seconds of a core to
import. In the folder in which it is started it leaves checkpoints.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.agent import RankscopeWarning
from rankscope.agent.torch.lightning import RankscopeCallback as LightningCallback
from rankscope.agent.torch.transformers import RankscopeCallback as HuggingFaceCallback
from tests.end_to_end.ranks import run

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
BATCH, BATCHES = 3, 8


class UserError(Exception):
    """What the user's own code raises."""


class Net(nn.Module):
    """What Hugging Face takes for a model: its output has the loss."""

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
        self.calls, self.fails_at = 0, fails_at

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss alone: an evaluation then needs no metrics."""
        self.calls += self.training
        if self.calls == self.fails_at:
            raise UserError("of the user's own")
        return {"loss": nn.functional.mse_loss(self.net(x), labels)}


class Fitted(lightning.LightningModule):
    """The same for Lightning, whose `training_step` calls a part of the model."""

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.net = Net(fails_at)

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        """The loss of a batch."""
        return self.net(*batch)["loss"]

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        """A forward that is not to be recorded."""
        self.net(*batch)

    def configure_optimizers(self) -> Any:
        """A scheduler that takes another rate for each step."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class FittedByHand(Fitted):
    """Each layer has an optimizer of its own, and an update in each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        """Both update."""
        optimizers: Any = self.optimizers()
        loss = super().training_step(batch, number)
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def configure_optimizers(self) -> Any:
        """Those of the two layers."""
        return [torch.optim.SGD(self.net.net[at].parameters(), lr=0.1) for at in (0, 2)]


def examples() -> TensorDataset:
    """What all train with."""
    made = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(BATCHES * BATCH, 4, generator=made),
        torch.randn(BATCHES * BATCH, 1, generator=made),
    )


class Generating(transformers.Trainer):
    """Before each forward it trains by calls its model without gradients, as TRL's GRPO does."""

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """In training mode."""
        model.train()
        with torch.no_grad():
            model(**inputs)
        return super().training_step(model, inputs, num_items_in_batch)


def train(
    name: str,
    net: nn.Module,
    resume: str | None = None,
    trained_by: type[transformers.Trainer] = transformers.Trainer,
    **arguments: Any,
) -> None:
    """Hugging Face's Trainer, two micro-batches a step, evaluated after the second."""
    rows = [{"x": x, "labels": y} for x, y in examples()]
    settings = transformers.TrainingArguments(
        output_dir=name,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=2,
        save_strategy="steps",
        save_steps=2,
        **arguments,
    )
    callback = HuggingFaceCallback(run=name)
    trainer = trained_by(net, settings, train_dataset=rows, eval_dataset=rows, callbacks=[callback])
    try:
        trainer.train(resume_from_checkpoint=resume)
    except UserError:
        trainer.train()


def fit(
    name: str, model: Any, resume: str | None = None, *, batches: int = 2, **arguments: Any
) -> None:
    """Lightning's Trainer, two micro-batches a step, validated after the second."""
    loader = DataLoader(examples(), batch_size=BATCH)
    trainer = lightning.Trainer(
        accelerator="cpu",
        accumulate_grad_batches=batches,
        val_check_interval=4,
        logger=False,
        default_root_dir=name,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LightningCallback(run=name)],
        **arguments,
    )
    with suppress(UserError):
        trainer.fit(model, loader, loader, ckpt_path=resume)
        trainer.save_checkpoint(f"{name}/last.ckpt")


def refuse() -> None:
    """Print what is said of an option that there is not."""
    for callback in (HuggingFaceCallback, LightningCallback):
        try:
            callback(run="x", evry=2)
        except TypeError as error:
            print(error)


def page() -> None:
    """The code of the documentation, but for what needs JAX."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    # Of DeepSpeed: tests/end_to_end/deepspeed_job.py.
    run_here = (block for block in blocks if not re.search("import jax|deepspeed", block))
    exec("\n".join(run_here), {})


def be_rank() -> None:
    """One of two: both libraries wrap the model in DistributedDataParallel."""
    train("hugging-face-ranks", Net(), max_steps=2)
    fit("lightning-ranks", Fitted(), max_steps=2, devices=2, strategy="ddp")


def main() -> None:
    """All of it, ranks first, for a process that has trained has threads that it cannot copy."""
    warnings.filterwarnings("error", category=RankscopeWarning)
    gc.freeze()  # else each rank, which ends as Python does, goes through all that was imported
    failed = run(2, "tests.agent.libraries_job", [])
    if failed or "RANK" in os.environ:  # a rank comes here, too, when it has done its work
        sys.exit(failed)
    refuse()
    page()
    train("hugging-face", Net(), max_steps=4)
    train("hugging-face", Net(), "hugging-face/checkpoint-2", max_steps=4)
    train("hugging-face-epochs", Net(), num_train_epochs=2, logging_strategy="epoch")
    train("hugging-face-generates", Net(), trained_by=Generating, max_steps=2)
    train("hugging-face-fails", Net(fails_at=4), max_steps=2)
    fit("lightning", Fitted(), max_steps=4)
    fit("lightning", Fitted(), "lightning/last.ckpt", max_steps=6)
    fit("lightning-compiled", torch.compile(Fitted(), backend="eager"), max_steps=2)
    fit("lightning-short", Fitted(), max_steps=3, limit_train_batches=5)  # of one batch the last
    fit("lightning-by-hand", FittedByHand(), batches=1, max_steps=4)
    fit("lightning-by-hand", FittedByHand(), "lightning-by-hand/last.ckpt", batches=1, max_steps=8)
    fit("lightning-fails", Fitted(fails_at=4), max_steps=2)


if __name__ == "__main__":
    if "RANK" in os.environ:
        be_rank()
    else:
        main()
