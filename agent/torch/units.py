"""The units of FSDP2: the modules whose parameters are gathered together."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def units_of(model: torch.nn.Module) -> dict[torch.nn.Module, torch.nn.Module]:
    """By module the unit that gathers its parameters; itself where there is none.

    A unit gathers the parameters of modules that are never called, too. It may be a wrapper: of a
    block that was compiled before it was sharded, whose hooks run outside of its graph.
    """
    unit_of = dict[torch.nn.Module, torch.nn.Module]()
    for module in model.modules():  # parents come before their children
        if is_unit(module):
            unit_of[module] = module
        unit = unit_of.setdefault(module, module)
        for child in module.children():
            if is_unit(unit):
                unit_of.setdefault(child, unit)
    return unit_of


def is_unit(module: torch.nn.Module) -> bool:
    """Whether `fully_shard` was called on it, or `replicate`, which is made of the same."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return isinstance(module, getattr(fsdp, "FSDPModule", ()))


def gathering_meshes(unit: torch.nn.Module) -> list[DeviceMesh]:
    """The meshes along which a unit gathers parameters, or reduces gradients; else none."""
    if not is_unit(unit):
        return []
    made: Any = unit
    state = made._get_fsdp_state()  # torch has no public name for it
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    return [group.mesh_info.mesh for group in groups if group is not None]
