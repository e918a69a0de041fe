"""How often the noise scale of the known problem is within two of its standard errors.

The gradient of a sample is N(0.1, I) in 50 dimensions: |G|² is 0.5, tr(Σ) 50, the noise scale 100.
Batches are drawn and their backwards run, as for any model.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Literal

import torch

from rankscope.agent.toolkit import NoiseScale
from rankscope.agent.torch.tensors import noise_scale

RIGHT, BATCH = 100.0, 8


class Known(torch.nn.Module):
    """A loss that is linear in 50 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(50))

    def closure(self, seed: int, reduction: str) -> Callable[[], None]:
        """Draws eight new samples at each call."""
        generator = torch.Generator().manual_seed(seed)

        def draw() -> None:
            losses = (0.1 + torch.randn(BATCH, 50, generator=generator)) @ self.w
            (losses.mean() if reduction == "mean" else losses.sum()).backward()

        return draw


def row(sizes: tuple[int, ...], reduction: Literal["mean", "sum"], seeds: int) -> None:
    """Print what came out for so many seeds."""
    model = Known()
    found: list[NoiseScale] = [
        noise_scale(
            model,
            model.closure(seed, reduction),
            batch_size=BATCH,
            reduction=reduction,
            sizes=sizes,
        )
        for seed in range(seeds)
    ]
    within = [abs(one.b_noise - RIGHT) < 2 * one.b_noise_error for one in found]
    values = [one.b_noise for one in found]
    error = statistics.mean(one.b_noise_error for one in found)
    print(
        f"| {', '.join(map(str, sizes))} | {reduction} | {sum(within[:20])} of 20 | "
        f"{sum(within) / seeds:.1%} | {statistics.mean(values):.1f} | "
        f"{statistics.stdev(values):.2f} | {error:.2f} | "
        f"{statistics.mean(one.g_2 for one in found):.4f} | "
        f"{statistics.mean(one.trace_sigma for one in found):.2f} |",
        flush=True,
    )


def main() -> None:
    """Print a row for two sizes, and for more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=400)
    seeds = parser.parse_args().seeds
    print(
        f"| sizes, in calls of {BATCH} | loss | first seeds within 2 errors | all {seeds} | mean | "
        "spread | mean error | G² | trace |\n|---|---|---|---|---|---|---|---|---|"
    )
    for sizes in ((1, 32), (1, 2, 4, 8, 16, 32)):
        for reduction in ("mean", "sum"):
            row(sizes, reduction, seeds)


if __name__ == "__main__":
    main()
