"""The job of test_reductions.py: ranks whose gradients are reduced, rightly or not.

Usage: torchrun --nproc-per-node N reduction_job.py RUN DIRECTORY MODE [FAULT [once]]

The mode is ddp (compressed: in float16), fsdp (mixed: in bfloat16, reduced in float32; half:
reduced in bfloat16; hybrid: on 2 x 2 ranks, of which the first micro-batch is reduced along one
axis), compiled (whole: all of the model, after it was sharded) or tp. Where the fault is `long` all
goes well in 40 steps. `summed` comes in step `LATE` of 12, which are not clipped.

Two micro-batches a step, of which only the second is reduced; `once`, one. The fault comes in step
`FAULTY`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    fp16_compress_hook,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from rankscope.agent.torch import observe

STEPS, FAULTY, MICRO_BATCHES = 4, 2, 2
MORE_STEPS, LATE = {"long": 40, "summed": 12}, 10
REDUCED_IN = {"mixed": torch.float32, "half": torch.bfloat16}


def make_model() -> nn.Sequential:
    """The same on each rank and in the test."""
    torch.manual_seed(0)
    first, middle, last = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 2)
    return nn.Sequential(first, nn.GELU(), middle, nn.GELU(), last)


def batch(step: int, rank: int, number: int) -> torch.Tensor:
    """A micro-batch of one rank."""
    torch.manual_seed(1000 * step + 10 * rank + number)
    return torch.randn(3, 6)


class Faults:
    """What goes wrong, on which rank, in one step."""

    def __init__(self, fault: str) -> None:
        self.fault, self.step = fault, 0

    def is_now(self, fault: str, rank: int) -> bool:
        """Whether it happens on this rank."""
        return self.fault == fault and self.step == FAULTY and dist.get_rank() == rank

    def reduce(self, _: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The all-reduce of DistributedDataParallel, of what may be spoilt before."""
        if self.is_now("lost", 1):
            bucket.gradients()[2].zero_()
        parts = bucket.gradients() if self.fault == "apart" else bucket.gradients()[2:3]
        own = [part.clone() for part in parts]
        reduced = allreduce_hook(dist.group.WORLD, bucket)  # pyright: ignore[reportArgumentType]
        if not any(self.is_now(fault, dist.get_rank()) for fault in ("alone", "apart")):
            return reduced

        def keep(done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            for part, before in zip(parts, own, strict=True):
                part.copy_(before)
            return done.value()

        return reduced.then(keep)

    def before_the_update(self, model: nn.Module) -> None:
        """Spoil what was reduced."""
        first = next(model.parameters())
        if self.is_now("wire", 1) and first.grad is not None:
            gradient = getattr(first.grad, "_local_tensor", first.grad)
            gradient[0, 0] += gradient.abs().max() / 100
        if self.fault == "summed" and self.step == LATE:  # on all ranks
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad *= dist.get_world_size()

    def in_the_forward(self, module: nn.Module, _: Any) -> None:
        """Spoil a weight that was gathered; FSDP2 gathers it anew for the next forward."""
        if self.is_now("gather", 1):
            next(module.parameters()).data[0, 0] += 1

    def in_the_backward(self, module: nn.Module, _: Any, output: torch.Tensor) -> None:
        """Spoil a weight that is gathered for the backward, once it is."""

        def spoil(_: torch.Tensor) -> None:
            if self.is_now("gather-back", 1):
                next(module.parameters()).data[0, 0] += 1

        output.register_hook(spoil)

    def before_the_sum(self, _: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        """Spoil what a rank has to add up in the forward, and not its gradient."""
        return output - output.detach() if self.is_now("sum", 1) else output

    def spoilt(self, all_reduce: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """The all-reduce of DTensors, of what is spoilt before if it is in a backward."""

        def reduce(addend: torch.Tensor, *arguments: Any, **keywords: Any) -> torch.Tensor:
            in_backward = torch._C._current_graph_task_id() != -1  # pyright: ignore
            for fault, times in (("lost-back", 0), ("twice-back", 2)):
                if in_backward and self.is_now(fault, 1):
                    addend = addend * times
            return all_reduce(addend, *arguments, **keywords)

        return reduce

    def before_the_step(self, model: nn.Module) -> None:
        """Spoil a weight."""
        if self.is_now("bit", 1):
            words = next(model.parameters()).data.view(torch.int32)
            words[0, 0] ^= 1


def parallelised(model: nn.Sequential, mode: str, faults: Faults) -> nn.Module:
    """The model as several ranks train it."""
    if mode in ("fsdp", "compiled", "whole", "hybrid", *REDUCED_IN):
        if mode == "compiled":  # by the compiler's front, for its backend takes long
            model[2] = torch.compile(model[2], backend="aot_eager", fullgraph=True)  # pyright: ignore
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
        if mode == "hybrid":
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "fsdp"))
        policy = MixedPrecisionPolicy()
        if mode in REDUCED_IN:
            policy = MixedPrecisionPolicy(torch.bfloat16, REDUCED_IN[mode])
        fully_shard(model[2], mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        model.register_forward_pre_hook(faults.in_the_forward)
        model[2].register_forward_hook(faults.in_the_backward)
        return model
    if mode == "tp":
        model[2].register_forward_hook(faults.before_the_sum)
        funcol.all_reduce = faults.spoilt(funcol.all_reduce)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        last = ColwiseParallel(output_layouts=Replicate())
        plan: dict[str, ParallelStyle] = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": last}
        return parallelize_module(model, mesh, plan)
    wrapped = DistributedDataParallel(model)
    if mode == "compressed":
        wrapped.register_comm_hook(None, fp16_compress_hook)
    else:
        wrapped.register_comm_hook(None, faults.reduce)
    return wrapped


def has_own_samples(model: nn.Module) -> bool:
    """Whether ranks see different samples."""
    return isinstance(model, DistributedDataParallel | FSDPModule)


def micro_batches(model: Any, step: int) -> Iterator[tuple[torch.Tensor, Any]]:
    """Each with what it is to be computed in."""
    for number in range(MICRO_BATCHES):
        last = number == MICRO_BATCHES - 1
        if not last and "once" in sys.argv:
            continue
        data = batch(step, dist.get_rank() if has_own_samples(model) else 0, number)
        if isinstance(model, DistributedDataParallel):
            yield data, nullcontext() if last else model.no_sync()
        elif not has_own_samples(model):
            yield data, nullcontext()
        else:
            sync = model.set_requires_all_reduce if "hybrid" in sys.argv else None
            (sync or model.set_requires_gradient_sync)(last)
            yield data, nullcontext()


def main() -> None:
    """A few steps."""
    run, directory, mode, *fault = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    faults = Faults(fault[0] if fault else "")
    model = parallelised(make_model(), mode, faults)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with observe(model, optimizer, run=run, directory=directory) as scope:
        if mode == "whole":
            model.compile(backend="aot_eager")
        for step in range(MORE_STEPS.get(faults.fault, STEPS)):
            faults.step = step
            faults.before_the_step(model)
            for data, way in micro_batches(model, step):
                with way:
                    (model(data).float().square().mean() / MICRO_BATCHES).backward()
            faults.before_the_update(model)
            most = 1e9 if faults.fault == "summed" else 1e-2
            torch.nn.utils.clip_grad_norm_(model.parameters(), most)
            optimizer.step()
            scope.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
