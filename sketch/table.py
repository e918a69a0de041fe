"""The mergeable summary of tensors: many sketches as columns, one row a site, and the one merge.

Every process of the pipeline (device, rank, relay, collector, query) holds sketches in this type
and unites them with this merge. Counts are exact int64, moments are float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

FIRST_EXPONENT = -149
"""Exponent of the first histogram bin: the smallest subnormal of float32 is 2^-149."""
LAST_EXPONENT = 127
"""Exponent of the last histogram bin: float32 ends just below 2^128."""
BINS = LAST_EXPONENT - FIRST_EXPONENT + 1

COUNTS = (
    "count",
    "nan",
    "pos_inf",
    "neg_inf",
    "zero",
    "negative",
    "subnormal",
    "under",
    "over",
    "unbinned",
    "unseen",
)
"""Columns of `SketchTable.counts`. `negative` and `subnormal` count finite non-zero elements;
`under` and `over` are the finite ones whose exponent lies outside the histogram: in float64, and
where the counts came from elsewhere, with fewer bins; see `SketchTable.lacks_moments`.

`unbinned` are the finite elements that only a sentinel looked at: they are in `count` and in `min`
and `max`, and nowhere else. `unseen` are those that a sample left out: they are in no other number.
"""

MOMENTS = ("sum", "l1", "m2", "m3", "m4", "s8", "projection", "min", "max", "abs_min")
"""Columns of `SketchTable.moments`, over finite elements.

