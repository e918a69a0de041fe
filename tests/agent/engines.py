"""The engines of devices, as they run here: on a GPU, or without one on the CPU."""

from __future__ import annotations

import torch

from rankscope.agent.torch.cuda import CudaKernels
from rankscope.agent.torch.fused import Fused
from rankscope.agent.torch.triton import TritonKernels

from .cuda_on_cpu import module


def in_triton(device: torch.device, *, leaves: int = 4096, leaves_of_tensor: int = 512) -> Fused:
    """The kernels in Triton: interpreted where there is no GPU."""
    kernels = TritonKernels(device, leaves_of_tensor=leaves_of_tensor)
    return Fused(device, lambda _: kernels, leaves=leaves)


def in_cuda(device: torch.device, *, leaves: int = 4096, leaves_of_tensor: int = 512) -> Fused:
    """The kernels in CUDA C: compiled by g++ where there is no GPU."""
    if device.type == "cuda":
        from rankscope.agent.torch.cuda.nvrtc import Module

        kernels = CudaKernels(device, Module(device), at_once=lambda _: leaves_of_tensor)
    else:
        kernels = CudaKernels(device, module(), at_once=lambda _: leaves_of_tensor)
    return Fused(device, lambda _: kernels, leaves=leaves)


FUSED = [in_triton, in_cuda]
