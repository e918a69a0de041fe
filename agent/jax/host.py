"""Reading what a step gave: one batch for the kernels, on the agent's thread.

On the host nothing is copied: a piece is read where XLA wrote it. All pieces of a step, of all
devices of this process, are one list of work for `agent.kernel`, which is imported when there is
something to read: it imports numba.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from ...sketch.elements import Region
from ...sketch.reference import sketch_array
from ...sketch.table import SketchTable
from ..sitebook import UNMEASURED, Counted
from ..steptable import StepTable
from .in_program import sketch_pieces
from .meshes import Bounds
from .rows import table_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one device holds of an array."""

    place: int
    """Index of its device among this process's own."""
    row: int
    """Of its site."""
    array: jax.Array
    """On that device alone."""
    bounds: Bounds
    """Where it lies in the whole, by axis."""
    regions: Sequence[Region | None]
    """Where equal parts of it do, in C order; of all of it None alone."""
    whole: tuple[int, ...]
    """The shape of the whole."""
    counted: Counted = ()
    """What is counted of it beside its sketch."""


class HostBatch:
    """The sketches of one step, while they are made: a row for each device and site.

    Args:
        step: number of the step.
        places: devices of this process.
        sites: how many there are.
    """

    def __init__(self, step: int, places: int, sites: int) -> None:
        self._sites = sites
        self._table = SketchTable.empty(places * sites)
        self._present = np.zeros(places * sites, np.bool_)
        self._steps = [
            StepTable(step, self._table.take(rows), self._present[rows])
            for rows in (slice(place * sites, (place + 1) * sites) for place in range(places))
        ]

    def read(self, pieces: list[Piece]) -> None:
        """Sketch pieces into their rows, and count what is to be counted beside."""
        from ..kernel import DTYPES, cut_into, sketch_items

        # What the kernels do not read goes through NumPy.
        codes = {name: code for code, name in enumerate(DTYPES)}
        items, rows = list[tuple[int, ...]](), list[int]()
        # They stay alive here.
        arrays = [np.ascontiguousarray(np.asarray(piece.array)) for piece in pieces]
        for piece, elements in zip(pieces, arrays, strict=True):
            row, code = piece.place * self._sites + piece.row, codes.get(elements.dtype.name)
            if code is None:
                parts = np.split(elements.reshape(-1), len(piece.regions))
                for part, region in zip(parts, piece.regions, strict=True):
                    self.add([row], sketch_array(part, region=region))
                continue
            work = cut_into(elements.ctypes.data, elements.size, code, regions=piece.regions)
            items += work
            rows += [row] * len(work)
            self._count(piece, elements, code)
        if items:
            self.add(rows, sketch_items(np.array(items, np.int64)))

    def read_on_devices(self, pieces: list[Piece]) -> None:
        """The same, by a program on each device; only sketches come to the host."""
        by_place = dict[int, list[Piece]]()
        for piece in pieces:
            by_place.setdefault(piece.place, []).append(piece)
        made = [
            sketch_pieces(
                [piece.array for piece in some],
                [[np.int64(begin) for begin, _ in piece.bounds] for piece in some],
                tuple(piece.whole for piece in some),
            )
            for some in by_place.values()
        ]
        for (place, some), rows in zip(by_place.items(), made, strict=True):
            self.take(place, [piece.row for piece in some], rows)

    def take(self, place: int, rows: list[int], sketches: jax.Array) -> None:
        """Merge sketches that a device has made into the rows of its sites.

        Args:
            sketches: uint32 [..., sites, WORDS]; several of a site, as a scan stacks them, merge.
        """
        table = table_of(sketches)
        every = rows * (len(table) // max(len(rows), 1))
        measured = [number for number, row in enumerate(every) if row != UNMEASURED]
        chosen = [place * self._sites + every[number] for number in measured]
        self.add(chosen, table.take(measured))

    def add(self, rows: list[int], leaf: SketchTable) -> None:
        """Merge sketches into these rows; that of a device's site is place x sites + row."""
        from ..kernel import absorb

        absorb(self._table, np.array(rows, np.int64), leaf, np.ones(len(rows), np.bool_))
        self._present[rows] = True

    def steps(self) -> list[StepTable]:
        """By device of this process: what was read of it."""
        return self._steps

    def _count(self, piece: Piece, elements: NDArray[Any], code: int) -> None:
        from ..kernel import count

        for index, exact_count in piece.counted:
            counts = count(exact_count, elements.ctypes.data, elements.shape, code)
            self._steps[piece.place].count(index, counts)