`m2`, `m3`, `m4` are central: Σ(x - mean)^k. `s8` is Σ(x / 2^e)^8 with e the exponent of the
largest magnitude, so that it neither overflows nor underflows. `projection` is Σ ±x with the sign
of `element_hash`. `abs_min` is over non-zero elements. The extremes of no element are the identity
of their merge: min and abs_min +inf, max -inf."""

COUNT, NAN, POS_INF, NEG_INF, ZERO, NEGATIVE, SUBNORMAL, UNDER, OVER, UNBINNED, UNSEEN = range(
    len(COUNTS)
)
SUM, L1, M2, M3, M4, S8, PROJECTION, MIN, MAX, ABS_MIN = range(len(MOMENTS))
ADDITIVE = slice(SUM, PROJECTION + 1)
"""The moments that are sums: of equal sketches they add up."""


@dataclass(frozen=True, slots=True, eq=False)
class SketchTable:
    """Sketches of `rows` tensors, as columns.

    A value is never changed by `merge` or `take`; `merge_at` and `clear` work in place, for the
    step table that an agent fills.
    """

    counts: Ints
    """int64 [rows, len(COUNTS)]"""
    moments: Floats
    """float64 [rows, len(MOMENTS)]"""
    checksum: Words
    """uint64 [rows]: Σ bits x hash(global index) modulo 2^64, over the raw bits of all elements."""
    histogram: Ints
    """int64 [rows, BINS]: bin e - FIRST_EXPONENT counts the elements with 2^e <= |x| < 2^(e+1)."""

    @classmethod
    def empty(cls, rows: int) -> SketchTable:
        """The identity of `merge`, `rows` times."""
        table = cls.unset(rows)
        table.clear()
        return table

    @classmethod
    def unset(cls, rows: int) -> SketchTable:
        """Rows that hold anything, for whoever writes all of them."""
        return cls(
            np.empty((rows, len(COUNTS)), np.int64),
            np.empty((rows, len(MOMENTS))),
            np.empty(rows, np.uint64),
            np.empty((rows, BINS), np.int64),
        )

    @classmethod
    def concatenate(cls, tables: Sequence[SketchTable]) -> SketchTable:
        """All rows of all `tables`, in order."""
        if not tables:
            return cls.empty(0)
        return cls(
            np.concatenate([table.counts for table in tables]),
            np.concatenate([table.moments for table in tables]),
            np.concatenate([table.checksum for table in tables]),
            np.concatenate([table.histogram for table in tables]),
        )

    def __len__(self) -> int:
        return len(self.counts)

    def __eq__(self, other: object) -> bool:
        """Whether all columns agree bit for bit."""
        return isinstance(other, SketchTable) and all(
            mine.shape == theirs.shape and mine.tobytes() == theirs.tobytes()
            for mine, theirs in zip(self.columns(), other.columns(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays that may change

    def columns(self) -> tuple[Ints, Floats, Words, Ints]:
        """The four arrays: counts, moments, checksum, histogram."""
        return self.counts, self.moments, self.checksum, self.histogram

    def clear(self) -> None:
        """Make every row the identity again, in place."""
        self.counts.fill(0)
        self.moments.fill(0.0)
        self.moments[:, [MIN, ABS_MIN]] = np.inf
        self.moments[:, MAX] = -np.inf
        self.checksum.fill(0)
        self.histogram.fill(0)

    def take(self, rows: NDArray[np.intp] | slice | Sequence[int]) -> SketchTable:
        """The chosen rows, as a new table."""
        return SketchTable(
            self.counts[rows], self.moments[rows], self.checksum[rows], self.histogram[rows]
        )

    def repeat(self, copies: Ints) -> SketchTable:
        """Row by row, the merge of so many equal sketches.

        Args:
            copies: int64 [rows], at least 1.
        """
        moments = self.moments.copy()
        moments[:, ADDITIVE] *= copies[:, None]
        return SketchTable(
            self.counts * copies[:, None],
            moments,
            self.checksum * copies.astype(np.uint64),
            self.histogram * copies[:, None],
        )

    def finite(self) -> Ints:
        """int64 [rows]: how many elements that were looked at are finite."""
        counts = self.counts
        return counts[:, COUNT] - counts[:, NAN] - counts[:, POS_INF] - counts[:, NEG_INF]

    def measured(self) -> Ints:
        """int64 [rows]: how many of the finite elements are in the histogram and the sums."""
        return self.finite() - self.counts[:, UNBINNED]

    def is_glance(self) -> NDArray[np.bool_]:
        """bool [rows]: whether some finite elements were left to the sentinel.

        Of a tensor without any the sentinel tells as much as a sketch.
        """
        return self.counts[:, UNBINNED] > 0

    def lacks_moments(self) -> NDArray[np.bool_]:
        """bool [rows]: whether somebody else counted, who kept neither moments nor a checksum.

        What was not kept is NaN; `max` is of |x| there, and it and `abs_min` may be known. Of
        `negative` and `subnormal` it is -1. What is in `under` is smaller than all that bins hold,
        and what is in `over` larger: more is not known of these.
        """
        return np.isnan(self.moments[:, MIN])  # over finite elements it never is

    def has_checksum(self) -> NDArray[np.bool_]:
        """bool [rows]: whether finite elements are in the checksum.

        A sentinel takes it of few tensors, and of others it is 0: as it is where all elements are.
        """
        moments = self.moments
        zero = (moments[:, MIN] == 0) & (moments[:, MAX] == 0)
        whole = (self.measured() > 0) & ~self.lacks_moments()
        return whole | (self.is_glance() & ((self.checksum != 0) | zero))

    def magnitude(self) -> Floats:
        """float64 [rows]: the largest finite |x|, 0 where there is none."""
        return magnitude(self.moments.T)

    def merge(self, other: SketchTable) -> SketchTable:
        """Row by row, the sketch of the union: associative, commutative, with `empty` as identity.

        Counts, extremes and checksum are exact. Central moments follow Chan, Golub and LeVeque
        1979 and Pebay 2008 (SAND2008-6212, eq. 2.1 to 2.5).

        Raises:
            ValueError: the tables differ in their number of rows.
        """
        if len(self) != len(other):
            raise ValueError(
                f"Only tables of equal length merge, got {len(self)} and {len(other)} rows."
            )
        return SketchTable(
            self.counts + other.counts,
            _merge_moments(self, other),
            self.checksum + other.checksum,
            self.histogram + other.histogram,
        )

    def merge_at(self, rows: NDArray[np.intp], other: SketchTable) -> None:
        """Merge row i of `other` into row `rows[i]`, in place; a row may be named several times."""
        left = np.arange(len(rows))
        while len(left):
            _, first = np.unique(rows[left], return_index=True)
            now = left[first]
            merged = self.take(rows[now]).merge(other.take(now))
            for mine, new in zip(self.columns(), merged.columns(), strict=True):
                mine[rows[now]] = new
            left = np.delete(left, first)


def _merge_moments(a: SketchTable, b: SketchTable) -> Floats:
    p, q = side_by_side(a.moments), side_by_side(b.moments)
    na, nb = a.measured().astype(np.float64), b.measured().astype(np.float64)
    merged = np.empty_like(p)
    for column in (SUM, L1, PROJECTION):
        np.add(p[column], q[column], out=merged[column])
    for column in (MIN, ABS_MIN):
        np.minimum(p[column], q[column], out=merged[column])
    np.maximum(p[MAX], q[MAX], out=merged[MAX])
    with np.errstate(all="ignore"):
        d = q[SUM] / np.maximum(nb, 1.0) - p[SUM] / np.maximum(na, 1.0)
        # Nothing is added where a side is empty, not even the NaN of 0 times an overflow.
        d[(na == 0) | (nb == 0)] = 0.0
        dn = d / np.maximum(na + nb, 1.0)
        u, v = dn * na, dn * nb
        between, t = d * u * nb, u - v
        merged[M2] = p[M2] + q[M2] + between
        merged[M3] = p[M3] + q[M3] + between * t + 3 * (u * q[M2] - v * p[M2])
        merged[M4] = (
            p[M4]
            + q[M4]
            + between * (t * t + u * v)
            + 6 * (u * u * q[M2] + v * v * p[M2])
            + 4 * (u * q[M3] - v * p[M3])
        )
        mine, theirs = scale_exponent(magnitude(p)), scale_exponent(magnitude(q))
        common = np.maximum(mine, theirs)
        np.ldexp(p[S8], 8 * (mine - common), out=merged[S8])
        merged[S8] += np.ldexp(q[S8], 8 * (theirs - common))
    return merged.T


def side_by_side(moments: Floats) -> Floats:
    """float64 [columns, rows]: the same, each column in one piece of memory, without need no copy.

    Arithmetic on them is several times as fast then.
    """
    columns = moments.T
    return columns if columns.strides[1] == columns.itemsize else np.ascontiguousarray(columns)


def magnitude(columns: Floats) -> Floats:
    """float64 [rows] of moments [len(MOMENTS), rows]: the largest finite |x|, or 0 for none."""
    # Of no element the extremes are -inf and +inf, so that both terms are negative.
    # Of what lacks moments `min` is NaN, and `max` what is asked for.
    return np.maximum(np.fmax(-columns[MIN], columns[MAX]), 0.0)


def scale_exponent(magnitude: Floats) -> NDArray[np.int32]:
    """int32 [rows]: floor(log2) of the largest magnitude, in whose eighth power `s8` is scaled.

    A row without a non-zero element gives -1200, below every float64, so that the other side of a
    merge decides; so does one of which it is not known.
    """
    exponent = np.frexp(magnitude)[1]
    exponent -= 1
    exponent[~(magnitude > 0)] = -1200
    return exponent


def without_copies(increasing: NDArray[np.intp]) -> NDArray[np.intp] | slice:
    """The same places, as a slice if none is left out: what that selects is a view."""
    if not len(increasing) or increasing[-1] - increasing[0] >= len(increasing):
        return increasing
    return slice(int(increasing[0]), int(increasing[-1]) + 1)
