"""A table of all statistics of all parameters, beside the same as nnstat computes it.

nnstat makes each statistic by a pass of its own and reads it back, skewness and kurtosis by scipy
on the host. Its arithmetic is written out here; scipy's, too, for where it is not installed, which
takes half the time of its real functions. Both make a pandas table of the same columns of the same
tensors, in turn, in one process.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).parent))
from gpt import SMALL, Gpt

from rankscope.agent.torch.tensors import NamedTensors, compute_stats, weights

SCIPY: Any = import_module("scipy.stats") if find_spec("scipy") else None


def moment(x: np.ndarray, mean: np.floating, order: int) -> np.floating:
    """As scipy.stats: it looks for lost precision, and takes powers by squaring, in x's dtype."""
    centred = x - mean
    _ = np.max(np.abs(centred)) / np.abs(mean)
    powers = centred.copy() if order % 2 else centred**2
    if order > 2:
        powers = powers**2
    if order % 2:
        powers *= centred
    return powers.mean()


def standardised(tensor: torch.Tensor, order: int) -> np.floating:
    """scipy.stats.skew or kurtosis, which looks for NaN first."""
    x = tensor.cpu().numpy()
    if SCIPY is not None:
        return (SCIPY.skew if order == 3 else SCIPY.kurtosis)(x, axis=None)
    x = x.ravel()
    np.isnan(np.max(x))
    mean = x.mean()
    return moment(x, mean, order) / moment(x, mean, 2) ** (order / 2) - 3 * (order == 4)


REDUCTIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "shape": lambda x: tuple(x.shape),
    "num_params": lambda x: x.numel(),
    "L1_norm": lambda x: x.norm(1).item(),
    "L2_norm": lambda x: x.norm(2).item(),
    "L2_squared": lambda x: x.norm(2).item() ** 2,
    "max": lambda x: x.max().item(),
    "min": lambda x: x.min().item(),
    "abs_mean": lambda x: x.norm(1).item() / x.numel(),
    "abs_max": lambda x: x.abs().max().item(),
    "abs_min": lambda x: x.abs().min().item(),
    "mean": lambda x: x.mean().item(),
    "variance": lambda x: x.var().item(),
    "std": lambda x: x.std().item(),
    "skew": lambda x: standardised(x, 3),
    "kurtosis": lambda x: standardised(x, 4),
    "sq_mean": lambda x: (x**2).mean().item(),
    "sq_mean_std": lambda x: (x**2).mean().sqrt().item(),
}
"""nnstat's columns, each as it computes it."""


def nnstat(tensors: NamedTensors) -> pd.DataFrame:
    """Its table: a row a tensor."""
    with np.errstate(all="ignore"), warnings.catch_warnings():  # of equal elements, NaN
        warnings.simplefilter("ignore")
        rows = {
            name: {column: reduction(tensor) for column, reduction in REDUCTIONS.items()}
            for name, tensor in tensors.items()
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def nnstat_whole(tensors: NamedTensors) -> pd.DataFrame:
    """Its table of all parameters together, for which it makes one long copy of them."""
    flat = torch.cat([tensor.flatten() for tensor in tensors.values()])
    return nnstat(NamedTensors({"whole": flat}))


def in_turn(work: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each, one after the other, so many times, after a call of each that warms."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(-1, repeats):
        for name, call in work.items():
            begin = time.perf_counter()
            call()
            if turn >= 0:
                taken[name].append(time.perf_counter() - begin)
    return taken


def main() -> None:
    """Print a row for what is in the table, and how many threads torch has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = Gpt(SMALL)
    taken = weights(model)
    ours, theirs = taken.describe("all"), nnstat(taken)
    numbers = list(theirs.columns.drop("shape"))
    apart = np.abs(ours[numbers] - theirs[numbers].astype(float)) / (1e-3 + np.abs(ours[numbers]))
    print(f"scipy {'is' if SCIPY else 'is not'} installed")
    print(f"{taken}; largest relative difference where it is defined {np.nanmax(apart):.1e}\n")
    print("| table | threads | nnstat ms | ours ms | nnstat / ours, median of pairs |")
    print("|---|---|---|---|---|")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for table, work in {
            "a row a tensor": {
                "theirs": lambda: nnstat(taken),
                "ours": lambda: taken.describe("all"),
            },
            "the whole": {
                "theirs": lambda: nnstat_whole(taken),
                "ours": lambda: taken.describe("all", by="whole"),
            },
            "a row a tensor, with the snapshot": {
                "theirs": lambda: nnstat(weights(model)),
                "ours": lambda: weights(model).describe("all"),
            },
            "compute_stats, a row a tensor": {
                "theirs": lambda: nnstat(weights(model)),
                "ours": lambda: compute_stats(model, by="tensor"),
            },
        }.items():
            seconds = in_turn(work, arguments.repeats)
            ratio = statistics.median(
                one / other for one, other in zip(seconds["theirs"], seconds["ours"], strict=True)
            )
            cells = (f"{statistics.median(seconds[who]) * 1e3:.1f}" for who in ("theirs", "ours"))
            print(f"| {table} | {threads} | {' | '.join(cells)} | {ratio:.1f} |", flush=True)


if __name__ == "__main__":
    main()
