"""What was found out about a tensor that is measured every step, and whether it still holds."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from ..reading import Reading
from ..strides import CONTIGUOUS, runs_of
from .local import PLAIN, READABLE


class Found(NamedTuple):
    """One tensor: where its sketch goes, how it is read, and how it lies in memory."""

    row: int
    how: Reading
    device: torch.device
    dtype: torch.dtype
    shape: torch.Size
    """Of the rank's own elements, as the job has them."""
    stride: tuple[int, ...]
    spec: object
    """Of a DTensor its mesh, placements and sizes; None of a plain tensor."""
    sizes: tuple[int, ...]
    """Of the elements, in the order in which they are read."""
    strides: tuple[int, ...]

    @classmethod
    def of(
        cls,
        row: int,
        how: Reading,
        tensor: torch.Tensor,
        piece: torch.Tensor,
        elements: torch.Tensor,
    ) -> Found:
        """Of a tensor, the rank's own elements of it, and these in the order of reading."""
        return cls(
            row,
            how,
            piece.device,
            piece.dtype,
            piece.shape,
            piece.stride(),
            None if type(tensor) in PLAIN else getattr(tensor, "_spec", None),
            tuple(elements.shape),
            elements.stride(),
        )

    @property
    def elements(self) -> int:
        """Their number, in memory."""
        return math.prod(self.sizes)

    @property
    def is_contiguous(self) -> bool:
        """Whether they are read as they lie in memory, one after the other."""
        return runs_of(self.sizes, self.strides) == CONTIGUOUS

    def piece_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The rank's own elements of a tensor, if they lie as they did before."""
        piece: Any = tensor
        if self.spec is not None:
            spec = getattr(tensor, "_spec", None)
            if spec is not self.spec and spec != self.spec:
                return None
            piece = piece._local_tensor
        fits = (
            type(piece) in PLAIN  # else there is none, or it is on its way
            and piece.layout is torch.strided
            and piece.dtype is self.dtype
            and piece.shape == self.shape
            and piece.stride() == self.stride
            and piece.device == self.device
            and not piece.is_neg()
        )
        return piece if fits else None


def plain_piece(tensor: torch.Tensor) -> torch.Tensor | None:
    """The rank's own elements where they are there and lie in memory as they are; else None."""
    piece: Any = tensor if type(tensor) in PLAIN else getattr(tensor, "_local_tensor", None)
    is_plain = (
        type(piece) in PLAIN
        and not piece.is_meta
        and piece.layout is torch.strided
        and piece.dtype in READABLE
        and not piece.is_neg()
    )
    return piece if is_plain else None
