"""Which meter reads the tensors of a device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec

import torch

from ..sitebook import SiteBook
from .device import DeviceMeter
from .recorder import Meter

logger = logging.getLogger(__name__)

Submit = Callable[[Callable[[], object]], None]


def meter_maker(book: SiteBook, submit: Submit) -> Callable[[torch.device], Meter]:
    """A function from device to meter: for the CPU the numba kernel where installed, else torch."""

    def make(device: torch.device) -> Meter:
        if device.type != "cpu":
            return DeviceMeter(device)
        if find_spec("numba") is None:
            logger.warning(
                "numba is not installed, tensors are read some 20 times slower: pip install numba"
            )
            return DeviceMeter(device)
        from ..kernel import warm
        from .cpu import CpuMeter

        warm()
        return CpuMeter(book, submit)

    return make
