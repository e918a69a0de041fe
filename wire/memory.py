"""Keeping the memory of a process that serves many flat.

Blocks of many sizes come and go in many threads. Left alone, glibc gives each thread a heap of its
own and returns little: after thousands of commits the process holds twice what it needs.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

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


def resident_bytes() -> int:
    """What the process takes of the machine's memory; 0 where the system does not say so."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def raise_file_limit() -> None:
    """Let the process open as many files as it may: each connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
