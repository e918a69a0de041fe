"""What an attempt's reductions are off by when all is well, learnt from its records. Pure.

A dtype says what rounding may do, not what it does: gradients in bfloat16 that are added up in
float32 are exact, and those in float32 that a hook compresses are not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..sketch.conservation import LEAST
from ..sketch.table import Floats
from .sums import Pairs, Sums

TIMES_OTHERS, AT_FIRST = 8, 64
"""So many times as far off as half of the others: what compresses gradients rounds them all. Of few
tensors one half may be nearly right by chance: until so many records are known it is more."""
COMPRESSED = 2**-5
"""As much as all but one tensor are off by may one be at first, times 8, where something rounds
them; but no more than this, four units in the last place of bfloat16. Of fewer tensors than
`RECORDS` all may be so far off where two are: the others may be nearly right by chance."""
MEMORY = 64
"""Records of which it is known what half of the tensors were off by."""
LARGEST = 1e300
"""In place of infinity, which JSON does not have."""
RECORDS = 8
"""Records in a row in which a sum must have been exact to be held to it."""


@dataclass(slots=True)
class Rounding:
    """How exact an attempt's reduced gradients have been so far."""

    _usual: deque[float] = field(default_factory=lambda: deque[float](maxlen=MEMORY))
    """Of records: what half of the tensors were off by."""
    _exact: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """By site: records in a row in which its sum was exact; only of dtypes that need not be so."""
    _all_exact: int = 0
    """Records in a row in which all of these were."""

    def learnt(self) -> tuple[list[float], list[int], int]:
        """What `recalled` goes on with."""
        usual = [min(one, LARGEST) for one in self._usual]
        return usual, np.minimum(self._exact, RECORDS).tolist(), self._all_exact

    @classmethod
    def recalled(cls, learnt: tuple[list[float], list[int], int]) -> Self:
        """As it was when `learnt` gave this."""
        usual, exact, all_exact = learnt
        return cls(deque(usual, maxlen=MEMORY), np.array(exact, np.int64), all_exact)

    def tolerance(self, pairs: Pairs) -> Floats:
        """float64 [pairs]: what the arithmetic of the reduction may be off by, as far as known."""
        if self._all_exact < RECORDS:
            return pairs.tolerance
        return np.where(self._of(pairs) >= RECORDS, pairs.reduction, pairs.tolerance)

    def others(self, pairs: Pairs, sums: Sums) -> float:
        """What is excused by what half of the others are off by, now and in the records before."""
        known, half = sorted(self._usual), _half(sums)
        # The largest of all may have been a fault.
        most = max(TIMES_OTHERS, AT_FIRST / (1 + len(known))) * max([half, *known[-2:-1]])
        off = np.sort(sums.off[~np.isnan(sums.off)])
        if len(known) >= RECORDS or (len(off) >= RECORDS and half <= pairs.reduction.min()):
            return most
        second = float(off[-2:][0])
        is_rounded = len(off) < RECORDS and second > pairs.reduction.min()
        return max(most, COMPRESSED if is_rounded else min(TIMES_OTHERS * second, COMPRESSED))

    def learn(self, pairs: Pairs, sums: Sums) -> None:
        """Of a record whose gradients were reduced."""
        self._usual.append(_half(sums))
        open_to = (pairs.reduction < pairs.tolerance) & sums.several & ~np.isnan(sums.off)
        if not open_to.any():
            return
        self._of(pairs)  # makes room
        off = open_to & (sums.off > pairs.reduction)
        if 2 * np.count_nonzero(off) >= np.count_nonzero(open_to):
            self._exact[:], self._all_exact = 0, 0  # it is the arithmetic, not a fault
            return
        is_known = self._all_exact >= RECORDS
        sites = pairs.of[pairs.reduced]
        # What was found exact is held to it: else a fault would excuse itself.
        forgotten = off & ~(is_known & (self._exact[sites] >= RECORDS))
        self._exact[sites[open_to & ~off]] += 1
        self._exact[sites[forgotten]] = 0
        if not is_known:
            enough = int(np.count_nonzero(open_to) >= LEAST)
            self._all_exact = 0 if off.any() else self._all_exact + enough

    def _of(self, pairs: Pairs) -> NDArray[np.int64]:
        sites = pairs.of[pairs.reduced]
        room = int(sites.max(initial=-1)) + 1 - len(self._exact)
        if room > 0:
            self._exact = np.append(self._exact, np.zeros(room, np.int64))
        return self._exact[sites]


def _half(sums: Sums) -> float:
    """What half of those tensors are off by to which several ranks add something."""
    some = sums.off[sums.several & ~np.isnan(sums.off)]
    return float(np.median(some)) if len(some) else float(np.nanmedian(sums.off))
