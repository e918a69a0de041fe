"""Tensors as samples and features: which axis the channels are, and rows in chunks of float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch

CHUNK = 1 << 20
"""Elements that are cast to float64 at once: 8 MiB."""

_BEHIND_CHANNELS = (
    "Conv",
    "ConvTranspose",
    "InstanceNorm",
    "Dropout",
    "MaxPool",
    "AvgPool",
    "LPPool",
    "AdaptiveMaxPool",
    "AdaptiveAvgPool",
)
_POSITIONS = {
    positions: tuple(getattr(torch.nn, f"{name}{positions}d") for name in _BEHIND_CHANNELS)
    for positions in (1, 2, 3)
}
"""By axes of positions behind the channels, classes that have so many."""
_CHANNELS_SECOND = (
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm,
    torch.nn.GroupNorm,
    torch.nn.PReLU,
)


def channel_axis(module: torch.nn.Module, tensor: torch.Tensor, given: int | None = None) -> int:
    """Which axis of what a module takes or returns are its channels: of most the last.

    Args:
        given: the axis that was asked for, which counts from the end where it is below 0.

    Raises:
        ValueError: it has no such axis.
    """
    if given is not None:
        if not -tensor.dim() <= given < tensor.dim():
            raise ValueError(f"`channels={given}` is no axis of a shape {list(tensor.shape)}")
        return given % tensor.dim()
    for positions, classes in _POSITIONS.items():
        if isinstance(module, classes):
            return tensor.dim() - positions - 1
    if isinstance(module, _CHANNELS_SECOND) and tensor.dim() > 1:
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
