"""The CPU kernels inside compiled functions: XLA calls them through its foreign function interface.

XLA's own code for the CPU takes ten times as long for the same numbers. No Python runs, so that no
lock is taken; the order, number and place of the calls are the compiler's, and do not matter, for
the sketch is what the call returns.
"""

# The kernels take numba's typed values; their Python annotations would say nothing.
# Numba hides `carray` and llvmlite's `ir` from type checkers; an intrinsic's first parameter is
# numba's to give.
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false, reportUnusedExpression=false
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import ctypes
import logging
import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import llvmlite.binding
import numba
import numpy as np
from numba import cfunc
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from ...sketch.elements import BLOCK
from ...sketch.reference import sketch_array
from ...sketch.table import BINS, COUNTS, MOMENTS, SketchTable
from ..kernel.compiling import SOURCES, address_of, call_at, compiled, exchange, kept
from ..kernel.dtypes import DTYPES, SIZES
from ..kernel.items import (
    COLUMNS,
    ITEM,
    ITEMS,
    SCRATCH,
    TASK,
    cut_into,
    task_of_one,
    told_if_long,
    unite,
)
from ..kernel.scratch import SCRATCH_BYTES
from ..strides import regions_of
from .pieces import Piece
from .rows import WORDS, table_of, typed_as

logger = logging.getLogger(__name__)

COMPILES = (
    "rankscope compiles what XLA calls its kernels by, which takes a minute or so, once on this "
    "machine."
)
"""What is told where it takes longer."""

TARGET = "rankscope_sketch"
"""The name of the kernels for XLA."""

THREADS = 64
"""Calls at a time that find scratch ready; more allocate their own."""

_COUNTS, _MOMENTS = len(COUNTS), len(MOMENTS)
_NUMBERS = WORDS // 2
_ORIGIN = 8
"""Where an item has the origin of its region."""

# Places of 8-byte words in the structures of xla/ffi/api/c_api.h, whose layout is stable.
_EXTENSION, _API, _ARGUMENTS, _RESULTS, _FRAME = 1, 2, 9, 14, 22
_NEXT, _METADATA, _IS_METADATA = 2, 3, 1
_DATA, _RANK, _DIMS = 3, 4, 5

_ADDRESSES = "rankscope_addresses"
"""Symbol of int64 [7]: the addresses of the kernel, its task, scratch, which of that is taken, and
C's `fegetenv`, `fesetenv` and an environment that keeps subnormal numbers. Compiled code is kept on
disk, and may not hold addresses of this process."""


@intrinsic
def _addresses(typing_context):
    """The address of what `_ADDRESSES` names."""

    def codegen(context, builder, signature, arguments):
        word = cgutils.ir.IntType(64)
        symbol = cgutils.ir.GlobalVariable(builder.module, word, _ADDRESSES)
        return builder.ptrtoint(symbol, word)

    return types.int64(), codegen


@compiled
def _words(address, length):
    return numba.carray(address_of(address), (length,), np.int64)


@compiled
def _tell_version(frame):
    """Answer the question which version of the interface this is: that of who asks."""
    extension = frame[_EXTENSION]
    while extension:
        asked = _words(extension, 4)
        if np.int32(asked[1]) == _IS_METADATA:
            answer = numba.carray(address_of(asked[_METADATA]), (9,), np.int32)
            version = numba.carray(address_of(frame[_API]), (10,), np.int32)
            answer[6], answer[7], answer[8] = version[8], version[9], np.int32(0)
            return True
        extension = asked[_NEXT]
    return False


@compiled
def _take_scratch(scratch, taken):
    """The number of scratch that no other call has, or -1."""
    for place in range(THREADS):
        if exchange(taken + 8 * place, np.int64(1)) == 0:
            return place
    return -1


@compiled
def _sketch_into(row, items, base, task, kernel, item, other):
    """Merge the sketches of the items of one array, which begins at `base`, into a row."""
    for i in range(items.shape[0]):
        into = other if i else row
        item[:] = items[i]
        item[0] += base
        task[0], task[1] = 0, 0
        task[COLUMNS] = into.ctypes.data
        task[COLUMNS + 1] = task[COLUMNS] + 8 * _COUNTS
        task[COLUMNS + 2] = task[COLUMNS + 1] + 8 * _MOMENTS
        task[COLUMNS + 3] = task[COLUMNS + 2] + 8
        call_at(kernel, task.ctypes.data)
        if i:
            unite(_columns(row), _columns(other))


