"""Tensors as samples and features: which axis the channels are, and rows in chunks of float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch

CHUNK = 1 << 20
"""Elements that are cast to float64 at once: 8 MiB."""

_CONVOLUTIONS: dict[type[torch.nn.Module], int] = {
    torch.nn.Conv1d: 1,
    torch.nn.Conv2d: 2,
    torch.nn.Conv3d: 3,
    torch.nn.ConvTranspose1d: 1,
    torch.nn.ConvTranspose2d: 2,
    torch.nn.ConvTranspose3d: 3,
}
"""Classes whose channels come before so many axes of positions."""
_CHANNELS_SECOND = (
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm,
    torch.nn.GroupNorm,
    torch.nn.InstanceNorm1d,
    torch.nn.InstanceNorm2d,
    torch.nn.InstanceNorm3d,
)


def channel_axis(module: torch.nn.Module, tensor: torch.Tensor) -> int:
    """Which axis of what a module takes or returns are its channels: of most the last."""
    for convolution, positions in _CONVOLUTIONS.items():
        if isinstance(module, convolution):
            return tensor.dim() - positions - 1
    if isinstance(module, _CHANNELS_SECOND):
        return 1
    return tensor.dim() - 1


def channels_last(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """The same elements, not copied, as [..., channels]; a number alone is one channel."""
    return tensor.movedim(axis, -1) if tensor.dim() else tensor.reshape(1)


def rows_of(tensor: torch.Tensor) -> int:
    """How many samples [..., features] has."""
    return tensor.numel() // tensor.shape[-1] if tensor.shape[-1] else 0


def chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """[..., features] as float64 [rows, features] in turn, with few copies at once."""
    features = tensor.shape[-1]
    at_once = max(1, CHUNK // max(1, features))
    if tensor.is_contiguous() or tensor.dim() < 3:
        parts = tensor.reshape(-1, features).split(max(256, at_once))
    else:
        each = max(1, rows_of(tensor) // tensor.shape[0])
        parts = tensor.split(max(1, at_once // each))
    for part in parts:
        yield part.reshape(-1, features).to(torch.float64, copy=True)
