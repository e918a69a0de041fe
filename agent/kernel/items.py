"""The CPU kernels: sketches of a whole list of tensors in one call that holds no lock, with numba.

They agree with `sketch.reference` bit for bit in counts, extremes, histogram and checksum. Tensors
are given as addresses, so that no framework is needed here. Those of 8 bits go through the
histogram of their values (`values`); all others in chunks of 8192 elements, 16-bit ones widened to
float32 (`passes`, `moments`).

Never numba's parallel layer: it changes torch's thread count. Threads of the caller's may share a
call instead.
"""

# The kernels take numba's typed values; their Python annotations would say nothing.
# Numba hides `carray` from type checkers; an intrinsic's first parameter is numba's to give.
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false, reportUnusedExpression=false

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numba
import numpy as np
from llvmlite import binding
from numba import cfunc, njit
from numba.core import types
from numpy.typing import NDArray

from ...sketch.elements import BLOCK, WITHIN, Region
from ...sketch.exact_counts import FineExponents
from ...sketch.table import (
    ABS_MIN,
    BINS,
    COUNT,
    COUNTS,
    MAX,
    MIN,
    MOMENTS,
    NAN,
    NEG_INF,
    NEGATIVE,
    POS_INF,
    PROJECTION,
    SUBNORMAL,
    UNBINNED,
    ZERO,
    SketchTable,
)
from ..strides import CONTIGUOUS, Runs
from ..turns import Doing, made_once
from .compiling import LINE, SOURCES, address_of, compiled, kept, take_next
from .doubles import sketch_doubles
from .dtypes import FIRST_NORMAL, FLOAT16, FLOAT32, FLOAT64, SIZES, VALUES, WIDENED
from .exact_counts import count
from .glance import checksum_of_item, glance
from .keys import keys_of, signs_of
from .moments import chunk_moments, merge_moments
from .passes import (
    checksum_of,
    compress_finite,
    count_exponents,
    count_subnormals,
    exponents_within,
    load_words,
    scan,
    widen,
)
from .scratch import PIECE, SCRATCH_BYTES, scratch_at
from .strided import gather
from .values import WHICH, sketch_values

SKETCHED, GLANCED, COMPARED = 0, 1, 2
"""What is wanted of an item: all; what a sentinel sees; that and the checksum."""

ITEM = 11
"""Numbers of a work item, see `sketch_items`."""

SCRATCH, ITEMS, COLUMNS, TASK = 2, 4, 10, 14
"""Places of a task where addresses are filled in, and its length, see `_sketch_from`."""

SUBNORMALS = 23
"""Binades below float32's smallest normal number: bins 0 to 22 of the histogram."""

_COUNTS, _MOMENTS, _VALUES_LENGTH = len(COUNTS), len(MOMENTS), len(VALUES)

_MAX_KEY = np.int32(0x7F7FFFFF)
"""Order-preserving key of float32's largest number; that of its negative is `_MIN_KEY`."""
_MIN_KEY = np.int32(-0x7F800000)


TOLD_AFTER_S = 3.0
DOING: dict[Doing, str] = {
    "making": "rankscope compiles its kernels for the CPU, which takes a minute or so, once on "
    "this machine: numba keeps them (NUMBA_CACHE_DIR says where).",
    "waiting": "rankscope waits for another process that compiles its kernels for the CPU, which "
    "takes a minute or so, once on this machine.",
    "loading": "rankscope loads its kernels for the CPU, which takes long while this machine is "
    "busy; they were compiled before.",
}
"""What is told where it takes longer."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Team:
    """Threads of the caller's."""

    size: int
    """How many they are."""
    run: Callable[[int, int], object]
    """Runs the C function at an address with one pointer on all of them, and waits."""


