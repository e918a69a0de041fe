"""Exact counts on the wire: windows of integers, as narrow as they can be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sketch.errors import ProtocolError, SettingError
from ..sketch.exact_counts import MAX_NUMBERS, ExactCount, exact_count_named
from ..sketch.table import Ints
from .messages import CountWindow, Schema

MAX_COUNT = 2**47
"""Largest count of one row: such counts of 65,536 ranks add up without overflow."""


def exact_count_of(schema: Schema, index: int) -> ExactCount:
    """What one of a schema's exact counts counts."""
    return exact_count_named(schema.exact_counts[index].name)


def count_windows(
    exact_counts: Mapping[int, Ints],
) -> tuple[list[CountWindow], list[NDArray[Any]]]:
    """Where the numbers of each exact count lie that are not zero, and these."""
    windows, counted = list[CountWindow](), list[NDArray[Any]]()
    for index, counts in sorted(exact_counts.items()):
        filled = np.flatnonzero(counts)
        first, end = (int(filled[0]), int(filled[-1]) + 1) if filled.size else (0, 0)
        values = narrowed(counts.reshape(-1)[first:end])
        name: Any = values.dtype.str[1:]  # one of u1 u2 u4 u8
        windows.append(CountWindow(exact_count=index, first=first, length=end - first, dtype=name))
        counted.append(values)
    return windows, counted


def unfold(part: CountWindow, window: NDArray[Any], shape: tuple[int, ...]) -> Ints:
    """The whole counts of an exact count of that shape."""
    counts = np.zeros(shape, np.int64)
    counts.reshape(-1)[part.first : part.first + part.length] = window
    return counts


def narrowed(values: NDArray[np.int64]) -> NDArray[Any]:
    """As the narrowest unsigned integers that hold them, little-endian."""
    largest = int(values.max(initial=0))
    size = next(size for size in (1, 2, 4, 8) if largest < 1 << (8 * size))
    return values.astype(f"<u{size}")


def check_counted(
    parts: Sequence[CountWindow],
    windows: Sequence[NDArray[Any]],
    schema: Schema,
    *,
    repeated: bool = False,
) -> None:
    """Refuse counts that are not of the schema's exact counts.

    Args:
        repeated: whether an exact count may come several times, of one cell each.

    Raises:
        ProtocolError: an exact count is unknown or named twice, does not fit, or is too high.
    """
    before = -1
    for part, window in zip(parts, windows, strict=True):
        if not before - repeated < part.exact_count < len(schema.exact_counts):
            raise ProtocolError(
                "A frame's exact counts must be strictly increasing below "
                f"{len(schema.exact_counts)}."
            )
        before = part.exact_count
        size = math.prod(exact_count_of(schema, part.exact_count).shape)
        if part.first + part.length > size:
            raise ProtocolError(f"A frame's counts do not fit an exact count of {size} numbers.")
        if window.dtype.itemsize == 8 and window.size and int(window.max()) > MAX_COUNT:
            raise ProtocolError("An exact count of a frame counts more than 2^47 elements.")


def check_exact_counts(schema: Schema) -> None:
    """Refuse exact counts that nobody knows, or that are too many.

    Raises:
        ProtocolError: what is wrong with the schema.
    """
    numbers = 0
    for place, known in enumerate(schema.exact_counts):
        if known.site >= len(schema.sites):
            raise ProtocolError(
                f"A schema's exact count is of site {known.site}; it has {len(schema.sites)}."
            )
        try:
            numbers += math.prod(exact_count_of(schema, place).shape)
        except SettingError as error:
            raise ProtocolError(f"A schema cannot be used: {error}") from None
    if numbers > MAX_NUMBERS:
        raise ProtocolError(
            f"A schema's exact counts are {numbers} numbers, above the limit of {MAX_NUMBERS}."
        )
    if len(set(schema.exact_counts)) < len(schema.exact_counts):
        raise ProtocolError("A schema names an exact count of a site twice.")
