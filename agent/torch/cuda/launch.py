"""The kernels in CUDA C: what they are told, and how they are launched."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from ....sketch.elements import BLOCK, WITHIN
from ....sketch.formats import normal_bin
from ....sketch.table import BINS, COUNTS, FIRST_EXPONENT, MOMENTS
from ...reading import Reading
from ..arithmetic import Columns
from ..fused import Chunks, byte_values
from ..local import READABLE, dtype_name
from ..tables import FAN, RUN, WORK


@dataclass(frozen=True, slots=True)
class Shape:
    """How kernels share a multiprocessor, and the files of CUDA C that they are made of."""

    threads: int
    """Of a block."""
    blocks: int
    """That a multiprocessor is to hold: each thread has so many registers fewer."""
    files: tuple[str, ...]
    """Each after those that it needs."""


OF_ALL = ("elements", "numbers", "values", "sketch")
PLAIN = Shape(256, 3, (*OF_ALL, "bytes", "glances", "merge", "kernels"))
"""Of most kernels: a thread for each value of a byte."""
COUNTING = Shape(512, 1, (*OF_ALL, "counting"))
"""Of those that count magnitudes: one block has all of a multiprocessor's shared memory."""

OF_THEIR_OWN = ("float64", "float32", "bfloat16", "float16")
"""The dtypes that have kernels of their own; others are read as bytes."""

BINADE = 128
"""Magnitudes of bfloat16 from one power of two to the next."""
MOST_MAGNITUDES = 64 * BINADE
"""That a block counts apart: more would take longer to clear and to add up, and few tensors have
elements outside. The place of a counter has 16 bits."""
FEWEST_MAGNITUDES = 16 * BINADE
"""With fewer too many elements lie outside."""
COUNTERS = 16
"""Bytes of the counters of a magnitude, four of them."""
COUNTED = ("sketch_bfloat16", "sketch_piece_bfloat16")
"""The kernels that count magnitudes."""


Alike = tuple[torch.dtype, bool, bool, bool]
"""See `alike_of`."""


