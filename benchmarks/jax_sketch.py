"""Sketches inside JAX's compiled functions: both engines, and what each could have been made of.

First by dtype, and of many small arrays; then ways to count exponents in XLA's own operations; then
float64 in the program beside pairs of float32. On an accelerator the same, but for the kernels.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rankscope.agent.jax.engine import kernels_for, sketch
from rankscope.agent.jax.ingraph import sketch_by_xla
from rankscope.sketch.table import BINS

Arrays = Sequence[jax.Array]
Pair = tuple[jax.Array, jax.Array]

MANY = 100
"""Arrays of the measurement of small ones."""


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of some calls, after one that warms."""
    taken: list[float] = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        jax.block_until_ready(work())
        taken.append(time.perf_counter() - begin)
    return min(taken[1:])


@jax.jit
def by_xla(x: jax.Array) -> jax.Array:
    """The sketch in XLA's own operations."""
    return sketch_by_xla(x, None)


def compare_engines(elements: int, repeats: int) -> None:
    """Print nanoseconds an element of both engines."""
    print("\n| sketch of | by default, ns an element | by XLA alone |\n|---|---|---|")
    for name in ("float32", "bfloat16", "float16", "float8_e4m3fn", "float4_e2m1fn"):
        x = jax.random.normal(jax.random.key(0), (elements,)).astype(name)
        default = jax.jit(sketch)
        with jax.enable_x64(True):
            alone = seconds(partial(by_xla, x), repeats)
        taken = seconds(partial(default, x), repeats)
        which = "" if kernels_for(x.dtype) else " (XLA)"
        cells = f"{taken / elements * 1e9:.2f}{which} | {alone / elements * 1e9:.1f}"
        print(f"| {name} | {cells} |", flush=True)


def measure_small(repeats: int) -> None:
    """Print what many small arrays take: to run, and to compile."""
    some = [jnp.ones(1000 + place) for place in range(MANY)]
    begin = time.perf_counter()
    traced = jax.jit(lambda arrays: jnp.stack([sketch(x) for x in arrays])).trace(some)
    middle = time.perf_counter()
    compiled: Any = traced.lower().compile()
    end = time.perf_counter()
    taken = seconds(partial(compiled, some), repeats) / MANY
    print(f"\n{MANY} arrays of 1000 elements: {taken * 1e6:.1f} µs each; to trace", end=" ")
    print(f"{(middle - begin) / MANY * 1e3:.1f} ms each, to compile", end=" ")
    print(f"{(end - middle) / MANY * 1e3:.1f} ms each", flush=True)


def scattered(bins: jax.Array, lanes: int) -> jax.Array:
    """Add one to each element's counter."""
    place = bins * lanes + lax.iota(jnp.int32, bins.size) % lanes
    return jnp.zeros(BINS * lanes, jnp.int32).at[place].add(1).reshape(BINS, lanes).sum(1)


def multiplied(bins: jax.Array) -> jax.Array:
    """One-hot vectors of the upper and the lower part of the bin, as a product of matrices."""
    upper = jax.nn.one_hot(bins // 16, -(-BINS // 16), dtype=jnp.bfloat16)
    lower = jax.nn.one_hot(bins % 16, 16, dtype=jnp.bfloat16)
    return jnp.matmul(upper.T, lower, preferred_element_type=jnp.float32)


def compared(bins: jax.Array) -> jax.Array:
    """Compare each element with each bin."""
    return jnp.sum(bins[:, None] == jnp.arange(BINS), axis=0, dtype=jnp.int32)


def sorted_out(bins: jax.Array) -> jax.Array:
    """Sort, and look where each bin ends."""
    return jnp.diff(jnp.searchsorted(jnp.sort(bins), jnp.arange(BINS + 1)))


def compare_histograms(elements: int, repeats: int) -> None:
    """Print nanoseconds an element of ways to count bins."""
    print("\n| histogram by | ns an element |\n|---|---|")
    bins = jnp.clip(jax.random.normal(jax.random.key(0), (elements,)) * 3 + 148, 0, 276)
    ways: Mapping[str, Callable[[jax.Array], jax.Array]] = {
        "scatter": partial(scattered, lanes=1),
        "scatter, 64 lanes": partial(scattered, lanes=64),
        "one-hot product": multiplied,
        "comparison": compared,
        "sort": sorted_out,
    }
    for name, way in ways.items():
        taken = seconds(partial(jax.jit(way), bins.astype(jnp.int32)), repeats)
        print(f"| {name} | {taken / elements * 1e9:.1f} |", flush=True)


def added(a: Pair, b: Pair) -> Pair:
    """The sum of two numbers, each the sum of two float32 (Knuth's two-sum)."""
    high = a[0] + b[0]
    part = high - a[0]
    low = (a[0] - (high - part)) + (b[0] - part) + a[1] + b[1]
    return high + low, low - ((high + low) - high)


def squared(x: jax.Array) -> Pair:
    """x² as the sum of two float32 (Dekker's product)."""
    product = x * x
    split = x * 4097.0
    upper = split - (split - x)
    lower = x - upper
    return product, ((upper * upper - product) + 2 * upper * lower) + lower * lower


def total(pair: Pair) -> Pair:
    """The sum of all pairs."""
    zero = jnp.zeros((), jnp.float32)
    return lax.reduce(pair, (zero, zero), added, (0,))


def by_pairs(x: jax.Array) -> tuple[Pair, Pair]:
    """Σx and Σ(x - mean)²."""
    whole = total((x, jnp.zeros_like(x)))
    mean = (whole[0] + whole[1]) / x.size
    high, low = squared(x - mean)
    return whole, total((high, low))


def by_float64(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same."""
    values = x.astype(jnp.float64)
    whole = values.sum()
    return whole, jnp.square(values - whole / x.size).sum()


def compare_arithmetic(elements: int, repeats: int) -> None:
    """Print errors and cost of sums in float64, and in pairs of float32."""
    print("\n| Σ and M2 in | ns an element | error of Σ | of M2, mean 100, deviation 1 |")
    print("|---|---|---|---|")
    x = jax.random.normal(jax.random.key(0), (elements,)) + 100
    exact = np.asarray(x, np.longdouble)
    sums = exact.sum(), np.square(exact - exact.mean()).sum()
    for name, way in {"float64": by_float64, "pairs of float32": by_pairs}.items():
        with jax.enable_x64(name == "float64"):
            compiled = jax.jit(way)
            taken, found = seconds(partial(compiled, x), repeats), compiled(x)
        values = [np.sum(np.asarray(one, np.longdouble)) for one in found]
        errors = [abs(float(a / b - 1)) for a, b in zip(values, sums, strict=True)]
        cells = f"{errors[0]:.0e} | {errors[1]:.0e}"
        print(f"| {name} | {taken / elements * 1e9:.2f} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}")
    compare_engines(chosen.elements, chosen.repeats)
    measure_small(chosen.repeats)
    compare_histograms(chosen.elements, chosen.repeats)
    compare_arithmetic(chosen.elements, chosen.repeats)


if __name__ == "__main__":
    main()
