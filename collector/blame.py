"""Whose share of a sum is missing or in it twice, where that is beyond chance. Pure.

A rank is named only where its own numbers, and no other's, are what a sum is off by, so exactly
that a fault of another kind would hardly ever look like it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from ..merge.merging import Merged
from ..sketch.labels import rank_words
from ..sketch.table import COUNT, PROJECTION, SUM

LEAST_CHANCE = 0.01
"""A share that one fault in a hundred, of those that have nothing to do with it, would look like
names no rank."""
ALIKE = 16
"""Of fewer elements projection and plain sum are too much alike to be two numbers."""
NOT_TOLD = "sums do not tell through which rank"

Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One linear number of a sum: what is left of it, and what each rank had to add."""

    own: Mapping[int, float]
    """By rank."""
    rest: float
    """What the addends come to, less what the sum is, in their units."""
    most: float
    """What rounding explains."""

    def fits(self, rank: int, times: int) -> bool:
        """Whether `times` the rank's own is what is left."""
        return abs(self.rest - times * self.own[rank]) <= self.most

    @property
    def kept(self) -> float:
        """What the sum is, in the addends' units."""
        return sum(self.own.values()) - self.rest

    @property
    def chance(self) -> float:
        """How likely one explanation is to fit a rest of this size that it has no part in."""
        return min(self.most / abs(self.rest), 1.0) if self.rest else 1.0


def whose(shares: Sequence[Share]) -> tuple[Ranks, str]:
    """The rank whose addend explains all of these numbers of one sum, and how; in words if none.

    Args:
        shares: at least one; of the same ranks.
    """
    ranks = shares[0].own.keys()
    chance = 2 * len(ranks) * math.prod(share.chance for share in shares)
    if chance > LEAST_CHANCE:
        return (), NOT_TOLD
    found = [
        (rank, times)
        for times in (1, -1)
        for rank in ranks
        if all(share.fits(rank, times) for share in shares)
    ]
    if len(found) != 1:
        return (), NOT_TOLD
    [(rank, times)] = found
    return (
        rank,
    ), f"it is as if that of rank {rank} were {'missing' if times > 0 else 'in it twice'}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sum:
    """One sum of a record, and how it should have been made."""

    merged: Merged
    addends: int
    """Row of the table."""
    reduced: int
    """Row of the table."""
    factor: float
    """From the addends to the sum."""
    columns: Sequence[int]
    """The linear moments by which it can be told apart."""
    most: float
    """What rounding explains, in units of the addends."""

    @classmethod
    def of(
        cls, merged: Merged, rows: tuple[int, int], column: int, factor: float, most: float
    ) -> Self:
        """Of a sum whose moment `column` was compared; `rows` are those of addends and sum."""
        addends, reduced = rows
        many = merged.table.counts[reduced, COUNT] >= ALIKE
        columns = (PROJECTION, SUM) if many and column == PROJECTION else (column,)
        return cls(
            merged=merged,
            addends=addends,
            reduced=reduced,
            factor=factor,
            columns=columns,
            most=most,
        )

    def whose(self) -> tuple[Ranks, str]:
        """The ranks through which it went wrong, and how; in words if they cannot be known."""
        site = int(self.merged.sites[self.reduced])
        if all(one.site != site for one in self.merged.divergences):
            return whose(self._shares(self.merged.table.moments[self.reduced].tolist()))
        return self._of_copies(self.merged.copies_of(self.reduced))

    def _of_copies(self, copies: Sequence[tuple[Ranks, Sequence[float]]]) -> tuple[Ranks, str]:
        """Ranks hold other sums: what explains one of them alone says nothing of a rank's share."""
        shares = [(ranks, self._shares(moments)) for ranks, moments in copies]
        alone = [ranks for ranks, one in shares if len(ranks) == 1 and self._is_alone(*ranks, one)]
        if copies and len(alone) == len(copies):
            skipped = tuple(sorted(rank for ranks in alone for rank in ranks))
            return skipped, f"{rank_words(skipped)} hold their own alone: none of them reduced it"
        found = {whose(one) for _, one in shares}
        if len(found) == 1:
            return found.pop()
        return (), NOT_TOLD

    def _is_alone(self, rank: int, shares: Sequence[Share]) -> bool:
        """Whether what a rank holds is its own, times what it may have divided or clipped it by."""
        if any(not share.own.get(rank) for share in shares):
            return False
        first, *others = shares
        times = first.kept / first.own[rank]
        alike = (
            abs(share.kept - times * share.own[rank])
            <= share.most * times * (1 + abs(share.own[rank] / first.own[rank]))
            for share in others
        )
        return bool(others) and times > 0 and all(alike)

    def _shares(self, moments: Sequence[float]) -> list[Share]:
        """Of a copy of the sum that has these moments."""
        every = [(column, self.merged.addends_of(self.addends, column)) for column in self.columns]
        return [
            Share(own=own, rest=sum(own.values()) - moments[column] / self.factor, most=self.most)
            for column, own in every
        ]
