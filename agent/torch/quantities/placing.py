"""How the series of different ranks belong together, axis by axis of the device mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from ....wire.messages import MeshAxis
from ..axes import placements_in_job
from ..identity import data_axes
from ..local import parameter_placement
from ..placements import ModulePlacements
from .rows import channel_axis

Axes = dict[str, Literal["merge", "own"]]
"""As of `Series`; along axes that are left out ranks hold copies."""


class Places:
    """Where the tensors of a model's modules are, on a mesh.

    Args:
        mesh: the axes of the job's device mesh.
        placements: of what modules return; None where nothing is split.
    """

    def __init__(self, mesh: Sequence[MeshAxis], placements: ModulePlacements | None) -> None:
        self._data = data_axes(mesh)
        self._placements = placements if placements and placements.is_needed else None

    def of_output(
        self,
        module: torch.nn.Module,
        arriving: object,
        output: torch.Tensor | None,
        channels: int | None,
    ) -> Axes:
        """Of what a module returns, and of its gradient; see `channel_axis` for `channels`."""
        if output is None or self._placements is None:
            return self._samples()
        placed = self._placements.of(module, arriving, output)
        shards = {axis for axis, word in placed.items() if word != "replicate"}
        scattered = self._placements.cuts_inputs(module)
        return self._with(output, channel_axis(module, output, channels), shards, scattered)

    def of_input(
        self, module: torch.nn.Module, tensor: torch.Tensor | None, channels: int | None
    ) -> Axes:
        """Of what a module takes: one that is cut along its inputs takes features of its own."""
        if tensor is None or self._placements is None:
            return self._samples()
        placed = self._placements.known(tensor)
        shards = {axis for axis, word in placed.items() if word != "replicate"}
        shards |= self._placements.cuts_inputs(module)
        return self._with(tensor, channel_axis(module, tensor, channels), shards, set())

    def _with(
        self, tensor: torch.Tensor, channels: int, shards: set[str], scattered: set[str]
    ) -> Axes:
        """What is cut along samples merges; along features, and where nobody knows, it does not."""
        axes, dims = self._samples(), cuts_of(tensor)
        for axis in shards - axes.keys():
            by_samples = dims[axis] not in (None, channels) if axis in dims else axis in scattered
            axes[axis] = "merge" if by_samples else "own"
        return axes

    def _samples(self) -> Axes:
        return dict.fromkeys(self._data, "merge")


def cuts_of(tensor: torch.Tensor) -> dict[str, int | None]:
    """By mesh axis: which axis of a tensor is cut along it; None for addends. Copies are left out.

    Of a DTensor; and of a parameter of Megatron's, which says so itself.
    """
    placements, mesh = getattr(tensor, "placements", None), getattr(tensor, "device_mesh", None)
    if placements is None or mesh is None:
        placed = parameter_placement(tensor)
        return {axis: getattr(tensor, "partition_dim", 0) for axis in placed}
    return {
        axis: getattr(one, "dim", None)
        for axis, one in placements_in_job(mesh, placements)
        if not one.is_replicate()
    }


def axes_of_parameter(cuts: Mapping[str, int | None], added: set[int] | None) -> Axes:
    """Of what is computed of a piece of a weight.

    Args:
        cuts: by mesh axis, as `cuts_of` says.
        added: axes of the weight along which pieces add up; None: along all.
    """
    return {
        axis: "merge" if dim is not None and (added is None or dim in added) else "own"
        for axis, dim in cuts.items()
    }