class Job(ctypes.Structure):
    """`Job` of elements.cu: chunks to read, and leaves to write. Addresses are of the device.

    Without a table of work, block b reads the b-th `size` elements of the tensor at `address`,
    which has `length`, into leaf `leaf` + b; `origin`, `run` and `pitch` are its
    `sketch.elements.Region`. A block counts so many `magnitudes` of bfloat16 apart.
    """

    _fields_ = (
        ("work", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("length", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("leaf", ctypes.c_int64),
        ("origin", ctypes.c_int64),
        ("run", ctypes.c_int64),
        ("pitch", ctypes.c_int64),
        ("within", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
        ("leaves", ctypes.c_uint64 * 4),
        ("first_normal", ctypes.c_int64),
        ("magnitudes", ctypes.c_int64),
    )


class Merge(ctypes.Structure):
    """`Merge` of merge.cu: runs of leaves, and the rows into which each is merged."""

    _fields_ = (
        ("runs", ctypes.c_uint64),
        ("leaves", ctypes.c_uint64 * 4),
        ("into", ctypes.c_uint64 * 4),
    )


class Module(Protocol):
    """Compiled kernels of one device."""

    @property
    def magnitudes(self) -> int: ...
    def launch(
        self, name: str, blocks: int, arguments: ctypes.Structure, shared: int = 0
    ) -> None: ...


def magnitudes_in(shared: int) -> int:
    """How many magnitudes of bfloat16 a block counts apart that may use so much shared memory."""
    whole = (shared // COUNTERS - 1) // BINADE * BINADE
    return min(whole, MOST_MAGNITUDES) if whole >= FEWEST_MAGNITUDES else 0


def shape_of(name: str) -> Shape:
    """That of a kernel."""
    return COUNTING if name in COUNTED else PLAIN


def shared_of(name: str, magnitudes: int) -> int:
    """Bytes of shared memory that a block of a kernel has for those counters, and for zeros."""
    is_counted = name in COUNTED and magnitudes > 0
    return COUNTERS * (magnitudes + 1) if is_counted else 0


class CudaKernels:
    """`fused.Kernels` in CUDA C.

    Args:
        device: where the tensors are.
        module: the kernels, compiled from `source` for that device.
        at_once: blocks of a kernel that the device works at together. A tensor has as many leaves:
            then all end at the same time.
    """

    def __init__(
        self, device: torch.device, module: Module, *, at_once: Callable[[str], int]
    ) -> None:
        self._module = module
        self._at_once = at_once
        self._leaves_of: dict[Alike, int] = {}
        within = torch.from_numpy((WITHIN | np.uint32(1)).view("i4"))
        self._within = within.to(device)
        self._values = {dtype: byte_values(dtype).to(device) for dtype in READABLE}
        self._leaves: Columns | None = None
        self._jobs: dict[Alike, tuple[str, Job, int]] = {}
        """What is the same for all tensors of a dtype that are read alike."""

    def leaves_of(self, dtype: torch.dtype, how: Reading) -> int:
        """How many chunks a tensor of a dtype may have that is read so."""
        alike = alike_of(dtype, how)
        known = self._leaves_of.get(alike)
        if known is None:  # each tensor asks
            known = self._leaves_of[alike] = self._at_once(kernel_of(dtype, how))
        return known

    def read(self, chunks: Chunks, leaves: Columns) -> None:
        """Queue the sketches of some chunks."""
        tensor, how = chunks.tensor, chunks.how
        if self._leaves is not leaves:
            self._leaves, self._jobs = leaves, {}
        alike = alike_of(tensor.dtype, how)
        known = self._jobs.get(alike)
        if known is None:
            known = self._jobs[alike] = self._job(tensor.dtype, how, leaves)
        name, job, shared = known  # a launch takes a copy
        job.work = 0 if chunks.work is None else chunks.work.data_ptr()
        job.address, job.length = tensor.data_ptr(), tensor.numel()
        job.size, job.leaf = chunks.size, chunks.first_leaf
        job.origin, job.run, job.pitch = chunks.region
        self._module.launch(name, chunks.number, job, shared)

    def _job(self, dtype: torch.dtype, how: Reading, leaves: Columns) -> tuple[str, Job, int]:
        """The kernel that reads tensors of a dtype, what it is told of all, and shared memory."""
        kernel, magnitudes = kernel_of(dtype, how), self._module.magnitudes
        job = Job(
            within=self._within.data_ptr(),
            values=self._values[dtype].data_ptr(),
            leaves=_addresses(leaves),
            first_normal=normal_bin(dtype_name(dtype)),
            magnitudes=magnitudes,
        )
        return kernel, job, shared_of(kernel, magnitudes)

    def merge(self, runs: torch.Tensor, leaves: Columns, into: Columns) -> None:
        """Queue the merge of runs of leaves into rows."""
        job = Merge(runs.data_ptr(), _addresses(leaves), _addresses(into))
        self._module.launch("merge_leaves", len(runs), job)


def alike_of(dtype: torch.dtype, how: Reading) -> Alike:
    """What tensors have in common that one kernel reads."""
    return dtype, how.sentinel, how.compared, how.region is None


def kernel_of(dtype: torch.dtype, how: Reading) -> str:
    """The kernel that reads tensors of a dtype so."""
    way = "sketch" if not how.sentinel else "compare" if how.compared else "glance"
    piece = "_piece" if how.region is not None and way != "glance" else ""
    name = dtype_name(dtype)
    return f"{way}{piece}_{name if name in OF_THEIR_OWN else 'bytes'}"


def names() -> list[str]:
    """The names of all kernels."""
    ways = ("sketch", "sketch_piece", "glance", "compare", "compare_piece")
    return [f"{way}_{kind}" for way in ways for kind in (*OF_THEIR_OWN, "bytes")] + ["merge_leaves"]


def source() -> str:
    """The CUDA C of all kernels, with the constants that they share with Python ahead of it.

    The kernels of each shape are in a namespace of their own, `threads_256` for one.
    """
    numbers = {f"C_{name.upper()}": i for i, name in enumerate(COUNTS)}
    numbers |= {f"M_{name.upper()}": i for i, name in enumerate(MOMENTS)}
    numbers |= {"N_COUNTS": len(COUNTS), "N_MOMENTS": len(MOMENTS), "BINS": BINS}
    numbers |= {"FIRST_EXPONENT": FIRST_EXPONENT, "BLOCK": BLOCK, "BINADE": BINADE}
    numbers |= {"WORK": WORK, "RUN": RUN, "FAN": FAN}
    constants = "".join(f"constexpr int {name} = {number};\n" for name, number in numbers.items())
    return "\n".join([constants, *map(_source_of, (PLAIN, COUNTING))])


def _source_of(shape: Shape) -> str:
    texts = [Path(__file__).with_name(f"{name}.cu").read_text() for name in shape.files]
    begin = (
        f"namespace threads_{shape.threads} {{\n"
        f"constexpr int THREADS = {shape.threads}, BLOCKS_AT_ONCE = {shape.blocks};\n"
    )
    return "\n".join([begin, *texts, "}"])


def _addresses(columns: Columns) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * 4)(*[column.data_ptr() for column in columns])
