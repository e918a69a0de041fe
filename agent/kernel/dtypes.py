"""The dtypes that the kernels read, and their values as float32 by table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...sketch.formats import dtype_named, normal_bin

DTYPES = (
    "float32",
    "bfloat16",
    "float16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float64",
)
"""What the kernels read; the index is the `code` of a work item."""

FLOAT32, BFLOAT16, FLOAT16, FLOAT64 = 0, 1, 2, len(DTYPES) - 1
"""Codes; those between the last two are of one byte."""
SIZES = np.array([dtype_named(name).itemsize for name in DTYPES], np.int64)
"""Bytes of an element, by code."""
VALUES_16 = np.array([0, 256 * len(DTYPES), 256 * len(DTYPES) + 65536], np.int64)
"""Where in `VALUES` those of a 16-bit dtype begin; of an 8-bit one they begin at 256 x code."""


def _values() -> NDArray[np.float64]:
    values = np.zeros(VALUES_16[-1] + 65536)
    with np.errstate(invalid="ignore"):
        for code, name in enumerate(DTYPES):
            if SIZES[code] < 4:
                words = np.arange(1 << (8 * SIZES[code])).astype(f"u{SIZES[code]}")
                first = 256 * code if SIZES[code] == 1 else VALUES_16[code]
                values[first : first + len(words)] = words.view(dtype_named(name))
    return values


VALUES = _values()
"""float64: of every bit pattern of the 8- and 16-bit dtypes. By table, since arithmetic could flush
subnormals."""
with np.errstate(invalid="ignore"):
    WIDENED = VALUES.astype(np.float32).view(np.uint32)
"""The same as float32 bits."""

FIRST_NORMAL = np.array([normal_bin(name) for name in DTYPES], np.int64)
"""Bin of the smallest normal number of each dtype: what lies below is subnormal."""
