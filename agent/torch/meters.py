"""Which meter reads the tensors of a device."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib.util import find_spec

import torch

from ..sitebook import SiteBook
from .device import DeviceMeter
from .recorder import Meter

logger = logging.getLogger(__name__)

Submit = Callable[[Callable[[], object]], None]


def meter_maker(
    book: SiteBook, submit: Submit, local_world_size: int
) -> Callable[[torch.device], Meter]:
    """A function from device to meter: for the CPU the numba kernel where installed, else torch.

    The kernel runs on the agent's thread where torch leaves a core free, else in the training
    thread with as many threads as torch uses: a thread that competes with torch's own costs more.
    """
    cores = len(os.sched_getaffinity(0))
    threads = torch.get_num_threads()
    spare = cores > threads * local_world_size

    def make(device: torch.device) -> Meter:
        if device.type != "cpu":
            return DeviceMeter(device)
        if find_spec("numba") is None:
            logger.warning(
                "numba is not installed, tensors are read 4 times slower: pip install numba"
            )
            return DeviceMeter(device)
        from .cpu import CpuMeter

        return CpuMeter(
            book, threads=1 if spare else min(threads, cores), submit=submit if spare else None
        )

    return make
