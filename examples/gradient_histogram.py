"""A histogram of all gradients of a training, |g| on a log2 axis: `python gradient_histogram.py`.

    python examples/gradient_histogram.py                 # with torch
    python examples/gradient_histogram.py --poptorch      # on an IPU, or with POPTORCH_IPU_MODEL=1

It is that of PopTorch's tutorial "Observing tensors", from stored counts: no gradient is kept.
Zeros and what is not finite have bars of their own, wherever the others lie.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import xarray as xr
from matplotlib.figure import Figure

from rankscope.agent.poptorch import observe as observe_poptorch
from rankscope.agent.torch import observe
from rankscope.store import open_run

CLASSES, SIZE, ROWS = 10, 28, 64
APART = {"zero": "0", "nan": "NaN", "infinite": "±inf"}
"""What has no exponent, and what its bar is called."""
GAP = 2
"""Empty places between these bars and the others."""


class Classifier(torch.nn.Module):
    """The tutorial's: two convolutions, two dense layers, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 5, 3)
        self.conv2 = torch.nn.Conv2d(5, 12, 5)
        self.norm = torch.nn.GroupNorm(3, 12)
        self.fc1 = torch.nn.Linear(12 * 9 * 9, 100)
        self.fc2 = torch.nn.Linear(100, CLASSES)
        self.loss = torch.nn.NLLLoss()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss."""
        x = torch.nn.functional.max_pool2d(self.conv1(x).relu(), 2)
        x = self.norm(self.conv2(x).relu())
        x = self.fc1(x.flatten(1)).relu()
        return self.loss(self.fc2(x).log_softmax(-1), labels)


def batches(steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pictures of noise, brighter where the label is larger."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        labels = torch.randint(CLASSES, (ROWS,), generator=generator)
        noise = torch.rand(ROWS, 1, SIZE, SIZE, generator=generator)
        yield noise * labels[:, None, None, None] / CLASSES, labels


def train_with_torch(run: str, steps: int) -> Path:
    """Where the run lies."""
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with observe(model, optimizer, run=run, kinds="weight_gradient") as scope:
        for x, labels in batches(steps):
            optimizer.zero_grad()
            loss = model(x, labels)
            loss.backward()
            optimizer.step()
            scope.step(loss=loss)
    return scope.path


def train_with_poptorch(run: str, steps: int) -> Path:
    """The same on an IPU."""
    poptorch: Any = importlib.import_module("poptorch")
    model = Classifier()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
    options = poptorch.Options()
    with observe_poptorch(model, options, optimizer, run=run, kinds="weight_gradient") as scope:
        training_model: Any = None
        for x, labels in batches(steps):
            training_model = training_model or scope.training_model(x, labels)
            scope.step(loss=training_model(x, labels))
    return scope.path


def draw(exponents: xr.Dataset, place: Path) -> None:
    """Write the picture; the counts of all steps and sites are added up."""
    total = exponents.sum(["step", "site"])
    counts = total["count"]
    seen = counts.exponent.values[counts.values > 0]
    first, last = (int(seen[0]), int(seen[-1])) if len(seen) else (0, 0)
    counts = counts.sel(exponent=slice(first, last))
    apart = {
        "zero": int(total["zero"]),
        "nan": int(total["nan"]),
        "infinite": int(total["pos_inf"] + total["neg_inf"]),
    }
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    axes.bar(counts.exponent.values + 0.5, counts.values, width=1.0, edgecolor="white")
    places = [first - GAP * (1 + number) for number in range(len(apart))]
    axes.bar(places, list(apart.values()), width=0.8, color="0.6")
    step = max((last + 1 - first) // 12, 1)
    ticks = list(range(first, last + 2, step))
    axes.set_xticks([*places, *ticks], [*(APART[name] for name in apart), *map(str, ticks)])
    axes.set_xlabel("log2 |g|")
    axes.set_ylabel("elements")
    axes.set_yscale("symlog", linthresh=1)
    steps = int(exponents["observed"].any("site").sum())
    axes.set_title(f"Gradients of {exponents.sizes['site']} parameters over {steps} steps")
    figure.savefig(place, dpi=120)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, train, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="gradients")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--poptorch", action="store_true", help="train with PopTorch")
    parser.add_argument("--out", type=Path, default=Path("gradient_histogram.png"))
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    train = train_with_poptorch if options.poptorch else train_with_torch
    path = train(options.run, options.steps)
    draw(open_run(path).exponents(kind="weight_gradient"), options.out)
    print(f"Drawn in {options.out}; the run is {path}")


if __name__ == "__main__":
    main()
