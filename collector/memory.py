"""Keeping the collector's memory flat.

Blocks of many sizes come and go in many threads. Left alone, glibc gives each thread a heap of its
own and returns little: after thousands of commits the process holds twice what it needs.
"""

from __future__ import annotations

import ctypes
import sys

_M_ARENA_MAX = -8  # from malloc.h


def _glibc_or_none() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") else None


_glibc = _glibc_or_none()


def use_one_heap() -> None:
    """Let all threads share one heap; to be called before there are any."""
    if _glibc is not None:
        _glibc.mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Return all free pages of the heap to the system, in about 10 ms."""
    if _glibc is not None:
        _glibc.malloc_trim(0)
