"""Room for series: what one frame may hold, shared out first come, first served."""

from __future__ import annotations

from ....sketch.matrices import length_of
from ....sketch.spectra import width_of
from ....wire.messages import MAX_READ, MAX_SERIES, Series

MAX_NUMBERS = 12 << 20
"""Numbers of all series together: 96 MiB of float64 in one frame."""


class Room:
    """What is left of it; the same on ranks that ask for the same in the same order."""

    def __init__(self) -> None:
        self._admitted: dict[int, tuple[Series, bool]] = {}
        """By identity; the series stay alive for it."""
        self._series = self._read = self._numbers = 0

    def admits(self, series: Series) -> bool:
        """Whether there is room for it; said once and for all."""
        known = self._admitted.get(id(series))
        if known is None:
            known = self._admitted[id(series)] = series, self._takes(series)
        return known[1]

    def _takes(self, series: Series) -> bool:
        read = self._read + sum(width_of(one.statistic, series.size) for one in series.readings)
        numbers = self._numbers + length_of(series.form, series.size)
        if self._series >= MAX_SERIES or read > MAX_READ or numbers > MAX_NUMBERS:
            return False
        self._series, self._read, self._numbers = self._series + 1, read, numbers
        return True
