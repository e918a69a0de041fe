"""From what a training job holds to the plain local tensor, readable without a collective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...sketch.elements import Region
from ...sketch.labels import OF_VALUES
from ...sketch.mesh_axes import TENSOR_PARALLEL
from ...sketch.regions import piece_of
from ...wire.messages import Placement
from ..strides import region_of
from .axes import names_in_job, placements_in_job, places_in_job
from .quantised import is_of_transformer_engine, parts_of


def local_tensor(tensor: torch.Tensor) -> torch.Tensor | None:
    """The rank's own elements as a plain floating-point tensor, or None if none can be read.

    A DTensor gives its local piece; complex numbers their parts; integers, booleans, meta tensors
    and other subclasses of Tensor give None. Never a collective; a copy only where torch has put
    off a conjugation or a change of sign. Of nested tensors that are no subclass, all values.
    """
    piece: Any = tensor
    if type(piece) not in PLAIN:
        piece = getattr(tensor, "_local_tensor", tensor)  # DTensor; to_local() enters autograd
        if type(piece).__name__ in ON_THEIR_WAY and piece.completed:
            piece = piece.elem
    if type(piece) not in PLAIN or piece.is_meta:
        return None
    if piece.requires_grad:
        piece = piece.detach()
    if piece.is_sparse:
        piece = piece._values()  # pyright: ignore[reportPrivateUsage]  # coalesce would copy
    if piece.is_complex():
        piece = torch.view_as_real(piece.resolve_conj())
    if piece.is_neg():
        piece = piece.resolve_neg()
    if piece.is_nested:
        piece = piece.values()
    return piece if piece.dtype in READABLE and piece.layout == torch.strided else None


def inner_tensors(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """What a wrapper of tensors is made of, by attribute; nothing for other tensors.

    So a quantised tensor of torchao's or TransformerEngine's has its elements and its scales. What
    is still on its way from another rank is left alone: to read it would wait.
    """
    wrapper = getattr(tensor, "_local_tensor", tensor)
    if is_of_transformer_engine(wrapper):
        return parts_of(wrapper)
    flatten = getattr(wrapper, "__tensor_flatten__", None)
    if type(wrapper) in PLAIN or flatten is None or type(wrapper).__name__ in ON_THEIR_WAY:
        return []
    names = ["_values"] if wrapper.is_nested else flatten()[0]  # its others hold no numbers
    return [(name, getattr(wrapper, name)) for name in names]


def weight_of(module: torch.nn.Module) -> torch.Tensor | None:
    """What a module keeps as its `weight`; None where it keeps none, or computes it.

    To ask a parametrised module for it would compute it once more: spectral norms go on by that.
    """
    own = dict(module.named_parameters(recurse=False)).get("weight")
    kept = vars(module).get("weight") if own is None else own
    return kept if isinstance(kept, torch.Tensor) else None


def gradient_of(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """A parameter's gradient; Megatron's, which adds up in buffers of its own, too."""
    return parameter.grad if parameter.grad is not None else getattr(parameter, "main_grad", None)


def slot_of(gradient: torch.Tensor) -> str:
    """What of a gradient is measured: of a sparse one its values."""
    return OF_VALUES if gradient.is_sparse else ""


def in_transform() -> bool:
    """Whether a transform of `torch.func` runs, in which tensors are wrapped."""
    return torch._C._functorch.maybe_current_level() is not None  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def untransformed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory that the transforms of `torch.func` wrapped, with its batches."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


UNKNOWN = -1
"""The version of a tensor of inference mode, which counts none."""


def version_of(tensor: torch.Tensor) -> int:
    """How often the tensor was changed in place, as far as torch counts."""
    return UNKNOWN if tensor.is_inference() else tensor._version


def has_memory(tensor: torch.Tensor, elements: int) -> bool:
    """Whether there is that of so many elements: who saves memory may take it away meanwhile.

    So do FSDP with what it gathered, and invertible networks with what they can compute again; and
    zeros of autograd's have none.
    """
    needed = (tensor.storage_offset() + elements) * tensor.itemsize
    there = tensor.data_ptr() != 0 and tensor.untyped_storage().nbytes() >= needed
    return there or not elements


def extent_of(tensor: torch.Tensor) -> int:
    """How many elements lie from its first to its last in memory."""
    if tensor.is_contiguous():
        return tensor.numel()
    if not tensor.numel():
        return 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def in_memory_order(piece: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The elements of a tensor in the order in which they lie in memory, and how often each counts.

    Without a copy: a permuted tensor is permuted back, and an expanded axis is left out.
    """
    if piece.is_contiguous():
        return piece, 1
    axes = [axis for axis in range(piece.dim()) if piece.stride(axis) != 0]
    copies = math.prod(size for axis, size in enumerate(piece.shape) if axis not in axes)
    axes.sort(key=piece.stride, reverse=True)
    sizes, strides = [piece.size(axis) for axis in axes], [piece.stride(axis) for axis in axes]
    return piece.as_strided(sizes, strides), copies


