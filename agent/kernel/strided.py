"""Strided tensors: a piece at a time is copied together, into memory that stays in cache."""

# The kernels take numba's typed values; their Python annotations would say nothing.
# Numba hides `carray` from type checkers; an intrinsic's first parameter is numba's to give.
# pyright: basic, reportPrivateImportUsage=false, reportCallIssue=false

from __future__ import annotations

import numba
import numpy as np

from .compiling import address_of, compiled
from .dtypes import SIZES


@compiled
def gather(item, place):
    """Copy the elements of a work item together, and let the item have their address."""
    address, start, length, size = item[0], item[1], item[2], SIZES[item[3]]
    run, step, pitch = item[5], item[6], item[7]
    if length:
        last = start + length - 1
        extent = last // run * pitch + min(last, run - 1) * step + 1
        if size == 1:
            source = numba.carray(address_of(address), (extent,), np.uint8)
            target = numba.carray(address_of(place), (length,), np.uint8)
            _copy(source, target, start, run, step, pitch)
        elif size == 2:
            source = numba.carray(address_of(address), (extent,), np.uint16)
            target = numba.carray(address_of(place), (length,), np.uint16)
            _copy(source, target, start, run, step, pitch)
        elif size == 4:
            source = numba.carray(address_of(address), (extent,), np.uint32)
            target = numba.carray(address_of(place), (length,), np.uint32)
            _copy(source, target, start, run, step, pitch)
        else:
            source = numba.carray(address_of(address), (extent,), np.uint64)
            target = numba.carray(address_of(place), (length,), np.uint64)
            _copy(source, target, start, run, step, pitch)
    item[0] = place - start * size


@compiled
def _copy(source, target, start, run, step, pitch):
    row, column, i = start // run, start % run, 0
    while i < target.size:
        n, first = min(run - column, target.size - i), row * pitch + column * step
        # Indices that begin at zero: numba looks at every other one, whether it is negative.
        here, there = source[first : first + (n - 1) * step + 1], target[i : i + n]
        if step == 1:
            for j in range(n):
                there[j] = here[j]
        else:
            for j in range(n):
                there[j] = here[j * step]
        row, column, i = row + 1, 0, i + n
