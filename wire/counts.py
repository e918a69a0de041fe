"""The counts of quantities on the wire: windows of integers, as narrow as they can be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..sketch.errors import ProtocolError, SettingError
from ..sketch.quantities import MAX_NUMBERS, Quantity, quantity_named
from ..sketch.table import Ints
from .messages import CountWindow, Schema

MAX_COUNT = 2**47
"""Largest count of one row: such counts of 65,536 ranks add up without overflow."""


def quantity_of(schema: Schema, index: int) -> Quantity:
    """What one of a schema's quantities counts."""
    return quantity_named(schema.quantities[index].name)


def count_windows(
    quantities: Mapping[int, Ints],
) -> tuple[list[CountWindow], list[NDArray[Any]]]:
    """Where the counts of each quantity lie that are not zero, and these."""
    windows, counted = list[CountWindow](), list[NDArray[Any]]()
    for index, counts in sorted(quantities.items()):
        filled = np.flatnonzero(counts)
        first, end = (int(filled[0]), int(filled[-1]) + 1) if filled.size else (0, 0)
        values = narrowed(counts.reshape(-1)[first:end])
        name: Any = values.dtype.str[1:]  # one of u1 u2 u4 u8
        windows.append(CountWindow(quantity=index, first=first, length=end - first, dtype=name))
        counted.append(values)
    return windows, counted


def unfold(part: CountWindow, window: NDArray[Any], shape: tuple[int, ...]) -> Ints:
    """The whole counts of a quantity of that shape."""
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
    """Refuse counts that are not of the schema's quantities.

    Args:
        repeated: whether a quantity may come several times, of one cell each.

    Raises:
        ProtocolError: a quantity is unknown or named twice, its counts do not fit, or are too high.
    """
    before = -1
    for part, window in zip(parts, windows, strict=True):
        if not before - repeated < part.quantity < len(schema.quantities):
            raise ProtocolError(
                f"A frame's quantities must be strictly increasing below {len(schema.quantities)}."
            )
        before = part.quantity
        size = math.prod(quantity_of(schema, part.quantity).shape)
        if part.first + part.length > size:
            raise ProtocolError(f"A frame's counts do not fit a quantity of {size} numbers.")
        if window.dtype.itemsize == 8 and window.size and int(window.max()) > MAX_COUNT:
            raise ProtocolError("A frame's quantity counts more than 2^47 elements.")


def check_quantities(schema: Schema) -> None:
    """Refuse quantities that nobody knows, or that are too many.

    Raises:
        ProtocolError: what is wrong with the schema.
    """
    numbers = 0
    for place, known in enumerate(schema.quantities):
        if known.site >= len(schema.sites):
            raise ProtocolError(
                f"A schema's quantity is of site {known.site}; it has {len(schema.sites)}."
            )
        try:
            numbers += math.prod(quantity_of(schema, place).shape)
        except SettingError as error:
            raise ProtocolError(f"A schema cannot be used: {error}") from None
    if numbers > MAX_NUMBERS:
        raise ProtocolError(
            f"A schema's quantities are {numbers} numbers, above the limit of {MAX_NUMBERS}."
        )
    if len(set(schema.quantities)) < len(schema.quantities):
        raise ProtocolError("A schema names a quantity of a site twice.")
