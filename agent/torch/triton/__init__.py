"""The kernels in Triton, for GPUs on which those in CUDA C cannot run."""

from .launch import TritonKernels

__all__ = ["TritonKernels"]