@compiled
def _sketch_chunks(item, constants, scratch, counts, moments, histogram):
    """One work item into its row, chunk by chunk; returns the checksum."""
    address, start, length, code = item[0], item[1], item[2], item[3]
    within, within_signs, widened = constants
    words, wide, kept, kept_signs, table, exponents, chunk, word, scratch_keys, scratch_signs = (
        scratch
    )
    size = SIZES[code]
    table[:] = 0
    checksum = np.uint64(0)
    finite = 0
    for begin in range(start, start + length, BLOCK):
        n = min(BLOCK, start + length - begin)
        hashes, key, are_made = keys_of(item, begin, n, within, scratch_keys)
        signs = within_signs[:n]
        if are_made:
            signs_of(hashes, scratch_signs)
            signs = scratch_signs[:n]
        if code == FLOAT32:
            raw = bits = numba.carray(address_of(address + 4 * begin), (n,), np.uint32)
        else:
            raw, bits = words[:n], wide[:n]
            load_words(address, begin, n, code, words)
            widen(raw, code, widened, bits)
        checksum += checksum_of(raw, hashes, key)
        extremes, negative = scan(bits, exponents)
        m = n
        if extremes[0] < _MIN_KEY or extremes[1] > _MAX_KEY:
            m, nan, negative_infinity = compress_finite(bits, signs, kept, kept_signs)
            counts[NAN] += nan
            counts[NEG_INF] += negative_infinity
            counts[POS_INF] += n - m - nan - negative_infinity
            bits, signs = kept[:m], kept_signs[:m]
            extremes, negative = scan(bits, exponents)
        if m:
            counts[NEGATIVE] += negative
            low, high = exponents_within(extremes)
            if not low:
                count_subnormals(bits, histogram)
            count_exponents(exponents, m, low, high, table)
            ahead = address + size * (begin + BLOCK), size * LINE
            values = bits.view(np.float32)
            chunk_moments(values, signs, extremes, moments, finite, ahead, word, chunk)
            if key >> np.uint32(31):
                chunk[PROJECTION] = -chunk[PROJECTION]
            merge_moments(moments, finite, chunk, m)
        finite += m
    _fill_counts(length, finite, code, table, counts, histogram)
    return checksum


@compiled
def _clear(counts, moments, histogram):
    """Make a row the identity of the merge."""
    counts[:] = 0
    histogram[:] = 0
    moments[:] = 0.0
    moments[MIN] = moments[ABS_MIN] = np.inf
    moments[MAX] = -np.inf


@compiled
def _fill_counts(length, finite, code, table, counts, histogram):
    """Normal bins from the table of exponents, and the counts that follow from bins."""
    zero = finite
    for i in range(SUBNORMALS):
        zero -= histogram[i]
    for e in range(1, 255):
        histogram[SUBNORMALS + e - 1] = table[e]
        zero -= table[e]
    counts[COUNT], counts[ZERO] = length, zero
    for i in range(FIRST_NORMAL[code]):
        counts[SUBNORMAL] += histogram[i]


def _sketch_from(sources):
    """The C function of `sketch_items`; `sources` makes numba's cache on disk tell versions apart.

    Its pointer is that of int64 [TASK]: counters of items and of scratch, the address of the
    scratch, the number of items, their address, those of what never changes, and those of the
    columns of the table, which may hold anything. Threads that are given the same pointer share the
    work.
    """

    def sketch(pointer):
        sources  # noqa: B018  # in the closure: numba's cache has it in its key
        task = numba.carray(pointer, (TASK,))
        n = task[3]
        items = numba.carray(address_of(task[ITEMS]), (n, ITEM), np.int64)
        within = numba.carray(address_of(task[5]), (BLOCK,), np.uint32)
        signs = numba.carray(address_of(task[6]), (BLOCK,), np.float64)
        which = numba.carray(address_of(task[7]), (BLOCK,), np.uint32)
        values = numba.carray(address_of(task[8]), (_VALUES_LENGTH,), np.float64)
        widened = numba.carray(address_of(task[9]), (_VALUES_LENGTH,), np.uint32)
        counts = numba.carray(address_of(task[COLUMNS]), (n, _COUNTS), np.int64)
        moments = numba.carray(address_of(task[COLUMNS + 1]), (n, _MOMENTS), np.float64)
        checksum = numba.carray(address_of(task[COLUMNS + 2]), (n,), np.uint64)
        histogram = numba.carray(address_of(task[COLUMNS + 3]), (n, BINS), np.int64)
        counter = task.ctypes.data
        chunks, tables, place = scratch_at(task[SCRATCH] + SCRATCH_BYTES * take_next(counter + 8))
        for _ in range(n):
            i = take_next(counter)
            if i >= n:
                break
            item, row = items[i], (counts[i], moments[i], histogram[i])
            checksum[i] = 0
            _clear(*row)
            if item[5]:
                gather(item, place)
            if item[4]:
                glance(item, values, tables[2], chunks[7], counts[i], moments[i])
                if item[4] == COMPARED:
                    checksum[i] = checksum_of_item(item, within, chunks[0], chunks[8])
            elif item[3] == FLOAT64:
                checksum[i] = sketch_doubles(item, within, chunks[6], chunks[8], *row)
            elif item[3] > FLOAT16:
                checksum[i] = sketch_values(item, (within, which, values), tables, *row)
            else:
                checksum[i] = _sketch_chunks(item, (within, signs, widened), chunks, *row)

    return sketch


