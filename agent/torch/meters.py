"""Which meter reads the tensors of a device."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib.util import find_spec

import torch

from ..interruption import error_of_a_signal
from ..sitebook import SiteBook
from ..warming import warm
from .arithmetic import Plain
from .device import DeviceMeter, Engine
from .fused import Fused, Kernels
from .recorder import Meter
from .trial import differences

logger = logging.getLogger(__name__)

Submit = Callable[[Callable[[], object]], None]


def meter_maker(book: SiteBook, submit: Submit) -> Callable[[torch.device], Meter]:
    """A function from device to meter: for the CPU the numba kernel where installed, else torch."""

    def make(device: torch.device) -> Meter:
        if device.type != "cpu":
            submit(leave_captures_alone)
            return DeviceMeter(device, engine_for(device))
        if find_spec("numba") is None:
            logger.warning(
                "numba is not installed, tensors are read some 20 times slower: pip install numba"
            )
            return DeviceMeter(device, Plain(device))
        try:
            warm()
            from .cpu import CpuMeter  # it imports numba
        except Exception as error:  # of another NumPy's, or told to compile nothing
            meant_for_training = error_of_a_signal(error)
            if meant_for_training is not None:
                raise meant_for_training from None
            logger.warning("numba cannot be used, tensors are read some 20 times slower: %s", error)
            return DeviceMeter(device, Plain(device))
        return CpuMeter(book, submit)

    return make


def leave_captures_alone() -> None:
    """Let what this thread asks of NVIDIA's GPUs end no capture of a CUDA graph elsewhere."""
    try:
        # Compiled, and without types.
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]

        driver.cuThreadExchangeStreamCaptureMode(
            driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        )
    except Exception as error:  # not NVIDIA's, or a driver that is not found
        logger.info("Captures of CUDA graphs may meet the agent's thread: %s", error)


def engine_for(device: torch.device) -> Engine:
    """The first kernels that run and agree with plain torch on this very device; else plain torch.

    CUDA C on NVIDIA's GPUs, then Triton.
    """
    plain = Plain(device)
    if device.type != "cuda":  # so does ROCm call itself
        return plain
    for name, make in KERNELS.items():
        reason = ""
        try:
            engine = Fused(device, make)
            if not (wrong := differences(device, engine, plain)):
                return engine
            reason = f"they differ from plain torch in {', '.join(wrong)}"
        except NotHereError as error:
            logger.info("There are no kernels in %s for %s: %s", name, device, error)
            continue
        except Exception as error:  # whatever a compiler raises: others may work
            reason = f"{type(error).__name__}: {error}"
        logger.warning("The kernels in %s are not used on %s: %s", name, device, reason)
    logger.warning("No kernels run on %s, and tensors are read with many more launches", device)
    return plain


class NotHereError(Exception):
    """What compiles or launches kernels is not installed, or is for other devices."""


def _cuda_kernels(device: torch.device) -> Kernels:
    if torch.version.hip is not None:
        raise NotHereError("it is not NVIDIA's")
    try:
        from .cuda.nvrtc import cuda_kernels
    except ImportError as error:
        raise NotHereError(str(error)) from None
    return cuda_kernels(device)


def _triton_kernels(device: torch.device) -> Kernels:
    # Triton's interpreter would read the device's memory on the host.
    if find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1":
        raise NotHereError("Triton is not installed, or interprets")
    from .triton import TritonKernels

    return TritonKernels(device)


KERNELS = {"CUDA C": _cuda_kernels, "Triton": _triton_kernels}
