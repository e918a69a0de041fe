"""What one thread needs while it works on items: one stretch of bytes, kept between calls."""

# The kernels take numba's typed values; their Python annotations would say nothing.
# Numba hides `carray` from type checkers; an intrinsic's first parameter is numba's to give.
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false

from __future__ import annotations

import numba
import numpy as np

from ...sketch.elements import BLOCK
from ...sketch.table import MOMENTS
from .compiling import address_of, compiled
from .passes import EXPONENTS
from .values import TABLE

_MOMENTS = len(MOMENTS)


PIECE = 1 << 17
"""Elements of a work item: larger tensors are cut, so that threads can share them."""


def _regions() -> tuple[dict[str, int], int]:
    """Where each part of a thread's scratch begins, in bytes, and how long all are."""
    lengths = {
        "words": 4 * BLOCK,
        "wide": 4 * BLOCK,
        "kept": 4 * BLOCK,
        "kept_signs": 8 * BLOCK,
        "places": 4 * BLOCK,
        "table": 8 * EXPONENTS,
        "exponents": BLOCK,
        "values": 4 * TABLE,
        "numbers": 8 * 2 * 256,
        "moments": 8 * _MOMENTS,
        "word": 64,
        "keys": 4 * BLOCK,
        "signs": 8 * BLOCK,
        "piece": 8 * PIECE,
    }
    begins, total = dict[str, int](), 0
    for name, length in lengths.items():
        begins[name] = total
        total += -(-length // 64) * 64
    return begins, total


_AT, SCRATCH_BYTES = _regions()
_WORDS, _WIDE, _PLACES = _AT["words"], _AT["wide"], _AT["places"]
_KEPT, _KEPT_SIGNS = _AT["kept"], _AT["kept_signs"]
_TABLE, _EXPONENTS, _VALUES, _NUMBERS = (
    _AT[name] for name in ("table", "exponents", "values", "numbers")
)
_KEYS, _SIGNS = _AT["keys"], _AT["signs"]
_CHUNK, _WORD, _PIECE = _AT["moments"], _AT["word"], _AT["piece"]


@compiled
def scratch_at(base):
    """The arrays in one thread's scratch, for both ways, and where it has room for a piece.

    The tables of values are left as they are found: zero.
    """
    words = numba.carray(address_of(base + _WORDS), (BLOCK,), np.uint32)
    places = numba.carray(address_of(base + _PLACES), (BLOCK,), np.uint32)
    chunks = (
        words,
        numba.carray(address_of(base + _WIDE), (BLOCK,), np.uint32),
        numba.carray(address_of(base + _KEPT), (BLOCK,), np.uint32),
        numba.carray(address_of(base + _KEPT_SIGNS), (BLOCK,), np.float64),
        numba.carray(address_of(base + _TABLE), (EXPONENTS,), np.int64),
        numba.carray(address_of(base + _EXPONENTS), (BLOCK,), np.uint8),
        numba.carray(address_of(base + _CHUNK), (_MOMENTS,), np.float64),
        numba.carray(address_of(base + _WORD), (1,), np.uint32),
        numba.carray(address_of(base + _KEYS), (BLOCK,), np.uint32),
        numba.carray(address_of(base + _SIGNS), (BLOCK,), np.float64),
    )
    values = (
        words,
        places,
        numba.carray(address_of(base + _VALUES), (TABLE,), np.uint32),
        numba.carray(address_of(base + _NUMBERS), (2, 256), np.float64),
        chunks[8],
    )
    return chunks, values, base + _PIECE
