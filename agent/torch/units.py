"""The units of FSDP2: the modules whose parameters are gathered together."""

from __future__ import annotations

import sys
from collections.abc import Callable
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
    return [group.mesh_info.mesh for group in _groups(unit)]


def gathers_again(unit: torch.nn.Module) -> bool:
    """Whether a unit lets go of what it gathered for its forward, and gathers it for its backward.

    The outermost one does not, unless it is asked to.
    """
    return any(group.post_forward_mesh_info is not None for group in _groups(unit))


def earlier_gradients(unit: torch.nn.Module, parameter: torch.Tensor) -> Callable[[], bool]:
    """Tells whether FSDP2 still keeps what earlier backwards made of a parameter's gradient.

    It does so out of sight of both the sharded and the unsharded parameter: in the dtype in which
    it reduces, where that is another, and where HSDP has reduced along one axis, and not the other.

    Args:
        parameter: the unsharded one.
    """
    for group in _groups(unit):
        for one in group.fsdp_params:
            if getattr(one, "_unsharded_param", None) is parameter:
                return lambda group=group, one=one: (
                    getattr(one, "unsharded_accumulated_grad", None) is not None
                    or getattr(group, "_partial_reduce_output", None) is not None
                )
    return lambda: False


def _groups(unit: torch.nn.Module) -> list[Any]:
    """What FSDP2 has of a unit, whose parameters it gathers at a time each; else none."""
    if not is_unit(unit):
        return []
    made: Any = unit
    state = made._get_fsdp_state()  # torch has no public name for it
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    return [group for group in groups if group is not None]
