"""The kernels in CUDA C, for NVIDIA's GPUs; `nvrtc` compiles them, and needs `cuda-bindings`."""

from .launch import CudaKernels, Job, Merge, Module, source

__all__ = ["CudaKernels", "Job", "Merge", "Module", "source"]