ON_THEIR_WAY = ("AsyncCollectiveTensor",)
"""Tensors that a collective has not filled yet."""
PLAIN = (torch.Tensor, torch.nn.Parameter)
"""The types that hold their own elements."""

READABLE = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    }
)
"""The dtypes that are summarised."""


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype as NumPy and ml_dtypes spell it."""
    return str(dtype).removeprefix("torch.")


def placement_of(tensor: torch.Tensor) -> dict[str, Placement]:
    """How a parameter's local piece relates to the whole, by mesh axis; a plain tensor has none."""
    placements, mesh = getattr(tensor, "placements", None), getattr(tensor, "device_mesh", None)
    if placements is None or mesh is None:
        return {}
    return {name: _word(placement) for name, placement in placements_in_job(mesh, placements)}


def is_addend(made: object) -> bool:
    """Whether what a module returns is a DTensor that is still to be added up over ranks."""
    # A masked sum, as of embeddings, is none of what lies in memory, and a subclass.
    return any(
        type(placed).__name__ == "Partial" and getattr(placed, "reduce_op", "") == "sum"
        for placed in getattr(made, "placements", ())
    )


def parameter_placement(parameter: torch.Tensor) -> dict[str, Placement]:
    """How a parameter relates to the whole, by mesh axis, as it or Megatron says.

    Megatron's parameters are plain tensors, marked as parts of the whole along its tensor-parallel
    axis, which is called `tp` here; their gradients and states are not.
    """
    is_part = getattr(parameter, "tensor_model_parallel", False) is True
    said: dict[str, Placement] = {TENSOR_PARALLEL: "shard"} if is_part else {}
    return said | placement_of(parameter)


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of a whole tensor a piece is: one entry an axis."""

    sizes: list[int]
    offsets: list[int]
    whole: list[int]
    order: list[tuple[str, int]]
    """See `sketch.regions`; empty where the piece is not what follows from it."""

    def region(self) -> Region | None:
        """Where its elements lie in the whole; None for all of it."""
        if self.sizes == self.whole:
            return None
        return region_of(self.sizes, self.offsets, self.whole)


def cut_of(tensor: torch.Tensor, piece: torch.Tensor) -> Cut | None:
    """Which part of a DTensor its local piece is; None for a whole, and where nobody knows.

    Without a collective: it follows from sizes and placements alone. Raises what torch does of a
    placement that it does not know.
    """
    if "shard" not in placement_of(tensor).values() or not _is_cut_in_one(tensor):
        return None
    made: Any = tensor  # a DTensor
    mesh, placements = made.device_mesh, made.placements
    # Torch has no public name for it, and without torch.distributed not even this one.
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    with torch.device("cpu"):  # it makes tensors, and reads them
        cut = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    sizes, offsets, whole = list(cut[0]), list(cut[1]), list(tensor.shape)
    if tensor.is_complex():  # its parts are read as one more axis
        sizes, offsets, whole = [*sizes, 2], [*offsets, 0], [*whole, 2]
    if len(offsets) != len(whole) or sizes != list(piece.shape):
        return None
    order, at = _order_of_cuts(mesh, placements, whole), places_in_job(mesh)
    if not at or piece_of(whole, order, at) != (tuple(offsets), tuple(sizes)):
        order = []
    return Cut(sizes, offsets, whole, order)


def _order_of_cuts(
    mesh: Any, placements: Sequence[Any], whole: Sequence[int]
) -> list[tuple[str, int]]:
    """Axes of the job and axes of the tensor, in the order in which these are cut.

    What FSDP cuts of a tensor that is cut already is a strided shard: it comes after later axes.
    Empty where a flattened axis cuts pieces that its own axes, one after the other, would not.
    """
    plain, strided = list[tuple[str, int]](), list[list[tuple[str, int]]]()
    for place, names in enumerate(names_in_job(mesh)):
        placement = placements[place]
        if _word(placement) != "shard":
            continue
        if len(names) > 1 and whole[placement.dim] % mesh.size(place):
            return []
        cuts = [(name, placement.dim) for name in names]
        if getattr(placement, "split_factor", 1) > 1:
            strided.append(cuts)
        else:
            plain += cuts
    return [*plain, *(cut for cuts in reversed(strided) for cut in cuts)]


def _is_cut_in_one(tensor: Any) -> bool:
    """Whether a piece is consecutive along each axis along which it is cut.

    So are the pieces of FSDP and tensor parallelism together: the factor of a strided shard is then
    the number of parts that later axes of the mesh cut the same axis into. Views make others.
    """
    for place, placement in enumerate(tensor.placements):
        factor = getattr(placement, "split_factor", 1)
        later = enumerate(tensor.placements[place + 1 :], place + 1)
        parts = [
            tensor.device_mesh.size(number)
            for number, other in later
            if other.is_shard() and other.dim == getattr(placement, "dim", None)
        ]
        if factor not in (1, math.prod(parts)):
            return False
    return True


def _word(placement: object) -> Placement:
    name = type(placement).__name__.lower()
    if "shard" in name:
        return "shard"
    return "partial" if "partial" in name else "replicate"
