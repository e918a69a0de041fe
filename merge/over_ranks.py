"""What is told of each site over ranks: each one's numbers, their extremes, how they are spread.

Numbers of single ranks come from their frames, those of ranks behind relays from joined frames;
both merge to what they would be if all ranks had come singly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN, narrow_statistics
from ..sketch.distribution import RANKED, SPREAD, RankDistribution
from ..sketch.table import SketchTable
from ..wire.codec import PackedFrame
from ..wire.joined import JoinedFrame, OverRanks
from ..wire.messages import MAX_GROUPS, MAX_PEERS
from .folding import united
from .plan import Contribution, Plan, Plans

Numbers = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """The contributions to one record, and what follows for each of their rows."""

    ranks: Sequence[tuple[int, ...]]
    """Of each contribution, ascending by the first."""
    parts: Sequence[Contribution]
    plan: Plan
    rows: SketchTable
    """All rows, one below the other as in `plan`, without their histograms."""
    numbers: Numbers
    """float32 [rows, len(MAIN)]: their main statistics."""

    @classmethod
    def of(cls, contributions: Mapping[int, Contribution], plans: Plans) -> Observed:
        """Those of a record, by the first rank of each."""
        first = sorted(contributions)
        parts = [contributions[rank] for rank in first]
        rows = _thin(parts)
        numbers = narrow_statistics(rows)
        ranks = [part.members or (rank,) for rank, part in zip(first, parts, strict=True)]
        return cls(ranks, parts, plans.of(parts, first), rows, numbers)

    @property
    def is_of_several(self) -> bool:
        """Whether there are several ranks."""
        return sum(map(len, self.ranks)) > 1

    @property
    def unfinished(self) -> set[int]:
        """Which contributions are of ranks whose step had not ended."""
        return {
            number
            for number, part in enumerate(self.parts)
            if isinstance(part.frame, PackedFrame) and part.frame.header.partial
        }

    @property
    def singles(self) -> list[int]:
        """Which contributions are of one rank."""
        return [place for place, part in enumerate(self.parts) if not part.members]

    def joined(self) -> list[tuple[int, JoinedFrame, NDArray[np.intp]]]:
        """The others: number, frame, and intp [its sites]: their places in `plan.sites`."""
        found = list[tuple[int, JoinedFrame, NDArray[np.intp]]]()
        for number, part in enumerate(self.parts):
            if isinstance(part.frame, JoinedFrame):
                sites = part.layout.site[np.unique(part.frame.sites)]
                found.append((number, part.frame, np.searchsorted(self.plan.sites, sites)))
        return found

    def holders(self, row: int) -> list[int]:
        """The ranks that a row is of, ascending."""
        number = int(self.plan.part[row])
        frame, ranks = self.parts[number].frame, self.ranks[number]
        if not isinstance(frame, JoinedFrame):
            return list(ranks)
        own = row - int(np.searchsorted(self.plan.part, number))
        return sorted(ranks[place] for place in np.flatnonzero(frame.holders[own]).tolist())

    def held(self) -> NDArray[np.intp]:
        """intp [rows]: how many ranks each row is of."""
        count = np.ones(len(self.plan.part), np.intp)
        for number, frame, _ in self.joined():
            count[self.plan.part == number] = frame.holders.sum(axis=1)
        return count


def over_ranks(
    observed: Observed, plans: Plans, *, every_group: bool = False
) -> tuple[OverRanks, list[int], list[str]]:
    """All of it, the ranks whose own numbers are known, and the groups of ranks whose are.

    Args:
        every_group: those of all these ranks, too, for there may be others elsewhere.
    """
    dense = _by_rank(observed)
    known = [observed.ranks[number][0] for number in observed.singles]
    spread = spread_over_ranks(dense, known)
    numbers = dict(zip(known, dense, strict=True))
    for number, frame, places in observed.joined():
        other = np.full_like(spread, np.nan)
        other[places] = frame.over.spread
        spread = merge_spreads(spread, other)
        if frame.header.by_rank:
            for rank, own in zip(observed.ranks[number], frame.over.by_rank, strict=True):
                numbers[rank] = np.full((len(spread), len(MAIN)), np.nan, np.float32)
                numbers[rank][places] = own
    by_group = _by_group(observed, plans, every_group=every_group)
    over = OverRanks(
        spread=spread,
        distributions=_distributions(observed, dense, known),
        by_rank=(
            dense
            if len(known) == len(numbers)
            else _stacked([numbers[rank] for rank in sorted(numbers)], len(spread))
        ),
        by_group=_stacked(list(by_group.values()), len(spread)),
    )
    return over, sorted(numbers), list(by_group)


def spread_over_ranks(by_rank: Numbers, ranks: list[int]) -> Numbers:
    """float32 [rows, len(MAIN), len(SPREAD)] of [ranks, rows, len(MAIN)]; NaN is ignored."""
    spread = np.full((*by_rank.shape[1:], len(SPREAD)), np.nan, np.float32)
    if not ranks:
        return spread
    # The largest of the products is that of the first rank: a third of the time of `argmax`.
    weight = np.arange(len(ranks), 0, -1, dtype=np.uint32)[:, None, None]
    name = np.array([np.nan, *reversed(ranks)], np.float32)
    for place, extreme in enumerate((np.fmin, np.fmax)):
        value = extreme.reduce(by_rank, axis=0)
        spread[..., place] = value
        spread[..., place + 2] = name[np.multiply(by_rank == value, weight).max(axis=0)]
    return spread


def merge_spreads(one: Numbers, other: Numbers) -> Numbers:
    """Of two spreads over different ranks the one over all; of equals the lower rank counts."""
    merged = one.copy()
    for place, sign in ((0, 1), (1, -1)):
        mine, theirs = sign * one[..., place], sign * other[..., place]
        tie = (mine == theirs) & (other[..., place + 2] < one[..., place + 2])
        taken = (theirs < mine) | (np.isnan(mine) & ~np.isnan(theirs)) | tie
        for column in (place, place + 2):
            merged[..., column][taken] = other[..., column][taken]
    return merged


def _stacked(some: Sequence[Numbers], sites: int) -> Numbers:
    return np.stack(some) if some else np.empty((0, sites, len(MAIN)), np.float32)


def _thin(parts: Sequence[Contribution]) -> SketchTable:
    """All rows of all contributions, one below the other, without their histograms."""
    # Columns side by side in memory, as all arithmetic wants them.
    counts = np.concatenate([part.frame.counts.T for part in parts], axis=1).T
    return SketchTable(
        counts,
        np.concatenate([part.frame.moments.T for part in parts], axis=1).T,
        np.concatenate([part.frame.checksum for part in parts]),
        np.empty((len(counts), 0), np.int64),
    )


def _by_rank(observed: Observed) -> Numbers:
    """float32 [single ranks, sites, len(MAIN)]: the main statistics of each one's own rows."""
    plan, numbers, singles = observed.plan, observed.numbers, observed.singles
    if plan.is_full and len(singles) == len(observed.parts):
        return numbers.reshape(len(singles), len(plan.sites), len(MAIN))
    dense = np.full((len(singles), len(plan.sites), len(MAIN)), np.nan, np.float32)
    own = np.isin(plan.part, singles)
    dense[np.searchsorted(singles, plan.part[own]), plan.place[own]] = numbers[own]
    return dense


