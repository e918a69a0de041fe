"""Exact counts for which a sketch has no room: finer histograms of |x|, by block, and by format.

Each is an array of int64 that merges as a histogram does: the counts of parts add up. NaN,
infinity and zero are in none of them; the sketch beside them counts these. `count` is the
reference: every faster kernel agrees with it to the last bit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import SettingError
from .formats import number_format, smallest_normal
from .table import BINS, FIRST_EXPONENT, Ints

MAX_BITS = 4
"""Bits of the mantissa by which a binade is split at most: more tell nothing about 8-bit formats"""
INSIDE, EDGE = 0, 1
"""Last axis of a fine histogram: above the lower edge of a part, and exactly at it.

What lies at an edge is a tie where a format rounds at that edge: bfloat16 and float16 have many."""
FINE_ROWS = BINS + 2
"""Rows of `FineExponents`: what lies below all bins, the bins of a sketch, what lies above them."""
BLOCK_ROWS = 40
"""Rows of `BlockExponents`: what is smaller than 2^-38 of its scale, and then a row a binade."""
FIRST_BLOCK_EXPONENT = 2 - BLOCK_ROWS
"""Exponent of row 1 of `BlockExponents`; that of its last row is 0."""
MAX_NUMBERS = 1 << 18
"""Counts of all exact counts of a rank, or of a run, together: a record keeps 8 bytes for each."""
SMALLEST_NORMAL = smallest_normal(np.dtype(np.float64))
MAX_BLOCK, MAX_BLOCK_ELEMENTS = 4096, 1 << 18
"""Elements of a block along one axis, at most, and in all."""

LOST = {"overflow": 0, "underflow": 1, "subnormal": 2}
"""Where `CastCounts` has what a format would lose."""
NONZERO = 3
"""And where the number of elements that could be lost."""

Scale = Literal["power", "amax"]


@dataclass(frozen=True, slots=True)
class FineExponents:
    """How many elements lie in each 2^bits-th of a binade: int64 [FINE_ROWS, 2**bits, 2].

    Row 1 + e - FIRST_EXPONENT is bin e of a sketch, split evenly by the first `bits` bits of the
    mantissa; row 0 and the last hold what lies outside of the bins (float64), in their first part.
    The last axis is `INSIDE`, `EDGE`. Summed over it and over the parts it is the sketch's
    histogram.

    Raises:
        SettingError: `bits` is not 1 to 4.
    """

    bits: int = MAX_BITS

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MAX_BITS:
            raise SettingError(f"`bits` must be from 1 to {MAX_BITS}, got {self.bits}.")

    @property
    def name(self) -> str:
        """As it is written in a store."""
        return f"fine_exponents:{self.bits}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its counts."""
        return FINE_ROWS, 1 << self.bits, 2

    def count(self, x: NDArray[Any]) -> Ints:
        """int64 [FINE_ROWS, 2**bits, 2] of an array of any shape."""
        magnitude = magnitudes(x)
        return fine_histogram(
            magnitude[magnitude > 0], self.bits, FIRST_EXPONENT - 1, rows=FINE_ROWS
        )


@dataclass(frozen=True, slots=True)
class BlockExponents:
    """How small elements are beside the scale of their block: int64 [BLOCK_ROWS, 2**bits, 2].

    Row 1 + e - FIRST_BLOCK_EXPONENT counts 2^e <= |x| / scale < 2^(e+1), split as in
    `FineExponents`; row 0, in its first part, what is smaller. With `scale` "power" it is the power
    of two at or below the largest magnitude of the block, as in the OCP Microscaling formats
    (MX v1.0, 5.2 and 6.3); with "amax" that magnitude itself, as where blocks have a float scale.
    Blocks whose elements are all zero or not finite have no scale and count nothing; what is
    subnormal in float64 counts as zero here.

    Args:
        rows, columns: elements of a block along the last two axes of the tensor, whose last blocks
            may be smaller; other axes only make more blocks. So (1, 32) lies along the last axis,
            (32, 1) along the one before.

    Raises:
        SettingError: an argument is out of range.
    """

    rows: int = 1
    columns: int = 32
    scale: Scale = "power"
    bits: int = MAX_BITS

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            if not 1 <= getattr(self, name) <= MAX_BLOCK:
                raise SettingError(
                    f"`{name}` of a block must be from 1 to {MAX_BLOCK}, got {getattr(self, name)}."
                )
        if self.rows * self.columns > MAX_BLOCK_ELEMENTS:
            raise SettingError(
                f"A block must have at most {MAX_BLOCK_ELEMENTS} elements, "
                f"got {self.rows} x {self.columns}."
            )
        if self.scale not in ("power", "amax"):
            raise SettingError(f"`scale` must be 'power' or 'amax', got {self.scale!r}.")
        FineExponents(self.bits)  # checks them

    @property
    def name(self) -> str:
        """As it is written in a store."""
        return f"block_exponents:{self.rows}x{self.columns}:{self.scale}:{self.bits}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its counts."""
        return BLOCK_ROWS, 1 << self.bits, 2

    def count(self, x: NDArray[Any]) -> Ints:
        """int64 [BLOCK_ROWS, 2**bits, 2] of an array."""
        magnitude = blocks_of(magnitudes(x), self.rows, self.columns)
        magnitude[magnitude < SMALLEST_NORMAL] = 0
        scale = magnitude.max(axis=(2, 4), keepdims=True, initial=0)
        if self.scale == "power":
            scale = np.ldexp(1.0, np.frexp(scale)[1] - 1)
        kept = magnitude > 0
        ratio = magnitude[kept] / np.broadcast_to(scale, magnitude.shape)[kept]
        return fine_histogram(ratio, self.bits, FIRST_BLOCK_EXPONENT - 1, rows=BLOCK_ROWS)


