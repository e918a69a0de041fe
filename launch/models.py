"""What can be found out of a process's models, and of what is used with them.

Only torch is imported here, as in `finder`.
"""

from __future__ import annotations

import gc
from collections.abc import Container, Iterator

import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

PADDED = 1.1
"""By how much the shares of all ranks may be larger than the whole."""


def is_compiled(root: nn.Module) -> bool:
    """Whether torch.compile compiles it, or a part of it."""
    compiled = "OptimizedModule"  # importing its class would import the compiler
    return any(
        type(one).__name__ == compiled or one._compiled_call_impl is not None  # pyright: ignore[reportPrivateUsage]
        for one in root.modules()
    )


def scaler_of_job(past: Container[GradScaler] = ()) -> GradScaler | None:
    """The job's, if it has one that is switched on; rather none of those that are `past`."""
    scalers = [one for one in gc.get_objects() if issubclass(type(one), GradScaler)]
    at_work = [one for one in scalers if one.is_enabled()]
    return next((one for one in at_work if one not in past), next(iter(at_work), None))


def pipeline_of(module: nn.Module) -> nn.Module | None:
    """The stages of a pipeline that this rank holds, where the module is one, or a part of one."""
    from ..agent.torch.stages import stages_around, stages_made  # loads NumPy

    made = stages_made()
    own = stages_around(made, [module])
    if not own:
        return None
    pipeline = own[0].group, own[0].num_stages
    held = [one.submod for one in made if (one.group, one.num_stages) == pipeline]
    return held[0] if len(held) == 1 else nn.ModuleList(held)


def kind_of(root: nn.Module) -> str:
    """What the script calls its class, whatever is around it."""
    from ..agent.torch.names import unwrapped  # loads NumPy

    return type(unwrapped(root)).__name__


def size_of(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def elements_of(optimizer: Optimizer) -> int:
    """How many it updates."""
    return sum(one.numel() for group in optimizer.param_groups for one in group["params"])


def may_be_copies(module: nn.Module, elements: int) -> bool:
    """Whether so many elements may be copies of all its weights, or a rank's share, padded."""
    trained = [one for one in module.parameters() if one.requires_grad]
    # DeepSpeed's ZeRO 3 leaves none of them on a rank between two uses.
    whole = sum(getattr(one, "ds_numel", one.numel()) for one in trained)
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    return whole > 0 and any(whole <= n * elements <= PADDED * whole for n in {1, ranks})


def modules_around(module: nn.Module) -> Iterator[nn.Module]:
    """All modules that hold it, directly or not, as far as they train."""
    parents: dict[int, list[nn.Module]] = {}
    for one in gc.get_objects():
        if issubclass(type(one), nn.Module):
            for child in one.children():
                parents.setdefault(id(child), []).append(one)
    waiting, seen = [module], {id(module)}
    while waiting:
        for parent in parents.get(id(waiting.pop()), []):
            if id(parent) not in seen and parent.training:
                seen.add(id(parent))
                waiting.append(parent)
                yield parent
