"""The job of test_deepspeed.py: a model under ZeRO, bare and observed.

Usage: torchrun --nproc-per-node 2 deepspeed_job.py RUN DIRECTORY STAGE. What weights are before
each step, and the losses, are left in the directory.
"""

import os
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

os.environ["DS_ACCELERATOR"] = "cpu"
warnings.simplefilter("ignore")  # DeepSpeed's, of what torch has deprecated
import deepspeed  # noqa: E402  # pyright: ignore[reportMissingImports]

from rankscope.agent.torch import observe  # noqa: E402

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
STEPS, WIDTH, SAMPLES, PARTS = 3, 15, 8, 2


def engine_of(stage: int) -> Any:
    """The same model each time; its weights do not divide evenly over the ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 31), nn.ReLU(), nn.Linear(31, 1))
    zero = {"stage": stage, "stage3_param_persistence_threshold": 20}
    config = {
        "train_micro_batch_size_per_gpu": SAMPLES,
        "gradient_accumulation_steps": PARTS,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def weights_of(engine: Any) -> dict[str, torch.Tensor]:
    """Whole ones."""
    named = dict(engine.module.named_parameters())
    in_pieces = any(hasattr(one, "ds_tensor") for one in named.values())
    with deepspeed.zero.GatheredParameters(list(named.values())) if in_pieces else nullcontext():
        return {name: one.detach().clone() for name, one in named.items()}


def train(engine: Any, scope: Any) -> tuple[list[float], list[dict[str, torch.Tensor]]]:
    """The loss of each micro-batch, and the weights before each step."""
    torch.manual_seed(dist.get_rank())
    losses, weights = list[float](), [weights_of(engine)]
    while len(weights) <= STEPS:
        loss = engine(torch.randn(SAMPLES, WIDTH).bfloat16()).float().square().mean()
        losses.append(loss.item())
        engine.backward(loss)
        is_last = engine.is_gradient_accumulation_boundary()
        engine.step()
        if is_last:
            weights.append(weights_of(engine))
            if scope is not None:
                scope.step(loss=loss)
    return losses, weights


def main() -> None:
    """Bare, then observed."""
    run, directory, stage = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", verbose=False)
    bare, _ = train(engine_of(stage), None)
    engine = engine_of(stage)
    with observe(engine, run=run, directory=directory) as scope:
        observed, weights = train(engine, scope)
    if dist.get_rank() == 0:
        torch.save((bare, observed, weights), Path(directory, f"{run}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
