"""One array that is derived from one module or parameter: taken in steps in which it is due."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from ....sketch.matrices import MAX_SIZE
from ....sketch.spectra import LEAST_VALUES
from ....wire.messages import Reading, Series
from ...schedule import Schedule
from .accumulating import Accumulator, Covariance, Gram, Values
from .placing import Axes, axes_of_parameter
from .quantity import BACKWARD, BUFFER, Quantity
from .rows import rows_of
from .sides import of_samples, of_weight

MAX_GATHERED = 1024
"""Calls of which something is kept until a quantity is due: of more, the last."""
Fails = Callable[["Task", Exception], None]


class Taken(NamedTuple):
    """What a step says under one series."""

    series: Series
    """The same object in every step."""
    weight: float
    """Samples that it is of."""
    values: torch.Tensor
    """float64 [n], on its device."""


@dataclass(slots=True)
class Plan:
    """What is read off the array at the steps of one schedule."""

    schedule: Schedule
    readings: list[Reading] = field(default_factory=list[Reading])

    stretched: Schedule = field(init=False)
    """The schedule, so many times as rarely as was asked for last."""

    def __post_init__(self) -> None:
        self.stretched = self.schedule

    def stretch(self, times: int) -> None:
        """From now on measure so many times as rarely as was asked for."""
        self.stretched = replace(self.schedule, every=self.schedule.every * times)

    def due(self, step: int, name: str) -> bool:
        """Whether it is in that step."""
        return self.stretched.due(step) and self.stretched.is_turn_of(name, step)


class Task:
    """What is to be computed of one module or parameter, once for all that is read off it.

    Args:
        name: of the module or parameter.
        quantity: one of those that are read off it.
        fails: told once, of what cannot be computed.
    """

    def __init__(self, name: str, quantity: Quantity, fails: Fails) -> None:
        self.name, self.quantity = name, quantity
        self.plans: list[Plan] = []
        self.is_off = False
        """Whether it has failed, and is computed no more."""
        self.is_due = self.is_due_next = False
        """In the open step, and in the one after it."""
        self.waits_for_backward = not BACKWARD.isdisjoint(quantity.needs)
        self.has_come = False
        """Whether something was taken in the open step."""
        self.why_nothing = ""
        """Why nothing was, as far as it is known."""
        self._fails = fails
        self._open: dict[int, tuple[Accumulator, Axes]] = {}
        """By call."""
        self._gathered: dict[int, deque[torch.Tensor]] = {}
        self._sizes: dict[int, int] = {}
        """By call; the same in all steps."""
        self._series: dict[tuple[int, int], Series] = {}
        """By plan and call."""

    def read(self, reading: Reading, schedule: Schedule) -> None:
        """Have something read off the array at the steps of a schedule."""
        for plan in self.plans:
            if plan.schedule == schedule:
                plan.readings.append(reading)
                return
        self.plans.append(Plan(schedule, [reading]))

    @property
    def gathers(self) -> bool:
        """Whether it looks at every step."""
        return self.quantity.gathers is not None

    @property
    def kept_needs(self) -> list[str]:
        """Names of the buffers it needs when it is due."""
        return [need.removeprefix(BUFFER) for need in self.quantity.needs if _is_buffer(need)]

    def begin(self, step: int, *, in_full: bool) -> None:
        """Turn to a step."""
        self._open.clear()
        self.has_come, self.why_nothing = False, ""
        self.is_due = not self.is_off and (in_full or self._due(step))
        self.is_due_next = not self.is_off and self._due(step + 1)

    def drop(self) -> None:
        """Forget the open step."""
        self._open.clear()
        self.is_due = False

    def misses(self, why: str) -> None:
        """Note why nothing was taken; the run is told if nothing comes in all of the step."""
        self.why_nothing = why

    def fail(self, error: Exception) -> None:
        """Compute it no more, and tell the run why."""
        self.is_off = True
        self.drop()
        self._fails(self, error)

    def take(self, call: int, tensors: Sequence[Any], samples: float, axes: Axes) -> None:
        """Compute it of the samples of one call of a module."""
        computed = self._computed(tensors)
        if self.quantity.form == "values":
            self._add(call, computed, samples, axes)
            return
        matrix, is_turned = of_samples(self.quantity, computed)
        if not is_turned:
            self._add(call, matrix, float(rows_of(matrix)), axes)
        elif not self._is_of_size(call, matrix.shape[-1]):
            self.misses(
                f"its batch has {matrix.shape[-1]} samples, and the first one had "
                f"{self._sizes[call]}"
            )
        elif call not in self._open:  # Gram matrices over other samples do not add up
            self._add(call, matrix, float(matrix.shape[-1]), dict.fromkeys(axes, "own"))

    def take_parameter(self, tensors: Sequence[torch.Tensor], cuts: dict[str, int | None]) -> None:
        """Compute it of a parameter, which is cut along these axes of the mesh."""
        computed, added = self._computed(tensors), None
        if self.quantity.form != "values":
            computed, is_turned = of_weight(self.quantity, computed, set(cuts.values()))
            added = set(range(1, tensors[0].dim())) if is_turned else {0}
        self._add(0, computed, float(tensors[0].numel()), axes_of_parameter(cuts, added))

    def gather(self, call: int, tensor: torch.Tensor) -> None:
        """Keep of a call what it is computed of when it is due."""
        assert self.quantity.gathers is not None
        kept = self._gathered.setdefault(call, deque(maxlen=MAX_GATHERED))
        kept.append(self.quantity.gathers(tensor))

    def take_gathered(self, buffers: Sequence[torch.Tensor], axes: Axes) -> None:
        """Compute it of what was kept, which is used up."""
        gathered, self._gathered = self._gathered, {}
        for call, kept in gathered.items():
            made = self._computed([torch.stack(list(kept)), *buffers])
            self._add(call, made, float(len(kept)), axes)

    def results(self, step: int, *, in_full: bool) -> list[Taken]:
        """What was taken in the step, by series."""
        found = list[Taken]()
        for call, (accumulator, axes) in self._open.items():
            values = accumulator.values()
            for number, plan in enumerate(self.plans):
                if in_full or plan.due(step, self.name):
                    series = self._named(number, call, axes)
                    found.append(Taken(series, accumulator.weight, values))
        self._open.clear()
        return found

    def _due(self, step: int) -> bool:
        return any(plan.due(step, self.name) for plan in self.plans)

    def _computed(self, tensors: Sequence[Any]) -> torch.Tensor:
        made = self.quantity.computed(tensors)
        if not isinstance(made, torch.Tensor):
            raise TypeError(f"it returned {type(made).__name__}, and not a tensor")
        if made.is_complex():
            raise TypeError(f"it returned numbers of {made.dtype}")
        if self.quantity.form == "values":
            _check_values(made, LEAST_VALUES.get(self.quantity.statistic, 1))
        elif made.dim() < 1 or made.shape[-1] < 1:
            raise ValueError(f"it returned {list(made.shape)}, and not [..., features]")
        return made.detach()

    def _add(self, call: int, computed: torch.Tensor, weight: float, axes: Axes) -> None:
        size = computed.shape[-1] if self.quantity.form != "values" else computed.numel()
        if not self._is_of_size(call, size):
            raise ValueError(f"it is of size {size}, and was of {self._sizes[call]} before")
        if call not in self._open:
            made = _accumulator(self.quantity, size, computed.device)
            self._open[call] = made, axes
        self._open[call][0].add(computed, weight)
        self.has_come = True

    def _is_of_size(self, call: int, size: int) -> bool:
        return self._sizes.setdefault(call, size) == size

    def _named(self, plan: int, call: int, axes: Axes) -> Series:
        known = self._series.get((plan, call))
        if known is None:
            known = self._series[plan, call] = Series(
                of=f"{self.name}#{call}" if call else self.name,
                form=self.quantity.form,
                size=self._sizes[call],
                readings=self.plans[plan].readings,
                merge=self.quantity.merge,
                axes=axes,
            )
        return known


def _is_buffer(need: str) -> bool:
    return need.startswith(BUFFER)


def _check_values(made: torch.Tensor, least: int) -> None:
    if made.dim() > 1 or not least <= made.numel() <= MAX_SIZE:
        raise ValueError(
            f"it returned a tensor of shape {list(made.shape)}, and not one number or a vector of "
            f"{least} to {MAX_SIZE}"
        )


def _accumulator(quantity: Quantity, size: int, device: torch.device) -> Accumulator:
    match quantity.form:
        case "values":
            return Values(quantity.merge)
        case "gram":
            return Gram(size, device)
        case "covariance":
            return Covariance(size, device)
