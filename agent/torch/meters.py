"""Which meter reads the tensors of a device."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib.util import find_spec

import torch

from ..sitebook import SiteBook
from .arithmetic import Plain
from .device import DeviceMeter, Engine
from .recorder import Meter

logger = logging.getLogger(__name__)

Submit = Callable[[Callable[[], object]], None]


def meter_maker(book: SiteBook, submit: Submit) -> Callable[[torch.device], Meter]:
    """A function from device to meter: for the CPU the numba kernel where installed, else torch."""

    def make(device: torch.device) -> Meter:
        if device.type != "cpu":
            return DeviceMeter(device, engine_for(device))
        if find_spec("numba") is None:
            logger.warning(
                "numba is not installed, tensors are read some 20 times slower: pip install numba"
            )
            return DeviceMeter(device, Plain(device))
        from ..kernel import warm
        from .cpu import CpuMeter

        warm()
        return CpuMeter(book, submit)

    return make


def engine_for(device: torch.device) -> Engine:
    """The Triton kernels where they run and agree with plain torch on this very device."""
    # ROCm calls itself cuda, too. Triton's interpreter would read the device's memory on the host.
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" or find_spec("triton") is None or interpreted:
        return Plain(device)
    try:
        from .fused import Fused
        from .trial import differences

        engine = Fused(device)
        wrong = differences(device, engine, Plain(device))
        if not wrong:
            return engine
        reason = f"they differ from plain torch in {', '.join(wrong)}"
    except Exception as error:  # whatever a compiler raises: the other engine works everywhere
        reason = f"{type(error).__name__}: {error}"
    logger.warning(
        "The Triton kernels are not used on %s, and tensors are read with many more launches: %s",
        device,
        reason,
    )
    return Plain(device)
