"""Whether an attempt averages its gradients over ranks, learnt from its records. Pure.

What all gradients of a step share, clipping say, is no fault of any of them. But no clipping makes
them larger: those that were the average over ranks, and are more in one step, were added up where
they should have been averaged, or twice, or multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from ..sketch.conservation import GRADIENT_SCALE, LOSS_SCALE
from .sums import WHOLE

RECORDS = 8
"""Records in which gradients must have been the average, not clipped, to be held to it."""
MOST = 1.05
"""Times the average over ranks; what compresses gradients makes some of them larger by chance."""


@dataclass(slots=True)
class Averaging:
    """What gradients have been so far, in units of their average over ranks."""

    _averaged: int = 0
    """Records in which they were the average."""
    _is_other: bool = False
    """Whether they were more before it was known that they are averaged: the job means that."""

    def learnt(self) -> tuple[int, bool]:
        """What `recalled` goes on with."""
        return self._averaged, self._is_other

    @classmethod
    def recalled(cls, learnt: tuple[int, bool]) -> Self:
        """As it was when `learnt` gave this."""
        return cls(*learnt)

    @property
    def is_known(self) -> bool:
        """Whether gradients are averaged, as far as is known."""
        return not self._is_other and self._averaged >= RECORDS

    def is_more(self, times: float) -> bool:
        """Whether they are more now, and never were."""
        return self.is_known and times > MOST

    def learn(self, times: float) -> None:
        """Of a record whose gradients were that many times their average over ranks."""
        self._is_other |= times > MOST and not self.is_known
        self._averaged += abs(times - 1) <= WHOLE


def times_average(factor: float, ranks: int, training: Mapping[int, Mapping[str, float]]) -> float:
    """A factor from the sums of the ranks' own gradients to reduced ones, over that of the average.

    Args:
        training: by rank what it told of the step: scales, which all have alike.
    """
    told = {name: value for said in training.values() for name, value in said.items()}
    return factor * ranks * told.get(LOSS_SCALE, 1.0) / told.get(GRADIENT_SCALE, 1.0)


def more_words(times: float) -> str:
    """What is told of gradients that are more than their average."""
    return (
        f"All reduced gradients are {times:.4g} times the average of the ranks' own, which they "
        "were before: they were added up where they are averaged else, or reduced twice, or "
        "multiplied before the optimizer's step. If that is meant: "
        "observe(…, unchecked='weight_gradient')."
    )
