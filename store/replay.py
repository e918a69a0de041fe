"""The records of a stored run as they were before they were written, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..merge.series import Derived
from ..sketch.derive import MAIN
from ..sketch.table import COUNT
from .layout import COLUMNS
from .pack import was_told
from .reader import Reader
from .record import Record
from .selection import (
    ATTEMPT,
    COMPLETE,
    FINAL,
    KEPT,
    PARTIAL,
    STEP,
    TIME,
    UNMATCHED,
    Indices,
    ranks_in,
)
from .views import merged

AT_ONCE = 16
"""Records that are read at a time."""


def replay(reader: Reader, attempt: int, last: int | None = None) -> Iterator[Record]:
    """The records of an attempt, in the order in which they were made.

    Without what is kept apart from them: frames of single ranks, exact counts, groups of ranks.
    Records of which retention has deleted the detail are left out.

    Args:
        last: only so many, the last; None: all.
    """
    facts = reader.facts()
    whole = np.flatnonzero(facts[:, ATTEMPT] == attempt)
    whole = whole[whole >= reader.state.deleted]
    whole = whole if last is None else whole[max(len(whole) - last, 0) :]
    for first in range(0, len(whole), AT_ONCE):
        yield from _some(reader, whole[first : first + AT_ONCE])


def _some(reader: Reader, records: Indices) -> Iterator[Record]:
    facts, places = reader.facts()[records], np.arange(len(reader.meta.sites))
    table = merged(reader, records, places)
    every, none = slice(None), len(places)
    foreign = table.lacks_moments() & (table.counts[:, COUNT] >= 0)
    main = reader.read("scalars", records, places, every) if foreign.any() else None
    spread, by_rank, over, training, health, quantities = reader.read_all(
        [
            ("spread", records, (places, every, every)),
            ("ranks", records, (every, places, every)),
            ("distribution", records, (every, places, every, every)),
            ("training", records, (every, every)),
            ("health", records, (every, every)),
            ("quantities", records, (every,)),
        ]
    )
    for at, row in enumerate(facts):
        here = np.flatnonzero(table.counts[at * none : (at + 1) * none, COUNT] >= 0)
        ranks = tuple(ranks_in(row[len(COLUMNS) :]))
        told = over[at][:, here]
        own = {rank: by_rank[at, rank, here] for rank in ranks if rank < by_rank.shape[1]}
        yield Record(
            index=int(records[at]),
            step=int(row[STEP]),
            attempt=int(row[ATTEMPT]),
            time_ns=int(row[TIME]),
            ranks=ranks,
            complete=bool(row[COMPLETE]),
            partial=bool(row[PARTIAL]),
            final=bool(row[FINAL]),
            unmatched=bool(row[UNMATCHED]),
            kept=bool(row[KEPT]),
            sites=places[here],
            merged=table.take(at * none + here),
            spread=spread[at, here],
            by_rank={rank: one for rank, one in own.items() if not np.isnan(one).all()},
            training=_named(training[at], reader.meta.training),
            health=_named(health[at], reader.meta.health),
            distribution=told[[not np.isnan(one).all() for one in told]],
            derived=_derived(quantities[at], reader),
            told=np.empty((0, len(MAIN)), np.float32) if main is None else main[at, here],
        )


def _derived(numbers: NDArray[np.float64], reader: Reader) -> Derived:
    told = was_told(numbers)
    every = enumerate(reader.meta.quantities)
    return Derived.known({i: numbers[one.numbers] for i, one in every if told[one.start]})


def _named(numbers: NDArray[np.float64], names: tuple[str, ...]) -> dict[int, dict[str, float]]:
    """By rank and name those that were told."""
    return {
        rank: {name: float(row[place]) for place, name in enumerate(names) if told[place]}
        for rank, (row, told) in enumerate(zip(numbers, was_told(numbers), strict=True))
        if told.any()
    }
