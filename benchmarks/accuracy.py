"""How far each kernel is from the right answer on hard inputs, beside torch's own operations.

The right answer is computed in extended precision (80 bits) over the finite elements. Errors are
relative: of a sum to Σ|x|, of all else to the value itself. Torch's operations run in the tensor's
dtype, as a tool does that calls `x.std()`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from rankscope.agent.kernel import DTYPES, absorb, cut, sketch_items
from rankscope.agent.reading import Reading
from rankscope.agent.torch.arithmetic import Arithmetic, merge_rows
from rankscope.sketch import SketchTable, derive, sketch_array

STATISTICS = ("mean", "std", "rms", "rm8", "skewness", "kurtosis")

Array = NDArray[np.generic]


def inputs(n: int) -> dict[str, Array]:
    """Inputs by name."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(n)
    broken = normal.astype(np.float32)
    broken[::100], broken[1::100] = np.nan, np.inf
    exact = {
        "normal": normal,
        "mean 1e3, std 1": normal + 1e3,
        "mean 1e5, std 1": normal + 1e5,
        "1 and 1e-6 around it": normal * 1e-6 + 1,
        "normal x 1e20": normal * 1e20,
        "normal x 1e-25": normal * 1e-25,
        "lognormal, 40 binades": np.exp(normal * 4),
        "1e20, 1 and -1e20": np.tile([1e20, 1.0, -1e20, 1.0], n // 4),
    }
    narrow = {
        "float16, std 300": (normal * 300).astype(np.float16),
        "float16, std 1e-5": (normal * 1e-5).astype(np.float16),
        "bfloat16, mean 1": (normal + 1).astype(ml_dtypes.bfloat16),
        "float8_e4m3fn": normal.astype(ml_dtypes.float8_e4m3fn),
    }
    wide = {name: values.astype(np.float32) for name, values in exact.items()}
    return {**wide, **narrow, "2 % NaN and infinity": broken}


def right(x: Array) -> dict[str, float]:
    """The statistics in extended precision."""
    values = x.astype(np.longdouble)
    values = values[np.isfinite(values)]
    n, mean = len(values), values.mean()
    d = values - mean
    m2, m3, m4 = (d**2).sum(), (d**3).sum(), (d**4).sum()
    top = np.abs(values).max()
    eighth = np.mean((values / top) ** 8) ** np.longdouble(0.125) * top
    answers = {
        "mean": mean,
        "std": np.sqrt(m2 / (n - 1)),
        "rms": np.sqrt(np.mean((values / top) ** 2)) * top,
        "rm8": eighth,
        "skewness": np.sqrt(np.longdouble(n)) * m3 / m2 ** np.longdouble(1.5),
        "kurtosis": n * m4 / m2**2 - 3,
    }
    return {name: float(answer) for name, answer in answers.items()}


def by_numba(x: Array) -> SketchTable:
    """The CPU kernel."""
    items = np.array(cut(x.ctypes.data, x.size, DTYPES.index(x.dtype.name)), np.int64)
    leaf, table = sketch_items(items), SketchTable.empty(1)
    absorb(table, np.zeros(len(leaf), np.int64), leaf, np.ones(len(leaf), np.bool_))
    return table


def tensor_of(x: Array) -> torch.Tensor:
    """The same bits as a tensor."""
    raw = torch.from_numpy(x.view(f"i{x.dtype.itemsize}"))
    return raw.view(getattr(torch, x.dtype.name))


def by_torch(x: Array) -> SketchTable:
    """The fallback."""
    leaves = list(Arithmetic(torch.device("cpu")).sketch(tensor_of(x), Reading()))
    _, columns = merge_rows([0] * len(leaves), leaves)
    counts, moments, checksum, histogram = (column.numpy() for column in columns)
    return SketchTable(counts, moments, checksum.view(np.uint64), histogram)


def naive(x: Array) -> dict[str, float]:
    """Torch's operations in the tensor's dtype, without regard to what is not finite."""
    t = tensor_of(x)
    if t.element_size() == 1:
        return dict.fromkeys(STATISTICS, float("nan"))
    mean, std = t.mean(), t.std()
    z = (t - mean) / std
    return {
        "mean": mean.item(),
        "std": std.item(),
        "rms": t.square().mean().sqrt().item(),
        "rm8": t.pow(8).mean().pow(0.125).item(),
        "skewness": z.pow(3).mean().item(),
        "kurtosis": z.pow(4).mean().item() - 3,
    }


def errors(x: Array, found: dict[str, float], exact: dict[str, float]) -> dict[str, float]:
    """Of each statistic."""
    values = x.astype(np.float64)
    scale = {name: abs(answer) for name, answer in exact.items()}
    scale["mean"] = float(np.abs(values[np.isfinite(values)]).mean())
    # A skewness of zero has no relative error.
    scale["skewness"] = scale["kurtosis"] = max(scale["kurtosis"], 1.0)
    return {name: abs(found[name] - exact[name]) / scale[name] for name in STATISTICS}


def main() -> None:
    """Print the largest error of each kernel over all statistics, and the statistic it is of."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1_000_000)
    options = parser.parse_args()
    kernels: dict[str, Callable[[Array], SketchTable]] = {
        "NumPy": sketch_array,
        "numba": by_numba,
        "torch fallback": by_torch,
    }
    print(f"| input, {options.elements:,} elements | {' | '.join(kernels)} | torch's operations |")
    print("|---|---|---|---|---|")
    for name, x in inputs(options.elements).items():
        exact = right(x)
        cells: list[str] = []
        for kernel in kernels.values():
            table = kernel(x)
            found = {statistic: float(derive(table, statistic)[0]) for statistic in STATISTICS}
            cells.append(worst(errors(x, found, exact)))
        with np.errstate(all="ignore"):
            cells.append(worst(errors(x, naive(x), exact)))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def worst(error: dict[str, float]) -> str:
    """The largest error and its statistic; one that is not a number is larger than all."""
    name = max(error, key=lambda statistic: np.nan_to_num(error[statistic], nan=np.inf))
    return f"{error[name]:.0e} {name}" if np.isfinite(error[name]) else f"none {name}"


if __name__ == "__main__":
    main()
