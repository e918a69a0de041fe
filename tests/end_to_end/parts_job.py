"""The job of test_parts.py: two ranks that hold parts of a model, or of its samples.

Usage: torchrun --nproc-per-node 2 parts_job.py RUN DIRECTORY pp|cp|ep
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


def make_model(mode: str, ranks: int = 1) -> nn.Module:
    """The whole on one rank, or the part of this one; the same numbers everywhere."""
    torch.manual_seed(0)
    if mode == "cp":
        return Attention(ranks)
    if mode == "ep":
        return Experts(ranks)
    whole = Stack(range(4))
    if ranks == 1:
        return whole
    stage = Stack(range(2) if dist.get_rank() == 0 else range(2, 4))
    stage.load_state_dict({name: whole.state_dict()[name] for name in stage.state_dict()})
    return stage


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the whole job: what goes in and what shall come out."""
    torch.manual_seed(100 + step)
    return torch.randn(8, WIDTH), torch.randn(8, 3)


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Averaged over all."""
    return (output - target).square().mean()


def train(model: Any, mode: str, step: int, schedule: Any) -> None:
    """Forward, backward and the reduction of gradients."""
    data, target = batch(step)
    rank = dist.get_rank()
    if mode == "pp":
        schedule.step(data) if rank == 0 else schedule.step(target=target)
        return
    loss_of(model(data.chunk(2)[rank]), target.chunk(2)[rank]).backward()
    for name, parameter in model.named_parameters():
        if not name.startswith("expert"):  # which has seen the tokens of all ranks
            dist.all_reduce(parameter.grad)
        parameter.grad /= 2


def main() -> None:
    """A few steps."""
    run, directory, mode = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = make_model(mode, ranks=2)
    schedule = None
    if mode == "pp":
        stage = PipelineStage(model, rank, 2, torch.device("cpu"))
        schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with observe(
        model,
        optimizer,
        run=run,
        directory=directory,
        mesh={mode: 2},
        rename={"^expert$|^expert(?=[.])": f"experts.{rank}"},
    ) as scope:
        for step in range(STEPS):
            train(model, mode, step, schedule)
            optimizer.step()
            scope.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