@compiled
def _sketch_rows(frame, kernel, task, scratch):
    """All that a call asks for: of an array [*rows, …] and its items [*rows, n, ITEM] the rows."""
    arguments, results = _words(frame[_ARGUMENTS], 2), _words(frame[_RESULTS], 1)
    x, given, out = _words(arguments[0], 6), _words(arguments[1], 6), _words(results[0], 6)
    rows, elements = 1, 1
    for size in _words(out[_DIMS], out[_RANK] - 1):
        rows *= size
    for size in _words(x[_DIMS], x[_RANK]):
        elements *= size
    n = _words(given[_DIMS], given[_RANK])[given[_RANK] - 2]
    item, other = np.empty(ITEM, np.int64), np.empty(_NUMBERS, np.int64)
    task[SCRATCH], task[ITEMS] = scratch, item.ctypes.data
    for i in range(rows):
        items = numba.carray(address_of(given[_DATA] + 8 * ITEM * n * i), (n, ITEM), np.int64)
        base = x[_DATA] + i * (elements // rows) * SIZES[items[0, 3]]
        row = _words(out[_DATA] + 8 * _NUMBERS * i, _NUMBERS)
        _sketch_into(row, items, base, task, kernel, item, other)


@compiled
def _columns(numbers):
    first = _COUNTS + _MOMENTS
    moments = numbers[_COUNTS:first].view(np.float64)
    return numbers[:_COUNTS], moments, numbers[first : first + 1].view(np.uint64), numbers[-BINS:]


def _handler_from(sources):
    """XLA's handler of a call; it returns no error.

    `sources` makes numba's cache on disk tell versions apart.
    """

    def sketch(pointer):
        sources  # noqa: B018  # in the closure: numba's cache has it in its key
        frame = numba.carray(pointer, (_FRAME,))
        if frame[_EXTENSION] and _tell_version(frame):
            return 0
        kernel, task, scratch, taken, get, put, gradual = _words(_addresses(), 7)
        found = np.empty(8, np.int64)
        call_at(get, found.ctypes.data)
        call_at(put, gradual)
        place = _take_scratch(scratch, taken)
        own = np.zeros(SCRATCH_BYTES if place < 0 else 0, np.uint8)
        mine = own.ctypes.data if place < 0 else scratch + place * SCRATCH_BYTES
        _sketch_rows(frame, kernel, _words(task, TASK).copy(), mine)
        call_at(put, found.ctypes.data)
        own[:1] = found[:1] = 0  # they must live until here
        if place >= 0:
            exchange(taken + 8 * place, np.int64(0))
        return 0

    return sketch


@cache
def _register() -> object:
    """Compile the handler, or load it from disk, and tell XLA; returns what must stay alive."""
    kernel, task, owner = task_of_one()
    scratch, taken = np.zeros((THREADS, SCRATCH_BYTES), np.uint8), np.zeros(THREADS, np.int64)
    environment, c = np.zeros(8, np.int64), ctypes.CDLL(None)
    c.fegetenv(environment.ctypes.data_as(ctypes.c_void_p))
    get, put = (
        ctypes.cast(function, ctypes.c_void_p).value for function in (c.fegetenv, c.fesetenv)
    )
    arrays = (task, scratch, taken)
    places = (*(array.ctypes.data for array in arrays), get, put, environment.ctypes.data)
    addresses = np.array([kernel, *places], np.int64)
    llvmlite.binding.add_symbol(_ADDRESSES, addresses.ctypes.data)
    signature = types.int64(types.CPointer(types.int64))
    with told_if_long(lambda: COMPILES):
        handler = kept(lambda **how: cfunc(signature, nopython=True, **how), _handler_from(SOURCES))
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler.ctypes), platform="cpu")
    return handler, owner, arrays, environment, addresses


def sketch_by_kernels(x: Any, piece: Piece | None) -> Any:
    """uint32 [WORDS]: the sketch of `x`, where 64-bit types are on and the code is for the CPU."""
    _register()
    items = jnp.asarray(_items_of(x.shape, piece.whole if piece else x.shape, x.dtype.name))
    if piece is not None:
        items = items.at[:, _ORIGIN].add(piece.origin())
    row = jax.ShapeDtypeStruct((WORDS,), jnp.uint32)
    made = jax.ffi.ffi_call(TARGET, row, vmap_method="broadcast_all")(x, items)
    return typed_as(made, x, items)


@cache
def agrees() -> bool:
    """Whether the kernels, as this release of XLA calls them, say what the reference says.

    If they do not, the log tells why: XLA's interface may have changed.
    """
    x = np.random.default_rng(0).integers(0, 1 << 32, 3 * BLOCK, np.uint32).view(np.float32)
    try:
        with ThreadPoolExecutor(1) as outside:  # of whatever is being traced here
            found = outside.submit(_sketch_at_once, x).result()
    except Exception as error:  # never into the training loop: XLA's own code does the work
        logger.warning("XLA cannot call the CPU kernels, and is slower without: %r", error)
        return False
    expected = sketch_array(x)
    same = all(
        np.array_equal(mine, theirs)
        for mine, theirs in zip(found.columns(), expected.columns(), strict=True)
        if mine.dtype != np.float64
    )
    if not same:
        logger.warning("The CPU kernels, called by XLA, are wrong; its own code is slower.")
    return same


def _sketch_at_once(x: NDArray[np.float32]) -> SketchTable:
    with jax.enable_x64(True):
        return table_of(sketch_by_kernels(jax.device_put(x, jax.local_devices()[0]), None))


@cache
def _items_of(shape: tuple[int, ...], whole: tuple[int, ...], name: str) -> NDArray[np.int64]:
    """int64 [n, ITEM]: of a piece at the beginning of its whole; addresses count from its own."""
    regions = regions_of(shape, [0] * len(shape), whole)
    return np.array(cut_into(0, math.prod(shape), DTYPES.index(name), regions=regions), np.int64)