def _distributions(observed: Observed, dense: Numbers, known: list[int]) -> list[RankDistribution]:
    """How the main statistics that are `RANKED` are distributed over ranks, by their peers.

    A rank whose finite elements are all zero beside others that are not finite does not count: its
    numbers say nothing of how large its elements were.
    """
    joined = observed.joined()
    peers = [observed.parts[number].layout.peers for number in observed.singles]
    count = max([own + 1 for own in peers] + [len(frame.header.peers) for _, frame, _ in joined])
    columns, sites = [MAIN.index(name) for name in RANKED], len(observed.plan.sites)
    values = dense[:, :, columns]
    is_lost = (values == 0) & (dense[:, :, [MAIN.index("nonfinite")]] > 0)
    values = np.where(is_lost, np.float32(np.nan), values)
    values = values.reshape(len(known), sites * len(RANKED))
    found = list[RankDistribution]()
    for one in range(min(count, MAX_PEERS)):
        some = [place for place, own in enumerate(peers) if own == one]
        over = RankDistribution.of(values[some], [known[place] for place in some])
        for _, frame, places in joined:
            if one < len(frame.over.distributions):
                rows = (places[:, None] * len(RANKED) + np.arange(len(RANKED))).reshape(-1)
                over = over.merge(frame.over.distributions[one].at(over.rows, rows))
        found.append(over)
    return found


def _by_group(observed: Observed, plans: Plans, *, every_group: bool) -> dict[str, Numbers]:
    """The main statistics of each group of ranks that is neither one rank nor all.

    A group whose ranks came partly joined, or joined by several relays, is left out.
    """
    own = [Counter(part.layout.groups) for part in observed.parts]
    wanted = Counter[str]()
    for counts in own:
        wanted.update(counts)
    everyone = sum(map(len, observed.ranks)) + every_group
    joined = {number: (frame, places) for number, frame, places in observed.joined()}
    found = dict[str, Numbers]()
    # Single axes before several, and hosts at last: all of a large mesh would cost too much.
    for name in sorted(wanted, key=lambda name: (name.startswith("host="), name.count(","), name)):
        whose = [number for number, counts in enumerate(own) if name in counts]
        if not 1 < wanted[name] < everyone or len(found) == MAX_GROUPS:
            continue
        if joined.keys().isdisjoint(whose):
            found[name] = _of_group(observed, whose, name, plans)
        elif len(whose) == 1 and name in joined[whose[0]][0].header.groups:
            frame, places = joined[whose[0]]
            numbers = np.full((len(observed.plan.sites), len(MAIN)), np.nan, np.float32)
            numbers[places] = frame.over.by_group[frame.header.groups.index(name)]
            found[name] = numbers
    return found


def _of_group(observed: Observed, some: list[int], name: str, plans: Plans) -> Numbers:
    plan = observed.plan
    first = [observed.ranks[number][0] for number in some]
    own = plans.of_group(name, [observed.parts[number] for number in some], first)
    rows = united(own, observed.rows.take(np.flatnonzero(np.isin(plan.part, some))))
    numbers = np.full((len(plan.sites), len(MAIN)), np.nan, np.float32)
    numbers[np.searchsorted(plan.sites, own.sites)] = narrow_statistics(rows)
    return numbers