@cache
def _c_function():
    """What owns the C function, what Python calls, and where it lies.

    Compiled at its first use, or loaded from disk.
    """
    signature = types.void(types.CPointer(types.int64))
    function = kept(lambda **how: cfunc(signature, nopython=True, **how), _sketch_from(SOURCES))
    return function, function.ctypes, function.address


def _absorb_from(sources):
    """The function of `absorb`, see `_sketch_from`."""

    def absorb(rows, keep, leaf, table):
        sources  # noqa: B018  # in the closure: numba's cache has it in its key
        leaf_counts, leaf_moments, leaf_checksum, leaf_histogram = leaf
        counts, moments, checksum, histogram = table
        for i in range(rows.size):
            if keep[i]:
                r = rows[i]
                unite(
                    (counts[r], moments[r], checksum[r : r + 1], histogram[r]),
                    (leaf_counts[i], leaf_moments[i], leaf_checksum[i : i + 1], leaf_histogram[i]),
                )

    return absorb


@compiled
def unite(row, other):
    """Merge one sketch into another, each its counts, moments, checksum [1] and histogram."""
    counts, moments, checksum, histogram = row
    more, other_moments, other_checksum, other_histogram = other
    merge_moments(moments, _measured(counts), other_moments, _measured(more))
    for j in range(counts.size):
        counts[j] += more[j]
    checksum[0] += other_checksum[0]
    for j in range(histogram.size):
        histogram[j] += other_histogram[j]


@compiled
def _measured(counts):
    finite = counts[COUNT] - counts[NAN] - counts[POS_INF] - counts[NEG_INF]
    return finite - counts[UNBINNED]


_absorb = kept(partial(njit, nogil=True), _absorb_from(SOURCES))

_signs = np.where(WITHIN >> np.uint32(31), -1.0, 1.0)
"""Projection signs within a block; the top bit of the block's key turns all of them."""
_CONSTANTS = (WITHIN, _signs, WHICH, VALUES, WIDENED)
_PLACES = tuple(array.ctypes.data for array in _CONSTANTS)
"""Their addresses: to ask numpy for one takes longer than to sketch a bias."""
_Task = ctypes.c_int64 * TASK
_idle: list[tuple[NDArray[np.uint8], int]] = []
"""Scratch of calls that ended, and its address: what is kept in it is not cleared again."""


def sketch_items(items: NDArray[np.int64], team: Team | None = None) -> SketchTable:
    """Sketch tensors by their addresses, which must stay valid during the call.

    Args:
        items: int64 [n, ITEM]: address of the tensor's first element, index of the item's first
            element (a multiple of `PIECE`), number of elements, index into `DTYPES`, `SKETCHED`,
            `GLANCED` or `COMPARED`, the three numbers of `Runs`, and those of a `Region`.
        team: threads that share the work; the result is the same to the last bit.

    Returns:
        A table of n rows.
    """
    table = SketchTable.unset(len(items))
    if not len(items):
        return table
    scratch, place = _take_scratch(1 if team is None else team.size)
    tensors = items.copy()  # those of strided tensors are changed
    columns = (column.ctypes.data for column in table.columns())
    task = _Task(0, 0, place, len(items), tensors.ctypes.data, *_PLACES, *columns)
    _, function, address = _c_function()
    if team is None:
        function(task)
    else:
        team.run(address, ctypes.addressof(task))
    _idle.append((scratch, place))
    return table


