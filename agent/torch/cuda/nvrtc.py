"""CUDA C on an NVIDIA GPU: compiled by NVRTC, kept on disk, and launched by the driver.

`cuda-bindings` and NVRTC come with torch's builds for CUDA.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

# Compiled, and without types.
from cuda.bindings import driver, nvrtc  # pyright: ignore[reportAttributeAccessIssue]

from .launch import BLOCKS_AT_ONCE, THREADS, CudaKernels, source

logger = logging.getLogger(__name__)

# The sums of floating-point numbers are as they are written: on every GPU the same.
OPTIONS = ("--std=c++17", "--fmad=false")

HALF_TO_FLOAT = """
__device__ __forceinline__ float half_to_float(unsigned short bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
"""


class Module:
    """The kernels of one GPU: `launch.Module`.

    Raises:
        RuntimeError: NVRTC or the driver refuses, with their reason.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = torch.empty(0, device=device).device  # with its number
        code = kept(target_of(self._device))
        number = _checked(driver.cuDeviceGet(self._device.index))
        self._context = _checked(driver.cuDevicePrimaryCtxRetain(number))
        with self._current():
            self._module = _checked(driver.cuModuleLoadData(code))
        self._functions: dict[str, Any] = {}

    def launch(self, name: str, blocks: int, arguments: ctypes.Structure) -> None:
        """Queue a kernel on the current stream of the device."""
        if (function := self._functions.get(name)) is None:
            function = _checked(driver.cuModuleGetFunction(self._module, name.encode()))
            self._functions[name] = function
        addresses = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        stream = torch.cuda.current_stream(self._device).cuda_stream
        with self._current():
            _checked(
                driver.cuLaunchKernel(
                    function, blocks, 1, 1, THREADS, 1, 1, 0, stream, ctypes.addressof(addresses), 0
                )
            )

    @contextmanager
    def _current(self) -> Generator[None]:
        """Make the device's context that of this thread, which may not have used CUDA before."""
        with torch.cuda.device(self._device):
            _checked(driver.cuCtxSetCurrent(self._context))
            yield


def cuda_kernels(device: torch.device) -> CudaKernels:
    """The kernels in CUDA C of an NVIDIA GPU.

    Raises:
        RuntimeError: they do not compile, or cannot be loaded.
    """
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return CudaKernels(device, Module(device), leaves_of_tensor=BLOCKS_AT_ONCE * processors)


def compiled(target: str) -> bytes:
    """The kernels for a target such as `sm_90`, as code of the GPU, or `compute_90`, as PTX.

    Raises:
        RuntimeError: they do not compile; with what NVRTC says.
    """
    text = (HALF_TO_FLOAT + source()).encode()
    program = _checked(nvrtc.nvrtcCreateProgram(text, b"kernels.cu", 0, [], []))
    options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={target}")]
    [failure] = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if failure:
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"NVRTC cannot compile the kernels: {log.decode(errors='replace')}")
    if target.startswith("compute"):
        code = b" " * _checked(nvrtc.nvrtcGetPTXSize(program))
        nvrtc.nvrtcGetPTX(program, code)
    else:
        code = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
        nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(program)
    return code


def kept(target: str) -> bytes:
    """`compiled`, once for all processes of a user: it takes seconds.

    Kept in `rankscope` of the user's cache folder, which `XDG_CACHE_HOME` names.
    """
    what = "\n".join([HALF_TO_FLOAT + source(), *OPTIONS, target, str(nvrtc.nvrtcVersion())])
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankscope"
    file = folder / f"kernels-{target}-{hashlib.sha256(what.encode()).hexdigest()[:16]}"
    try:
        return file.read_bytes()
    except OSError:
        code = compiled(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as whole:
            whole.write(code)
        Path(whole.name).replace(file)
    except OSError:  # a home that cannot be written, or a full disk: compiled each time
        logger.info("The kernels cannot be kept in %s, and are compiled in each process", folder)
    return code


def target_of(device: torch.device) -> str:
    """What to compile for: a GPU that is newer than NVRTC gets PTX, which its driver compiles.

    Raises:
        RuntimeError: NVRTC has left the GPU behind.
    """
    major, minor = torch.cuda.get_device_capability(device)
    known: Sequence[int] = _checked(nvrtc.nvrtcGetSupportedArchs())
    own = 10 * major + minor
    older = [architecture for architecture in known if architecture <= own]
    if not older:
        raise RuntimeError(f"this NVRTC compiles for sm_{min(known)} and newer, not for sm_{own}")
    return f"sm_{own}" if own in known else f"compute_{max(older)}"


def _checked(answer: tuple[Any, ...]) -> Any:
    """What a call of `cuda-bindings` returned, without its status.

    Raises:
        RuntimeError: the status is no success.
    """
    status, *rest = answer
    if status:
        raise RuntimeError(f"{type(status).__name__}: {status.name}")
    return rest[0] if len(rest) == 1 else rest
