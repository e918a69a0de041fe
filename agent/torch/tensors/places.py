"""From what a model holds to plain local tensors, and how each relates to the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ....sketch.errors import SettingError
from ....wire.messages import MeshAxis, Placement
from ...selection import PLACEMENTS
from ...toolkit.ranks import Held
from ..axes import places_in_job
from ..local import (
    ON_THEIR_WAY,
    PLAIN,
    Cut,
    cut_of,
    dtype_name,
    inner_tensors,
    placement_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How a rank's tensor relates to the whole; by default it is the whole."""

    placement: Mapping[str, Placement]
    """By mesh axis; along those that are not named it is a copy."""
    mesh: tuple[MeshAxis, ...]
    """And where the rank stands on it."""
    cut: Cut | None = None
    """Which part it is; None for a whole, and where nobody knows."""

    @property
    def is_addend(self) -> bool:
        """Whether it is to be added up over ranks first."""
        return "partial" in self.placement.values()

    def held(self, tensor: torch.Tensor) -> Held:
        """What is told of it where ranks meet."""
        shape = tuple(tensor.shape if self.cut is None else self.cut.whole)
        return Held(placement=self.placement, mesh=self.mesh, shape=shape)


WHOLE = Place(placement={}, mesh=())
"""That of a tensor of which nothing is known."""

Piece = tuple[str, torch.Tensor, Place]
"""A name, a plain tensor that shares the memory of the model's, and its place."""


def pieces_of(
    name: str,
    tensor: torch.Tensor,
    mesh: tuple[MeshAxis, ...],
    placed: Mapping[str, Placement] | None = None,
) -> Iterator[Piece]:
    """The rank's own elements of a tensor: without a collective, and without a copy if dense.

    A DTensor gives its local piece; a wrapper, as of a quantised tensor, what it is made of, each
    under the name of its attribute, as `weight.scale`.

    Args:
        name: of the tensor.
        tensor: any.
        mesh: of the job.
        placed: how it relates to the whole where it does not say so itself.

    Raises:
        SettingError: it has no elements, as on the device `meta`.
    """
    mine = _mesh_of(tensor, mesh)
    placement: dict[str, Placement] = {**(placed or {}), **placement_of(tensor)}
    # `to_local` would enter autograd. `Any`: a DTensor.
    piece: Any = getattr(tensor, "_local_tensor", tensor)
    if type(piece).__name__ in ON_THEIR_WAY:
        piece = piece.wait()
    for attribute, part in inner_tensors(piece):
        yield from pieces_of(f"{name}.{attribute}", part, mine, placement)
    if not inner_tensors(piece):
        yield (
            name,
            _plain(name, piece),
            Place(placement=placement, mesh=mine, cut=_cut(tensor, piece)),
        )


def _plain(name: str, piece: torch.Tensor) -> torch.Tensor:
    piece = piece.detach()
    if piece.is_meta:
        raise SettingError(
            f"{name} is on the device `meta` and has no elements; give the model memory first, as "
            "`model.to_empty(device=…)` does."
        )
    if piece.layout != torch.strided:
        piece = piece.to_dense()
    if type(piece) not in PLAIN:
        piece = piece.as_subclass(torch.Tensor)
    return piece


def _mesh_of(tensor: torch.Tensor, mesh: tuple[MeshAxis, ...]) -> tuple[MeshAxis, ...]:
    """The job's mesh, and those axes of the tensor's own that it does not know."""
    own = getattr(tensor, "device_mesh", None)
    if own is None:
        return mesh
    known = {axis.name for axis in mesh}
    return (
        *mesh,
        *(
            MeshAxis(name=name, size=size, coordinate=coordinate)
            for name, (coordinate, size) in places_in_job(own).items()
            if name not in known
        ),
    )


def _cut(tensor: torch.Tensor, piece: torch.Tensor) -> Cut | None:
    return cut_of(tensor, piece) if hasattr(tensor, "placements") else None


def spelt(tensor: torch.Tensor) -> str:
    """The dtype of a tensor as NumPy and ml_dtypes spell it."""
    return dtype_name(tensor.dtype)


# `Any`: what JSON takes.
def place_as_words(place: Place) -> dict[str, Any]:
    """A place as JSON has it."""
    return {
        "placement": dict(place.placement),
        "mesh": [[axis.name, axis.size, axis.coordinate] for axis in place.mesh],
        "cut": None if place.cut is None else asdict(place.cut),
    }


def place_of_words(words: dict[str, Any]) -> Place:
    """The place that `place_as_words` told.

    Raises:
        KeyError, TypeError, ValueError: it did not.
    """
    for word in words["placement"].values():
        if word not in PLACEMENTS:
            raise ValueError(f"{word!r} is no placement")
    cut = words["cut"]
    if cut is not None:
        order = [(str(axis), int(along)) for axis, along in cut["order"]]
        sizes, offsets, whole = (
            list(map(int, cut[part])) for part in ("sizes", "offsets", "whole")
        )
        cut = Cut(sizes, offsets, whole, order)
    axes = ((str(name), int(size), int(at)) for name, size, at in words["mesh"])
    mesh = tuple(MeshAxis(name=name, size=size, coordinate=at) for name, size, at in axes)
    return Place(placement=dict(words["placement"]), mesh=mesh, cut=cut)
