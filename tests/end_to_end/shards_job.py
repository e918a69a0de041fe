"""The job of test_shards.py: ranks that hold pieces of one model, as a user would write them.

Usage: torchrun --nproc-per-node 2 shards_job.py RUN DIRECTORY fsdp|tp|odd, or of 4 ranks
fsdp-tp|hsdp.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from rankscope.agent.torch import observe

PLAN: dict[str, ParallelStyle] = {
    "tokens": RowwiseParallel(input_layouts=Replicate()),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
    "head": ColwiseParallel(output_layouts=Replicate()),
}


class Model(nn.Module):
    """A block of a transformer without its attention."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30, 300)
        self.norm = nn.LayerNorm(300)
        self.up = nn.Linear(300, 102)
        self.act = nn.GELU()
        self.down = nn.Linear(102, 300)
        self.head = nn.Linear(300, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each token."""
        x = self.tokens(tokens)
        return self.head(x + self.down(self.act(self.up(self.norm(x)))))


def make_model(mode: str) -> nn.Module:
    """The same on each rank and in the test; FSDP cuts 7 rows in two."""
    torch.manual_seed(0)
    return Model(7 if mode == "fsdp" else 8)


def batch(step: int) -> torch.Tensor:
    """The same on each rank and in the test."""
    torch.manual_seed(step)
    return torch.randint(0, 30, (4, 5))


def odd_pieces() -> dict[str, torch.Tensor]:
    """The wholes of what the mode `odd` taps; the same on each rank and in the test."""
    torch.manual_seed(3)
    sizes = {"moved": (6, 40), "flat": (4, 8, 3), "complex": (6, 10), "far": (5, 4)}
    return {name: torch.randn(size) for name, size in sizes.items()}


def tap_odd_pieces(run: str, directory: str) -> None:
    """Pieces that are interleaved, cut in another way later, or on another rank alone."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    far = DeviceMesh("cpu", [0], mesh_dim_names=("alone",))
    whole = odd_pieces()
    with observe(nn.Linear(2, 2), run=run, directory=directory, mesh=mesh) as scope:
        for axis in (0, 1):
            moved = distribute_tensor(whole["moved"], mesh, [Shard(axis)])
            flat = distribute_tensor(whole["flat"], mesh, [Shard(1)]).flatten(0, 1)
            pairs = torch.view_as_complex(whole["complex"].view(6, 5, 2))
            scope.tap("moved", moved)
            scope.tap("flat", flat)
            scope.tap("complex", distribute_tensor(pairs, mesh, [Shard(axis)]))
            scope.tap("far", distribute_tensor(whole["far"], far, [Shard(0)]))
            scope.step()


def main() -> None:
    """Two steps."""
    run, directory, mode = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    if mode == "odd":
        tap_odd_pieces(run, directory)
        dist.destroy_process_group()
        return
    model = make_model(mode)
    mesh = parallelised(model, mode)
    told = {"fsdp": 2} if mode == "fsdp" else mesh
    optimizer = torch.optim.AdamW(model.parameters())
    with observe(model, optimizer, run=run, directory=directory, mesh=told) as scope:
        for step in range(2):
            loss = model(batch(step).chunk(samples(mode))[share(mode)]).square().mean()
            loss.backward()
            optimizer.step()
            scope.step(loss=loss)
            optimizer.zero_grad()
    dist.destroy_process_group()


def parallelised(model: nn.Module, mode: str) -> DeviceMesh:
    """Distribute the model over the ranks; their mesh."""
    axes = {
        "fsdp": ("fsdp",),
        "tp": ("tp",),
        "fsdp-tp": ("fsdp", "tp"),
        "hsdp": ("replicate", "shard"),
    }[mode]
    mesh = init_device_mesh("cpu", (2,) * len(axes), mesh_dim_names=axes)
    if "tp" in axes:
        parallelize_module(model, mesh["tp"], PLAN)
    if mode != "tp":
        over = mesh["fsdp"] if mode == "fsdp-tp" else mesh
        fully_shard(model.get_submodule("up"), mesh=over)
        fully_shard(model, mesh=over)
    return mesh


def samples(mode: str) -> int:
    """Into how many parts a batch is cut."""
    return {"fsdp": 2, "tp": 1, "fsdp-tp": 2, "hsdp": 4}[mode]


def share(mode: str) -> int:
    """Which of them is this rank's."""
    return dist.get_rank() // 2 if mode == "fsdp-tp" else dist.get_rank() % samples(mode)


if __name__ == "__main__":
    main()
