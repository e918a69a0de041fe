"""The job of test_shards.py: ranks that hold pieces of one model, as a user would write them.

Usage: torchrun --nproc-per-node 2 shards_job.py RUN DIRECTORY ddp|fsdp|tp|sp|odd, of 4
ranks fsdp-tp|hsdp, of 8 hsdp-sp. The model is trained in float32, as RUN-float32, then in float64.
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
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from rankscope.agent.torch import observe

STEPS = 2
AXES = {
    "ddp": ("dp",),
    "fsdp": ("fsdp",),
    "tp": ("tp",),
    "sp": ("tp",),
    "fsdp-tp": ("fsdp", "tp"),
    "hsdp": ("replicate", "shard"),
    "hsdp-sp": ("dp", "fsdp", "tp"),
}
"""Of the mesh, by mode; each is of two ranks."""
SEQUENCE_PARALLEL = ("sp", "hsdp-sp")
"""The modes in which ranks along `tp` have parts of the sequences between the linear layers."""
QUANTITIES = {
    "up": [
        *("input_cov_spectrum", "output_cov_max_eig", "rank_me", "input_channel_mean"),
        *("weight_spectral_norm", "weight_gradient_cosine", "update_cosine"),
    ]
}

PLAN: dict[str, ParallelStyle] = {
    "tokens": RowwiseParallel(input_layouts=Replicate()),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
    "head": ColwiseParallel(output_layouts=Replicate()),
}
SEQUENCE_PLAN: dict[str, ParallelStyle] = {
    "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
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


def make_model(mode: str, dtype: torch.dtype) -> nn.Module:
    """The same on each rank and in the test; FSDP cuts 7 rows in two."""
    torch.manual_seed(0)
    return Model(7 if mode == "fsdp" else 8).to(dtype)


def batch(step: int) -> torch.Tensor:
    """The same on each rank and in the test."""
    torch.manual_seed(step)
    return torch.randint(0, 30, (4, 6))


def samples(mode: str) -> int:
    """Into how many parts a batch is cut."""
    return 2 ** sum(axis != "tp" for axis in AXES[mode])


def share(mode: str, rank: int) -> int:
    """Which of them is that rank's."""
    return rank // 2 if "tp" in AXES[mode] else rank


def train(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Forward and backward; the loss."""
    loss = model(tokens).square().mean()
    loss.backward()
    return loss


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """As in the test."""
    return torch.optim.AdamW(model.parameters())


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


def parallelised(model: nn.Module, mode: str) -> tuple[nn.Module, DeviceMesh]:
    """The model over the ranks, and their mesh."""
    axes = AXES[mode]
    mesh = init_device_mesh("cpu", (2,) * len(axes), mesh_dim_names=axes)
    if mode == "ddp":
        return DistributedDataParallel(model), mesh
    if "tp" in axes:
        plan = SEQUENCE_PLAN if mode in SEQUENCE_PARALLEL else PLAN
        parallelize_module(model, mesh["tp"], plan)
    data = tuple(axis for axis in axes if axis != "tp")
    if data:
        fully_shard(model.get_submodule("up"), mesh=mesh[data])
        fully_shard(model, mesh=mesh[data])
    return model, mesh


def run_training(run: str, directory: str, mode: str, dtype: torch.dtype) -> None:
    """A few steps."""
    model, mesh = parallelised(make_model(mode, dtype), mode)
    told = {"fsdp": 2} if mode == "fsdp" else mesh
    optimizer = make_optimizer(model)
    scope = observe(
        model,
        optimizer,
        run=run,
        directory=directory,
        mesh=told,
        schedules={"update": 1},
        quantities=QUANTITIES,
    )
    with scope:
        for step in range(STEPS):
            loss = train(model, batch(step).chunk(samples(mode))[share(mode, dist.get_rank())])
            optimizer.step()
            scope.step(loss=loss)
            optimizer.zero_grad()


def main() -> None:
    """One mode."""
    run, directory, mode = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    if mode == "odd":
        tap_odd_pieces(run, directory)
    else:
        run_training(f"{run}-float32", directory, mode, torch.float32)
        run_training(run, directory, mode, torch.float64)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
