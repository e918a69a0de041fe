"""The kernels in CUDA C, compiled by g++ for a machine without a GPU: see cuda_on_cpu.h."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from rankscope.agent.torch.cuda import Job, source
from rankscope.agent.torch.cuda.launch import MOST_MAGNITUDES, shape_of

LAUNCHERS = """
using threads_256::Job, threads_256::Merge;
extern "C" void launch_job(void (*kernel)(const Job), int blocks, int threads, const Job* job) {
  launch(kernel, blocks, threads, job);
}
extern "C" void launch_merge(void (*kernel)(const Merge), int blocks, int threads,
                             const Merge* job) {
  launch(kernel, blocks, threads, job);
}
"""
OPTIONS = ("-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-x", "c++", "-")


class OnCpu:
    """`cuda.launch.Module` of the CPU."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    magnitudes = MOST_MAGNITUDES

    def launch(self, name: str, blocks: int, arguments: ctypes.Structure, shared: int = 0) -> None:
        """Run a kernel to its end."""
        library = self._library
        launch = library.launch_job if isinstance(arguments, Job) else library.launch_merge
        kernel = ctypes.cast(getattr(library, name), ctypes.c_void_p)
        launch(kernel, blocks, shape_of(name).threads, ctypes.byref(arguments))


@cache
def module() -> OnCpu:
    """The kernels, compiled once a process; without g++ the test is skipped."""
    if shutil.which("g++") is None and "CI" not in os.environ:
        pytest.skip("there is no g++ here")
    constants, newline, kernels = source().partition("\nnamespace")
    header = f'#include "{Path(__file__).with_name("cuda_on_cpu.h")}"\n'
    code = constants + "\n" + header + newline + kernels + LAUNCHERS
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        subprocess.run(["g++", *OPTIONS, "-o", library], input=code, text=True, check=True)
        return OnCpu(ctypes.CDLL(str(library)))
