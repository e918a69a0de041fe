"""A job of test_parts.py: each stage of a pipeline has its layers in a module of the same name.

Usage: torchrun --nproc-per-node 2 containers_job.py RUN DIRECTORY.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from rankscope.agent.torch import observe

SAMPLES, WIDTH = 4, 8


class Trunk(nn.Module):
    """The layers of one stage, by their number in the whole."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(stage): nn.Linear(WIDTH, WIDTH)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer after the other."""
        for layer in self.layers.values():
            x = layer(x)
        return x


def main() -> None:
    """One step."""
    run, directory = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = nn.Sequential()
    model.add_module("model", Trunk(rank))
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda made, wanted: (made - wanted).square().mean())
    with observe(model, run=run, directory=directory, mesh=mesh) as scope:
        if rank == 0:
            schedule.step(torch.randn(SAMPLES, WIDTH))
        else:
            schedule.step(target=torch.zeros(SAMPLES, WIDTH))
        scope.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
