"""Torch's own threads: where they leave no core free, they read tensors on the CPU, too.

A thread of ours would take turns with them, and what it takes from one of them all others wait for.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from ..kernel import Team
from .identity import ranks_on_this_host

SMT = Path("/sys/devices/system/cpu/smt/active")
"""Linux tells here whether a core has two hardware threads."""


def team() -> Team | None:
    """The threads of torch's operations, or None where they leave a core free, or are not known.

    Only on the thread that trains: elsewhere OpenMP would start as many threads again. Torch's
    number of threads stays as it is.
    """
    threads = torch.get_num_threads()
    if threads == 1 or threads < _cores():
        return None
    parallel = _openmp_parallel()
    if parallel is None:
        return None
    return Team(threads, lambda function, data: parallel(function, data, threads, 0))


@cache
def _cores() -> int:
    """Cores that this process may use: its share where it is one of several ranks on this host."""
    usable = getattr(os, "sched_getaffinity", None)
    logical = len(usable(0)) if usable else os.cpu_count() or 1
    shared = SMT.exists() and SMT.read_text().strip() == "1"
    return max((logical // 2 if shared else logical) // max(ranks_on_this_host(), 1), 1)


@cache
def _openmp_parallel() -> Callable[[int, int, int, int], None] | None:
    """How compiled code enters a parallel region of the OpenMP runtime that torch has loaded.

    `GOMP_parallel(function, data, threads, flags)`, of GNU's runtime and of LLVM's; tried on Linux.
    """
    if sys.platform != "linux" or not torch.backends.openmp.is_available():
        return None
    parallel = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    if parallel is not None:
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
    return parallel
