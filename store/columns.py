"""Which records, and which blocks of the pyramid, make up the columns of an answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .layout import BLOCKS, STRETCH
from .selection import Chosen, Indices
from .state import State


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """What is to be read of one array, and where it goes."""

    block: int
    """Records in each block; 1: the records themselves."""
    rows: Indices
    """int64: numbers of records, or of blocks."""
    columns: Indices
    """int64, ascending: the column that each goes to."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Neighbouring steps in columns: together `rows` hold each of them once."""

    first: Indices
    """int64 [columns]: the first step of each."""
    last: Indices
    """int64 [columns]: the last step of each."""
    rows: list[Rows] = field(default_factory=list[Rows])
    records: Indices
    """int64: those that are asked for, in the order of their steps, whatever they are read from."""
    ends: Indices
    """int64 [columns]: how many of them lie in a column and those before."""

    def __len__(self) -> int:
        return len(self.first)

    def same_as(self, before: Columns) -> int:
        """How many columns, from the first on, are of the same records as those before."""
        shared = min(len(self.records), len(before.records))
        is_same = np.append(self.records[:shared] == before.records[:shared], False)
        columns = min(len(self), len(before))
        ends = self.ends[:columns]
        holds = (ends == before.ends[:columns]) & (ends <= is_same.argmin())
        return int(np.append(holds, False).argmin())

    def batches(self, most: int, start: int = 0) -> Iterator[tuple[slice, list[Rows]]]:
        """A few columns at a time, with at most so many rows, or one column.

        Args:
            most: rows.
            start: the first column.
        """
        count = sum(
            (np.bincount(some.columns, minlength=len(self)) for some in self.rows),
            np.zeros(len(self), np.int64),
        )
        ends = np.cumsum(count)
        while start < len(self):
            before = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, before + most, "right")), start + 1)
            parts = (part_of(some, start, stop) for some in self.rows)
            yield slice(start, stop), [part for part in parts if len(part.rows)]
            start = stop


def part_of(rows: Rows, start: int, stop: int) -> Rows:
    """Those of some columns, which are counted from the first of them."""
    begin, end = np.searchsorted(rows.columns, (start, stop))
    some = slice(int(begin), int(end))
    return Rows(block=rows.block, rows=rows.rows[some], columns=rows.columns[some] - start)


def in_columns(
    chosen: Chosen,
    most: int | None,
    state: State,
    *,
    silent: NDArray[np.bool_],
    by_blocks: bool = True,
) -> Columns:
    """At most so many columns, of about equally many steps each.

    Where steps are dense every column but the first and the last holds whole blocks, so that it
    can be read from the pyramid. A block counts only where it says what its chosen records say: if
    these follow each other, all are in one column, and the others have nothing to say.

    Args:
        chosen: the steps.
        most: columns; None: one a step.
        silent: bool [records]: which records cannot change the answer.
        by_blocks: whether the pyramid has what is asked for. The columns are the same without.
    """
    if not len(chosen):
        return Columns(
            first=chosen.steps, last=chosen.steps, records=chosen.records, ends=chosen.records
        )
    # Of a short run nothing is made, and its columns need not care.
    sizes = BLOCKS if state.stretches else ()
    levels = [blocks_of(chosen, state, size, silent) for size in sizes]
    starts = column_starts(len(chosen), most, levels)
    column = np.zeros(len(chosen), np.int64)
    column[starts[1:]] = 1
    column = np.cumsum(column)
    left: NDArray[np.bool_] = np.ones(len(chosen), np.bool_)
    rows = list[Rows]()
    for level in levels if by_blocks else []:
        fits = level.is_made & left[level.first] & (column[level.first] == column[level.last])
        left[level.places(fits)[0]] = False
        numbers, goes_to = level.numbers[fits], column[level.first[fits]]
        order = np.argsort(goes_to, kind="stable")
        rows.append(Rows(block=level.size, rows=numbers[order], columns=goes_to[order]))
    rows.append(Rows(block=1, rows=chosen.records[left], columns=column[left]))
    ends = np.append(starts[1:], len(chosen))
    return Columns(
        first=chosen.steps[starts],
        last=chosen.steps[ends - 1],
        rows=[some for some in rows if len(some.rows)],
        records=chosen.records,
        ends=ends,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """The blocks of one size that say what their chosen records say."""

    size: int
    numbers: Indices
    """int64 [blocks]"""
    first: Indices
    """int64 [blocks]: the place of the first of its records among the chosen."""
    last: Indices
    """int64 [blocks]: and of the last; between them there are no others."""
    is_made: NDArray[np.bool_]
    """bool [blocks]: which the pyramid holds."""

    @property
    def longest(self) -> int:
        """The most chosen records of a block."""
        return int((self.last - self.first).max(initial=-1)) + 1

    def places(self, some: NDArray[np.bool_]) -> tuple[Indices, Indices]:
        """int64: the places of all chosen records of some blocks, and where each's block begins."""
        count = self.last[some] - self.first[some] + 1
        first = np.repeat(self.first[some], count)
        within = np.arange(len(first)) - np.repeat(np.cumsum(count) - count, count)
        return first + within, first


def blocks_of(chosen: Chosen, state: State, size: int, silent: NDArray[np.bool_]) -> Level:
    """The blocks of that size that can stand for their chosen records, once they are made."""
    blocks = -(-len(silent) // size)
    shape, padding = (blocks, size), blocks * size - len(silent)
    place = np.full(blocks * size, -1, np.int64)
    place[chosen.records] = np.arange(len(chosen))
    is_chosen = (place >= 0).reshape(shape)
    speaks = is_chosen.any(axis=1) & (is_chosen | np.pad(silent, (0, padding)).reshape(shape)).all(
        1
    )
    last = place.reshape(shape).max(axis=1)
    first = np.where(is_chosen, place.reshape(shape), len(chosen)).min(axis=1)
    numbers = np.flatnonzero(speaks & (last - first + 1 == is_chosen.sum(axis=1)))
    stretch = numbers * size // STRETCH
    made = (stretch < state.stretches) & ~np.isin(stretch, state.stale)
    return Level(size=size, numbers=numbers, first=first[numbers], last=last[numbers], is_made=made)


def column_starts(count: int, most: int | None, levels: list[Level]) -> Indices:
    """int64: where among so many steps each column begins.

    All columns are equally long where that cuts no block; else they begin with the block. Of
    several steps each they are up to twice as long as they need be, where they then hold whole
    blocks: what lies in none is read step by step, which takes several times as long.
    """
    size = 1 if most is None else -(-count // max(most, 1))
    most_steps = 2 * size if size > 1 else 1
    fitting = [level for level in levels if 0 < level.longest <= most_steps]
    if not fitting:
        return np.arange(0, count, size)
    longest = fitting[0].longest
    starts = np.arange(0, count, -(-size // longest) * longest)
    # Nowhere two columns come to begin at one place: no block is longer than a column.
    begins: Indices = np.arange(count)
    for level in reversed(fitting):
        places, first = level.places(np.ones(len(level.numbers), np.bool_))
        begins[places] = first
    return begins[starts]
