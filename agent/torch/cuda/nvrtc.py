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

from ..device import numbered, raw_stream
from .launch import COUNTED, CudaKernels, magnitudes_in, names, shape_of, shared_of, source

logger = logging.getLogger(__name__)

# The sums of floating-point numbers are as they are written: on every GPU the same.
OPTIONS = ("--std=c++17", "--fmad=false")

CHECKSUM_BYTES = 32
"""Of SHA-256."""

IN_PTX = """
__device__ __forceinline__ float half_to_float(unsigned short bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
// Adds 1 to one of counters in shared memory. In C++ this takes two instructions more.
using Counter = unsigned int;
__device__ __forceinline__ Counter counter_at(unsigned int* counter) {
  return (unsigned int)__cvta_generic_to_shared(counter);
}
__device__ __forceinline__ void count(Counter first, unsigned int place) {
  asm volatile("{.reg .u32 at; mad.lo.u32 at, %1, 4, %0; red.shared.add.u32 [at], 1;}"
               :: "r"(first), "r"(place) : "memory");
}
// Of a launch that asks for them.
extern __shared__ __align__(16) unsigned int value_counters[];
"""


class Module:
    """The kernels of one GPU: `launch.Module`.

    Raises:
        RuntimeError: NVRTC or the driver refuses, with their reason.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = numbered(device)
        target = target_of(self._device)
        number = _checked(driver.cuDeviceGet(self._device.index))
        self._context = _checked(driver.cuDevicePrimaryCtxRetain(number))
        with self._current():
            self._module = _checked(driver.cuModuleLoadData(kept(target)))
            # All at once: a driver that loads them when they are asked for may wait for the device.
            self._functions = {
                name: _checked(driver.cuModuleGetFunction(self._module, name.encode()))
                for name in names()
            }
            self.magnitudes = self._allow_counting(number)
            self._at_once = {name: self._of_multiprocessor(name) for name in self._functions}
        self._processors = torch.cuda.get_device_properties(self._device).multi_processor_count

    def blocks_at_once(self, name: str) -> int:
        """Blocks of a kernel that the GPU works at together."""
        return self._at_once[name] * self._processors

    def _of_multiprocessor(self, name: str) -> int:
        shared, threads = shared_of(name, self.magnitudes), shape_of(name).threads
        occupancy = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
        return _checked(occupancy(self._functions[name], threads, shared))

    def _allow_counting(self, device: Any) -> int:
        """Let kernels have shared memory for as many counters as there is room for; the number."""
        functions = driver.CUfunction_attribute
        room = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        own = functions.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        taken = max(
            _checked(driver.cuFuncGetAttribute(own, self._functions[name])) for name in COUNTED
        )
        magnitudes = magnitudes_in(_checked(driver.cuDeviceGetAttribute(room, device)) - taken)
        for name in COUNTED:
            allowed = functions.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            asked = shared_of(name, magnitudes)
            _checked(driver.cuFuncSetAttribute(self._functions[name], allowed, asked))
        return magnitudes

    def launch(self, name: str, blocks: int, arguments: ctypes.Structure, shared: int = 0) -> None:
        """Queue a kernel, with so many bytes of shared memory, on the device's current stream."""
        if int(_checked(driver.cuCtxGetCurrent())) == int(self._context):
            self._queue(name, blocks, arguments, shared)
        else:
            with self._current():
                self._queue(name, blocks, arguments, shared)

    def _queue(self, name: str, blocks: int, arguments: ctypes.Structure, shared: int) -> None:
        addresses = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        # torch's default stream is the legacy one, whatever `cuda-bindings` takes 0 for.
        stream = raw_stream(self._device)
        _checked(
            driver.cuLaunchKernel(
                self._functions[name],
                *(blocks, 1, 1),
                *(shape_of(name).threads, 1, 1),
                shared,
                stream or driver.CU_STREAM_LEGACY,
                ctypes.addressof(addresses),
                0,
            )
        )

    @contextmanager
    def _current(self) -> Generator[None]:
        """Make the device's context that of this thread, which may not have used CUDA before."""
        _checked(driver.cuCtxPushCurrent(self._context))
        try:
            yield
        finally:
            driver.cuCtxPopCurrent()


def cuda_kernels(device: torch.device) -> CudaKernels:
    """The kernels in CUDA C of an NVIDIA GPU.

    Raises:
        RuntimeError: they do not compile, or cannot be loaded.
    """
    module = Module(device)
    return CudaKernels(device, module, at_once=module.blocks_at_once)


def compiled(target: str) -> bytes:
    """The kernels for a target such as `sm_90`, as code of the GPU, or `compute_90`, as PTX.

    Raises:
        RuntimeError: they do not compile; with what NVRTC says.
    """
    text = (IN_PTX + source()).encode()
    program = _checked(nvrtc.nvrtcCreateProgram(text, b"kernels.cu", 0, [], []))
    options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={target}")]
    [failure] = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if failure:
        log = b" " * (1 + _checked(nvrtc.nvrtcGetProgramLogSize(program)))  # Python shares b" "
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
    what = "\n".join([IN_PTX + source(), *OPTIONS, target, str(nvrtc.nvrtcVersion())])
    name = f"kernels-{target}-{hashlib.sha256(what.encode()).hexdigest()[:16]}"
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankscope"
    except RuntimeError:  # the user has no home
        return compiled(target)
    code = _read(folder / name)
    if code is None:
        code = compiled(target)
        _write(folder / name, code)
    return code


def _read(file: Path) -> bytes | None:
    """What `_write` wrote; None where a machine that went down left less."""
    try:
        whole = file.read_bytes()
    except OSError:
        return None
    checksum, code = whole[:CHECKSUM_BYTES], whole[CHECKSUM_BYTES:]
    return code if hashlib.sha256(code).digest() == checksum else None


def _write(file: Path, code: bytes) -> None:
    """Put code behind its checksum, as one step for those who read it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            whole = Path(folder) / file.name
            whole.write_bytes(hashlib.sha256(code).digest() + code)
            whole.replace(file)
    except OSError as error:  # a home that cannot be written, a full disk
        logger.info("The kernels cannot be kept, and are compiled in each process: %s", error)


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