def task_of_one() -> tuple[int, NDArray[np.int64], object]:
    """For compiled callers: the address of the C function, and its task of one item.

    Whoever copies the task fills in scratch, item and columns. The third owns the function.
    """
    owner, _, address = _c_function()
    return address, np.array([0, 0, 0, 1, 0, *_PLACES, 0, 0, 0, 0], np.int64), owner


def _take_scratch(threads: int) -> tuple[NDArray[np.uint8], int]:
    """uint8 [at least so many, SCRATCH_BYTES]: zero where it must be, and touched as it is used."""
    try:
        kept = _idle.pop()
        if len(kept[0]) >= threads:
            return kept
    except IndexError:
        pass
    scratch = np.zeros((threads, SCRATCH_BYTES), np.uint8)
    return scratch, scratch.ctypes.data


def absorb(
    table: SketchTable, rows: NDArray[np.int64], leaf: SketchTable, keep: NDArray[np.bool_]
) -> None:
    """`table.merge_at(rows[keep], leaf.take(keep))`, without its temporaries."""
    _absorb(rows, keep, leaf.columns(), table.columns())


def warm() -> None:
    """Compile the kernels, a minute long, or load them from the cache on disk in a second.

    Of the processes that share a cache one compiles them, and the others wait for it.
    """
    doing: list[Doing] = ["loading"]
    with told_if_long(lambda: DOING[doing[-1]]), made_once(_marker(), doing.append):
        _warm()


@contextmanager
def told_if_long(say: Callable[[], str]) -> Generator[None]:
    """Log what is done within, if it takes some seconds."""
    waits = threading.Timer(TOLD_AFTER_S, lambda: logger.warning(say()))
    waits.daemon = True
    waits.start()
    try:
        yield
    finally:
        waits.cancel()


def _marker() -> Path:
    """The file that says that the kernels lie in numba's cache, in their present version."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    stamps = [file.stat().st_mtime_ns for file in files]  # numba compiles anew where they differ
    machine = (binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())
    wanted = (os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES"))
    key = repr((SOURCES, stamps, sys.version, numba.__version__, machine, wanted)).encode()
    return Path(_absorb.stats.cache_path or os.devnull) / f"rankscope-{zlib.crc32(key):08x}"


def _warm() -> None:
    nothing = sketch_items(np.array(cut(0, 0, FLOAT32), np.int64))
    absorb(SketchTable.empty(1), np.zeros(1, np.int64), nothing, np.ones(1, np.bool_))
    count(FineExponents(), 0, (0,), FLOAT32)


def cut(
    address: int,
    elements: int,
    code: int,
    *,
    sentinel: bool = False,
    compared: bool = False,
    runs: Runs = CONTIGUOUS,
    region: Region | None = None,
) -> Sequence[tuple[int, ...]]:
    """The work items of one tensor; of none without elements there is one, too."""
    wanted = (COMPARED if compared else GLANCED) if sentinel else SKETCHED
    place = (0, 0, 0) if region is None else (region.origin, region.run, region.pitch)
    return [
        (address, start, min(PIECE, elements - start), code, wanted, *runs, *place)
        for start in range(0, max(elements, 1), PIECE)
    ]


def cut_into(
    address: int, elements: int, code: int, *, regions: Sequence[Region | None]
) -> Sequence[tuple[int, ...]]:
    """The work items of a tensor whose equal parts lie in a whole, see `strides.regions_of`."""
    part, items = elements // len(regions), list[tuple[int, ...]]()
    for number, region in enumerate(regions):
        items += cut(address + number * part * int(SIZES[code]), part, code, region=region)
    return items
