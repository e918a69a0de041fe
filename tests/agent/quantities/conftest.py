"""Quantities of small models, without a collector: what a step says, and what is read off it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from rankscope.agent.torch.names import Names
from rankscope.agent.torch.quantities import Quantities, Taken, quantity, remove
from rankscope.agent.torch.stages import stages_of
from rankscope.sketch import Weighted, merged, read, read_values, spectrum

Numbers = np.ndarray[Any, np.dtype[np.float64]]


def merged_and_read(parts: Sequence[Taken]) -> dict[str, Numbers]:
    """By quantity what a collector reads off the series of one thing, merged over ranks."""
    series = parts[0].series
    arrays = (Weighted(part.weight, part.values.numpy()) for part in parts)
    whole = merged(series.form, series.merge, arrays)
    if series.form == "values":
        return {
            one.quantity: read_values(one.statistic, whole.array, one.bound)
            for one in series.readings
        }
    found, _ = spectrum(series.form, series.size, whole)
    return {one.quantity: read(one.statistic, found, series.form) for one in series.readings}


@dataclass
class Watched:
    """A model whose quantities are taken."""

    quantities: Quantities
    reports: list[str] = field(default_factory=list[str])

    def step(self, number: int, run: Callable[[], object]) -> dict[str, dict[str, Numbers]]:
        """Run one step; by module or parameter, and quantity, what is read off."""
        self.quantities.begins(number)
        run()
        found: dict[str, dict[str, Numbers]] = {}
        for taken in self.quantities.ends(number):
            found.setdefault(taken.series.of, {}).update(merged_and_read([taken]))
        return found


@pytest.fixture
def watch() -> Callable[..., Watched]:
    """Makes quantities of a model, as `observe` does."""

    def make(
        model: torch.nn.Module, config: Any, *optimizers: torch.optim.Optimizer, **how: Any
    ) -> Watched:
        watched = Watched(Quantities.of(config, Names(stages_of(model))))

        def report(sentence: str, error: BaseException | None = None) -> None:
            watched.reports.append(f"{sentence}: {error}" if error else sentence)

        watched.quantities.attach(report=report, optimizers=optimizers, **how)
        return watched

    return make


@pytest.fixture
def registered() -> Iterator[Callable[..., None]]:
    """Registers a function as a quantity until the end of the test."""
    names = list[str]()

    def register(name: str, function: Callable[..., torch.Tensor], **how: Any) -> None:
        quantity(name, **how)(function)
        names.append(name)

    yield register
    for name in names:
        remove(name)


@pytest.fixture
def read_off() -> Callable[[Sequence[Taken]], dict[str, Numbers]]:
    """Of the parts of several ranks."""
    return merged_and_read
