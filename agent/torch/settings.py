"""What `observe` makes of its arguments, and what it refuses."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import torch

from ...sketch.errors import SettingError
from ...sketch.formats import number_format
from ...sketch.mesh_axes import PIPELINE_PARALLEL
from ...wire.messages import LEAST_BUDGET
from ..alarm import ALARM_STEPS, Alarm
from ..ring import Ring
from ..schedule import Schedule, strides_by_kind
from ..selection import RankscopeWarning, warn_of_stray
from ..timetable import Timetable
from .axes import axis_names
from .replaceable import ReplaceableOptimizers
from .stages import NumberedStage

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

MAX_RING = 128
"""Steps that a ring holds at most: half of what an agent keeps until it is durable."""


def timetable_of(
    schedules: Mapping[str, Schedule],
    *,
    sentinel: bool,
    budget: float | None,
    sample: float | Mapping[str, float] | None,
    ring: int,
) -> Timetable:
    """What is read in which step.

    Raises:
        SettingError: budget, sentinel, sample and ring do not go together.
    """
    if budget is not None and not LEAST_BUDGET <= budget <= 1:
        raise SettingError(f"`budget` must be a share of step time as 0.01, got {budget}.")
    if sentinel and sample is not None:
        raise SettingError(
            "`sentinel` and `sample` exclude each other: where a sample is sketched, a NaN beside "
            "it would not be seen."
        )
    if ring and (sentinel or budget is not None or sample is not None):
        raise SettingError(
            "`ring` sketches all in every step: it does not go with `sentinel`, `budget` or "
            "`sample`, which read less."
        )
    alike = len(set(schedules.values())) <= 1 and not any(x.staggered for x in schedules.values())
    if ring and not alike:
        raise SettingError(
            "`ring` keeps whole steps: it needs one schedule for all kinds, and not `staggered`."
        )
    if budget is not None:
        schedules = {kind: replace(one, staggered=True) for kind, one in schedules.items()}
    strides = strides_by_kind(sample, list(schedules))
    return Timetable(schedules, sentinel=sentinel, ring=ring > 0, strides=strides)


def ring_of(steps: int, overflow: str | None) -> tuple[Ring | None, Alarm]:
    """The ring of so many steps, None for 0; and what looks for steps that matter.

    Raises:
        SettingError: that is no number of steps, there is no such format, or it has no use.
    """
    if not 0 <= steps <= MAX_RING:
        raise SettingError(f"`ring` must be a number of steps from 0 to {MAX_RING}, got {steps}.")
    limit = inf if overflow is None else number_format(overflow).overflow_threshold
    if overflow is not None and not steps:
        raise SettingError("`overflow` says when a `ring` is sent; give ring=16, say, too.")
    return (Ring(steps) if steps else None), Alarm(steps or ALARM_STEPS, limit)


def as_list(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
) -> Sequence[torch.optim.Optimizer]:
    """One optimizer or several, or none; those inside of a library's wrappers, as Accelerate's.

    Raises:
        SettingError: something else.
    """
    if optimizer is None:
        return []
    if isinstance(optimizer, ReplaceableOptimizers):
        return optimizer
    given = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    chosen = list(map(_unwrapped, given))
    for one in chosen:
        # Users without a type checker may pass anything.
        if not isinstance(one, torch.optim.Optimizer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingError(
                f"`optimizer` must be a torch optimizer or several, got {type(one)}."
            )
    return chosen


def _unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    inner = getattr(optimizer, "optimizer", None)
    return _unwrapped(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def devices_of(model: torch.nn.Module) -> set[torch.device]:
    """Where tensors will be: beside the parameters, which may be on the host between their uses."""
    devices = {parameter.device for parameter in model.parameters()}
    if torch.cuda.is_initialized():
        devices.add(torch.device("cuda", torch.cuda.current_device()))
    return devices


def chosen_classes(
    modules: Sequence[type | str] | None, known: Iterable[torch.nn.Module]
) -> Sequence[type | str] | None:
    """Classes, or names of classes; warns of each that no module is of."""
    if modules is None:
        return None
    chosen = [modules] if isinstance(modules, str) else list(modules)
    there = list(dict.fromkeys(type(one) for one in known))
    names = [one.__name__ for one in there]
    for one in chosen:
        is_there = one in names if isinstance(one, str) else any(issubclass(x, one) for x in there)
        if not is_there:
            name = one if isinstance(one, str) else one.__name__
            warn_of_stray("modules", name, names, "class of a module")
    return chosen


def warn_of_strangers(
    optimizers: Sequence[torch.optim.Optimizer], known: Collection[torch.nn.Parameter]
) -> None:
    """Warn of optimizers that have none of the model's parameters."""
    for optimizer in optimizers:
        held = (one for group in optimizer.param_groups for one in group["params"])
        if not any(one in known for one in held):
            warnings.warn(
                f"`optimizer` ({type(optimizer).__name__}) has none of the parameters of `model`: "
                "make it of model.parameters(), once the model is wrapped.",
                RankscopeWarning,
                stacklevel=4,  # past `configured`, to who calls `observe`
            )


def check_model(model: torch.nn.Module, start: int) -> None:
    """Refuse what cannot be observed, and warn of what will not be seen.

    Raises:
        SettingError: it is no module, has no parameters, or hides them, or takes no hooks; or
            `start` is negative.
    """
    # Users without a type checker may pass anything.
    if not isinstance(model, torch.nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SettingError(f"`model` must be a torch.nn.Module, got {type(model)}.")
    if not any(True for _ in model.parameters()):
        raise SettingError(
            f"`model` ({type(model).__name__}) has no parameters; pass the module that is trained."
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise SettingError(
            "A model that torch.jit has compiled takes no hooks. Observe the one that it was made "
            "of; modules of it may be compiled."
        )
    for module in model.modules():
        # By name: to import FSDP1 takes long, and warns.
        if type(module).__name__ == "FullyShardedDataParallel":
            raise SettingError(
                "FSDP1 is not supported: its flat parameters are pieces of several weights. Use "
                "FSDP2, torch.distributed.fsdp.fully_shard."
            )
        if isinstance(module, torch.nn.DataParallel) and len(module.device_ids) > 1:
            raise SettingError(
                "torch.nn.DataParallel is not supported: its threads run copies of the model. Use "
                "DistributedDataParallel."
            )
    if any(hasattr(parameter, "_st_info") for parameter in model.parameters()):
        raise SettingError(
            "DistributedDataParallel over tensor parallelism is not supported: torch takes the "
            "parameters out of their modules in the first forward. Use FSDP2 along that axis, "
            "torch.distributed.fsdp.fully_shard."
        )
    if start < 0:
        raise SettingError(f"`start` must not be negative, got {start}.")
    if is_compiled(model):
        warnings.warn(
            "The model is compiled already, and what has run compiled is not seen: "
            "call observe() before torch.compile().",
            RankscopeWarning,
            stacklevel=4,  # past `configured`, to who calls `observe`
        )


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether it was compiled, or a part of it; torch has no public way to ask."""
    return any(
        hasattr(one, "_orig_mod") or getattr(one, "_compiled_call_impl", None) is not None
        for one in model.modules()
    )


def is_part_of_pipeline(
    stages: Sequence[NumberedStage], mesh: DeviceMesh | Mapping[str, int] | None
) -> bool:
    """Whether other ranks hold other modules, as far as is known before ranks meet."""
    axes = mesh if isinstance(mesh, Mapping) or mesh is None else axis_names(mesh)
    return len(stages) > 1 or stages[0][1] is not None or PIPELINE_PARALLEL in (axes or ())
