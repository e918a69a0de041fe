"""The job of test_parts.py: two ranks that hold parts of a model, or of its samples.

Usage: torchrun --nproc-per-node 2 parts_job.py RUN DIRECTORY pp|cp|ep|local-ep|one-ep
The model is trained in float32, as RUN-float32, then in float64.
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather, all_to_all_single
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.checkpoint import checkpoint

from rankscope.agent.torch import observe

WIDTH, STEPS, MICRO_BATCHES = 12, 2, 2


class Stack(nn.Module):
    """Layers of which a pipeline stage keeps some; one is computed again in the backward."""

    def __init__(self, kept: range) -> None:
        super().__init__()
        every = {str(number): nn.Linear(WIDTH, WIDTH) for number in range(4)}
        self.layers = nn.ModuleDict({name: every[name] for name in map(str, kept)})
        self.head = nn.Linear(WIDTH, 3) if 3 in kept else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer after the other."""
        for layer in self.layers.values():
            x = checkpoint(lambda x, layer=layer: torch.tanh(layer(x)), x, use_reentrant=False)
        return x if self.head is None else self.head(x)


class Attention(nn.Module):
    """Of a rank's part of the sequence over the whole sequence."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks = ranks
        # A bias of the keys changes nothing: its gradient is noise.
        self.query, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of [sequence, WIDTH]."""
        key, value = self.key(x), self.value(x)
        if self.ranks > 1:
            key, value = torch.cat(all_gather(key)), torch.cat(all_gather(value))
        return self.out(torch.softmax(self.query(x) @ key.T, dim=-1) @ value)


class Experts(nn.Module):
    """Of each rank's tokens one half goes to each of two experts; one of them may be elsewhere."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks = ranks
        self.dense = nn.Linear(WIDTH, WIDTH)
        experts = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        self.out = nn.Linear(WIDTH, 3)
        if ranks > 1:
            self.expert = experts[dist.get_rank()]
        else:
            self.experts = nn.ModuleList(experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of [tokens, WIDTH], those of each rank one after the other."""
        x = self.dense(x)
        if self.ranks > 1:
            given = all_to_all_single(torch.empty_like(x), x)
            return self.out(all_to_all_single(torch.empty_like(x), self.expert(given)))
        first, second = x.view(2, 2, -1, WIDTH).unbind(1)
        made = [expert(part) for expert, part in zip(self.experts, (first, second), strict=True)]
        return self.out(torch.stack(made, 1).flatten(0, 2))


class LocalExperts(Experts):
    """With the names and marks of Megatron's `SequentialMLP`: a rank counts its own from 0."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        if ranks > 1:
            mark_as_expert(self.expert)
            self.local_experts = nn.ModuleList([self.expert])
            del self.expert
            self.__dict__["expert"] = self.local_experts[0]
        else:
            self.local_experts = self.experts
            del self.experts
            self.__dict__["experts"] = self.local_experts


class JoinedExperts(nn.Module):
    """All experts of a rank are one parameter, as in Megatron's `GroupedMLP`."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.ranks, self.dense, self.out = ranks, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        joined = torch.randn(2, WIDTH, WIDTH)
        here = joined[dist.get_rank()][None] if ranks > 1 else joined
        self.experts = nn.Parameter(here.clone())
        if ranks > 1:
            self.experts.allreduce = False  # pyright: ignore[reportAttributeAccessIssue]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As `Experts`."""
        x = self.dense(x)
        if self.ranks > 1:
            given = all_to_all_single(torch.empty_like(x), x)
            return self.out(all_to_all_single(torch.empty_like(x), given @ self.experts[0]))
        given = x.view(2, 2, -1, WIDTH).transpose(0, 1)
        made = given.flatten(1, 2) @ self.experts
        return self.out(made.view(2, 2, -1, WIDTH).transpose(0, 1).flatten(0, 2))


def mark_as_expert(module: nn.Module) -> None:
    """As Megatron marks what other ranks do not have."""
    for parameter in module.parameters():
        parameter.allreduce = False  # pyright: ignore[reportAttributeAccessIssue]


def make_model(mode: str, dtype: torch.dtype, ranks: int = 1) -> nn.Module:
    """The whole on one rank, or the part of this one; the same numbers everywhere."""
    torch.manual_seed(0)
    if mode == "cp":
        return Attention(ranks).to(dtype)
    if mode.endswith("ep"):
        kind = {"ep": Experts, "local-ep": LocalExperts, "one-ep": JoinedExperts}[mode]
        return cast_in_place(kind(ranks), dtype)
    stages = nn.Sequential(Stack(range(2)), Stack(range(2, 4))).to(dtype)
    return stages if ranks == 1 else stages[dist.get_rank()]


def cast_in_place(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Parameters keep what they are marked with."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """As in the test."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch(step: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the whole job: what goes in and what shall come out."""
    torch.manual_seed(100 + step)
    return torch.randn(8, WIDTH).to(dtype), torch.randn(8, 3).to(dtype)


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Averaged over all."""
    return (output - target).square().mean()


def train(model: Any, data: torch.Tensor, target: torch.Tensor) -> None:
    """Forward, backward and the reduction of gradients."""
    rank = dist.get_rank()
    loss_of(model(data.chunk(2)[rank]), target.chunk(2)[rank]).backward()
    for name, parameter in model.named_parameters():
        if "expert" not in name:  # which has seen the tokens of all ranks
            dist.all_reduce(parameter.grad)
        parameter.grad /= 2


def train_in_pipeline(schedule: Any, data: torch.Tensor, target: torch.Tensor) -> None:
    """Forward and backward of this rank's stage."""
    schedule.step(data) if dist.get_rank() == 0 else schedule.step(target=target)


def run_training(run: str, directory: str, mode: str, dtype: torch.dtype) -> None:
    """A few steps."""
    rank = dist.get_rank()
    model = make_model(mode, dtype, ranks=2)
    schedule = None
    if mode == "pp":
        stage = PipelineStage(model, rank, 2, torch.device("cpu"))
        schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = make_optimizer(model)
    with observe(
        model,
        optimizer,
        run=run,
        directory=directory,
        mesh={mode.removeprefix("local-").removeprefix("one-"): 2},
        rename={"^expert$|^expert(?=[.])": f"experts.{rank}"},
    ) as scope:
        for step in range(STEPS):
            if schedule is None:
                train(model, *batch(step, dtype))
            else:
                train_in_pipeline(schedule, *batch(step, dtype))
            optimizer.step()
            scope.step()
            optimizer.zero_grad()


def main() -> None:
    """One mode."""
    run, directory, mode = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    run_training(f"{run}-float32", directory, mode, torch.float32)
    run_training(run, directory, mode, torch.float64)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
