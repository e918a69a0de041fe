"""Parameters of which DeepSpeed's ZeRO 3 leaves each rank a piece.

The whole is there while a module that uses it runs, gathered by collectives of DeepSpeed's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...wire.messages import MeshAxis, Placement
from .identity import data_axes


def is_in_pieces(parameter: torch.Tensor) -> bool:
    """Whether a rank holds a piece of it; the whole of small ones may lie beside it."""
    return hasattr(parameter, "ds_tensor")


def piece_held(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """What of a weight this rank holds, without the padding; None where it was moved to a disk."""
    if not is_in_pieces(parameter):
        return parameter
    of_deepspeed: Any = parameter
    piece: torch.Tensor = of_deepspeed.ds_tensor
    # What lies on a disk is there as one element.
    if getattr(of_deepspeed.ds_tensor, "ds_numel", piece.numel()) != piece.numel():
        return None
    begin = dist.get_rank(of_deepspeed.ds_process_group) * piece.numel()
    return piece.detach().flatten()[: max(0, of_deepspeed.ds_numel - begin)]


def weight_placement(
    parameter: torch.nn.Parameter, placed: dict[str, Placement], mesh: Sequence[MeshAxis]
) -> dict[str, Placement]:
    """How what a rank holds of a weight relates to the whole."""
    if not is_in_pieces(parameter):
        return placed
    return {**placed, **dict.fromkeys(data_axes(mesh), "shard")}
