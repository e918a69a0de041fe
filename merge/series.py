"""Quantities of a record: series of its ranks united, and what is read off them.

Uniting keeps the arrays of all ranks; it is done, and spectra are taken, once the numbers are asked
for, which may be on another thread than the one that takes frames in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..sketch.matrices import Weighted, merged
from ..sketch.spectra import read, read_values, spectrum, why_unknown
from ..sketch.table import Floats
from ..wire.codec import PackedFrame
from .placement import DerivedAt
from .plan import Contribution


class Numbers(NamedTuple):
    """What was read off the series of a record."""

    values: Mapping[int, Floats]
    """By index into the run's quantities: float64 [width]; NaN where it is not known."""
    reasons: Mapping[int, str]
    """And why not."""


@dataclass(slots=True, eq=False)
class Derived:
    """The series of one record."""

    parts: Mapping[tuple[int, ...], tuple[DerivedAt, Mapping[int, Weighted]]]
    """By the quantities that are read off: what it is, and arrays by cell."""
    _numbers: Numbers | None = field(default=None, init=False)

    @classmethod
    def of(cls, contributions: Sequence[Contribution]) -> Derived:
        """Those of the ranks' frames, lowest rank first: of copies the first counts."""
        found = dict[tuple[int, ...], tuple[DerivedAt, dict[int, Weighted]]]()
        for part in contributions:
            frame = part.frame
            if not isinstance(frame, PackedFrame):  # no relay joins frames that have any
                continue
            for said, array in zip(frame.header.series, frame.series, strict=True):
                known = part.layout.series[said.series]
                key = tuple(reading.index for reading in known.readings)
                if key:
                    cells = found.setdefault(key, (known, {}))[1]
                    cells.setdefault(known.cell, Weighted(said.weight, array))
        return cls(found)

    @classmethod
    def known(cls, values: Mapping[int, Floats]) -> Derived:
        """Those of a stored record, by index into the run's quantities."""
        derived = cls({})
        derived._numbers = Numbers(values, {})
        return derived

    @property
    def size_bytes(self) -> int:
        """What the arrays take of memory."""
        every = (cells for _, cells in self.parts.values())
        return sum(one.array.nbytes for cells in every for one in cells.values())

    def numbers(self) -> Numbers:
        """What is read off; computed once."""
        if self._numbers is None:
            values, reasons = dict[int, Floats](), dict[int, str]()
            for known, cells in self.parts.values():
                parts = [cells[cell] for cell in sorted(cells)]
                unlike = _lengths(parts)
                if unlike:
                    parts = [Weighted(0.0, np.full_like(parts[0].array, np.nan))]
                with np.errstate(all="ignore"):
                    whole = merged(known.form, known.merge, parts)
                    numbers, why = _read(known, whole)
                values |= numbers
                reasons |= dict.fromkeys(why, unlike) if unlike else why
            self._numbers = Numbers(values, reasons)
        return self._numbers


def _lengths(parts: Sequence[Weighted]) -> str:
    """Why arrays of ranks cannot be united, or nothing."""
    lengths = sorted({len(one.array) for one in parts})
    if len(lengths) == 1:
        return ""
    return f"its arrays have {', '.join(map(str, lengths[:-1]))} and {lengths[-1]} numbers on ranks"


def _read(known: DerivedAt, whole: Weighted) -> Numbers:
    form, why = known.form, ""
    array = np.asarray(whole.array, np.float64)
    if form != "values":
        array, why = spectrum(form, known.size, whole)
    values, reasons = dict[int, Floats](), dict[int, str]()
    for one in known.readings:
        values[one.index] = found = (
            read_values(one.statistic, array, one.bound)
            if form == "values"
            else read(one.statistic, array, form)
        )
        reason = why or why_unknown(one.statistic, form, array, found)
        if reason:
            reasons[one.index] = reason
    return Numbers(values, reasons)