@dataclass(frozen=True, slots=True)
class CastCounts:
    """How many elements a cast to a format would lose: int64 [4].

    They are those that overflow (or are clipped), those that become zero, and those that are below
    its smallest normal number, these among them; by its true thresholds, rounding to nearest even.
    The last is how many elements are finite and not zero.

    Raises:
        SettingError: there is no such format.
    """

    format: str

    def __post_init__(self) -> None:
        number_format(self.format)

    @property
    def name(self) -> str:
        """As it is written in a store."""
        return f"cast_counts:{self.format}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its counts."""
        return (NONZERO + 1,)

    @property
    def thresholds(self) -> tuple[float, float, float]:
        """Of |x|: it overflows from the first on, is zero below the second, subnormal the third."""
        target = number_format(self.format)
        kept = float(np.nextafter(target.flush_threshold, np.inf))
        return target.overflow_threshold, kept, target.smallest_normal

    def count(self, x: NDArray[Any]) -> Ints:
        """int64 [4] of an array of any shape."""
        magnitude = magnitudes(x)
        some = magnitude[magnitude > 0]
        over, kept, normal = self.thresholds
        counted = (some >= over, some < kept, some < normal, some)
        return np.array([np.count_nonzero(chosen) for chosen in counted], np.int64)


ExactCount = FineExponents | BlockExponents | CastCounts
"""What can be counted of a tensor beside its sketch."""

_FINE = re.compile(r"fine_exponents:([1-9])")
_BLOCKS = re.compile(r"block_exponents:([1-9][0-9]{0,3})x([1-9][0-9]{0,3}):(power|amax):([1-9])")
_CASTS = re.compile(r"cast_counts:([a-z0-9_]{1,32})")


@lru_cache(maxsize=1 << 12)
def exact_count_named(name: str) -> ExactCount:
    """The exact count whose `name` that is.

    Raises:
        SettingError: there is none.
    """
    if found := _FINE.fullmatch(name):
        return FineExponents(int(found[1]))
    if found := _BLOCKS.fullmatch(name):
        scale: Any = found[3]  # the pattern knows both
        return BlockExponents(int(found[1]), int(found[2]), scale, int(found[4]))
    if found := _CASTS.fullmatch(name):
        return CastCounts(found[1])
    raise SettingError(f"There is no exact count {name[:100]!r}.")


def magnitudes(x: NDArray[Any]) -> NDArray[np.float64]:
    """float64, in the shape of `x`: |x|, 0 where that is not finite."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.abs(np.nan_to_num(x.astype(np.float64), nan=0, posinf=0, neginf=0))


def fine_histogram(magnitude: NDArray[np.float64], bits: int, lowest: int, *, rows: int) -> Ints:
    """int64 [rows, 2**bits, 2] of positive numbers; row r begins at 2^(lowest + r), r > 0."""
    counts = np.zeros((rows, 1 << bits, 2), np.int64)
    fraction, exponent = np.frexp(magnitude)
    scaled = np.ldexp(fraction, bits + 1)
    whole = np.floor(scaled)
    row = np.where(magnitude > 0, exponent - 1 - lowest, 0)  # a ratio may have become zero
    inside = (row > 0) & (row < rows)
    part = np.where(inside, whole.astype(np.int64) - (1 << bits), 0)
    edge = np.where(inside & (scaled == whole), EDGE, INSIDE)
    np.add.at(counts, (np.clip(row, 0, rows - 1), part, edge), 1)
    return counts


def blocks_of(x: NDArray[np.float64], rows: int, columns: int) -> NDArray[np.float64]:
    """[batch, blocks, rows, blocks, columns] of an array, filled up with zeros."""
    shape = (1, 1, *x.shape)[-max(x.ndim, 2) :]
    whole = x.reshape(int(np.prod(shape[:-2])), *shape[-2:])
    down, right = -whole.shape[1] % rows, -whole.shape[2] % columns
    padded = np.pad(whole, ((0, 0), (0, down), (0, right)))
    high, wide = padded.shape[1:]
    return padded.reshape(len(whole), high // rows, rows, wide // columns, columns)
