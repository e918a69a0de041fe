"""The CPU kernels on one thread, beside one read pass of the same memory, and others.

The others are the torch fallback, and separate reductions as peers make them. Then strided tensors,
pieces of tensors, and what is counted beside the sketch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import cycle

import numpy as np
import torch

from rankscope.agent.kernel import DTYPES, count, cut, sketch_items
from rankscope.agent.reading import Reading
from rankscope.agent.strides import region_of, runs_of
from rankscope.agent.torch.arithmetic import Arithmetic, merge_rows
from rankscope.sketch import BlockExponents, CastCounts, FineExponents


def best(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of some calls, after one that warms."""
    work()
    taken: list[float] = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def in_turn(works: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """Each call does the next of some works."""
    turn = cycle(works)
    return lambda: next(turn)()


def items_of(
    tensors: list[torch.Tensor], *, sentinel: bool = False
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The work items of contiguous tensors."""
    return np.array(
        [
            item
            for tensor in tensors
            for item in cut(
                tensor.data_ptr(),
                tensor.numel(),
                DTYPES.index(str(tensor.dtype)[6:]),
                sentinel=sentinel,
            )
        ],
        np.int64,
    )


def by_torch(fallback: Arithmetic, tensors: list[torch.Tensor]) -> None:
    """The fallback, as an agent uses it."""
    all_of = Reading()
    pairs = enumerate(tensors)
    leaves = [(owner, leaf) for owner, x in pairs for leaf in fallback.sketch(x, all_of)]
    merge_rows([owner for owner, _ in leaves], [leaf for _, leaf in leaves])


def separate_reductions(tensor: torch.Tensor) -> None:
    """What peers do: one pass and one read a statistic, and a histogram of frexp's exponent."""
    magnitude = tensor.abs()
    numbers = (tensor.mean(), tensor.std(), magnitude.mean(), magnitude.max(), magnitude.min())
    rms = tensor.pow(2).mean().sqrt()
    for power in (4, 8):
        (magnitude / rms).pow(power).mean().item()
    for number in numbers:
        number.item()
    exponent = torch.frexp(tensor).exponent.to(tensor.dtype)
    torch.histc(exponent, bins=35, min=-17, max=17)


def sketch_copy(tensor: torch.Tensor) -> None:
    """Sketch a contiguous copy."""
    copy = tensor.contiguous()
    sketch_items(items_of([copy]))


def compare_strided(repeats: int) -> None:
    """Print what strided tensors take, beside a contiguous copy made first."""
    print("\n| strided float32 | ns an element | contiguous copy first / ours |\n|---|---|---|")
    whole = torch.randn(4096, 4096)
    for name, x in {"x[:, :2048]": whole[:, :2048], "x[:, ::2]": whole[:, ::2]}.items():
        runs = runs_of(x.shape, x.stride())
        assert runs is not None
        pieces = np.array(cut(x.data_ptr(), x.numel(), 0, runs=runs), np.int64)
        ours = best(lambda i=pieces: sketch_items(i), repeats)
        copied = best(lambda x=x: sketch_copy(x), repeats)
        print(f"| {name} | {ours / x.numel() * 1e9:.2f} | {copied / ours:.2f} |", flush=True)


def compare_pieces(repeats: int) -> None:
    """Print what a piece of a whole tensor takes, as a rank holds it, beside a whole like it."""
    print("\n| piece of a whole | float32, beside a whole | bfloat16 |\n|---|---|---|")
    pieces = {
        "rows, from a multiple of 8192": ((2048, 2048), (2048, 0), (4096, 2048)),
        "rows, from elsewhere": ((2048, 2048), (2049, 0), (5000, 2048)),
        "1024 columns": ((4096, 1024), (0, 1024), (4096, 2048)),
        "16 columns": ((1 << 18, 16), (0, 16), (1 << 18, 32)),
    }
    for name, (sizes, offsets, whole) in pieces.items():
        cells: list[str] = []
        for code in (DTYPES.index("float32"), DTYPES.index("bfloat16")):
            x = torch.randn(sizes).to(getattr(torch, DTYPES[code]))
            region = region_of(sizes, offsets, whole)
            both = (
                np.array(cut(x.data_ptr(), x.numel(), code, region=one), np.int64)
                for one in (region, None)
            )
            mine, plain = (best(lambda i=items: sketch_items(i), repeats) for items in both)
            cells.append(f"{mine / plain:.2f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def compare_counted(large: torch.Tensor, repeats: int) -> None:
    """Print what counting beside a sketch takes."""
    print("\n| counted beside | ns an element, float32 | bfloat16 |\n|---|---|---|")
    exact_counts = (
        FineExponents(),
        BlockExponents(),
        BlockExponents(columns=16, scale="amax"),
        BlockExponents(rows=128, columns=128, scale="amax"),
        CastCounts("float8_e4m3fn"),
    )
    columns = 1000
    matrix = large[: len(large) // columns * columns].view(-1, columns)
    for exact_count in exact_counts:
        cells: list[str] = []
        for x, code in ((matrix, DTYPES.index("float32")), (matrix.bfloat16(), 1)):
            seconds = best(
                lambda x=x, q=exact_count, c=code: count(q, x.data_ptr(), x.shape, c), repeats
            )
            cells.append(f"{seconds / x.numel() * 1e9:.2f}")
        print(f"| {exact_count.name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print one row a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--copies",
        type=int,
        default=4,
        help="of each tensor; they are read in turn, so that none is found in a cache",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    large = torch.randn(options.elements)
    cases = {
        "float32, normal": [large],
        "float32, ReLU": [large.relu()],
        "float32, constant": [torch.ones(options.elements)],
        "bfloat16": [large.bfloat16()],
        "float16": [large.half()],
        "float8_e4m3fn": [large.to(torch.float8_e4m3fn)],
        "float64": [large.double()],
        "300 x 65,536 float32": [torch.randn(65536) for _ in range(300)],
        "300 x 1,000 float32": [torch.randn(1000) for _ in range(300)],
    }
    fallback = Arithmetic(torch.device("cpu"))
    print(
        "| case | ns an element | x one read pass | sentinel x read pass | fallback / ours "
        "| separate reductions / ours |"
    )
    print("|---|---|---|---|---|---|")
    for name, tensors in cases.items():
        copies = [[tensor.clone() for tensor in tensors] for _ in range(options.copies)]
        items = [items_of(copy) for copy in copies]
        glances = [items_of(copy, sentinel=True) for copy in copies]
        words = [[one.view(torch.uint8).view(torch.int64) for one in copy] for copy in copies]
        calls = options.repeats * options.copies
        ours = best(in_turn([lambda i=i: sketch_items(i) for i in items]), calls)
        read = best(in_turn([lambda w=w: [x.sum() for x in w] for w in words]), calls)
        seen = best(in_turn([lambda i=i: sketch_items(i) for i in glances]), calls)
        ratio = ""
        if tensors[0].dtype == torch.float32:
            theirs = best(lambda t=tensors: [separate_reductions(x) for x in t], 1)
            ratio = f"{theirs / ours:.0f}"
        elements = sum(tensor.numel() for tensor in tensors)
        slow = best(lambda t=tensors: by_torch(fallback, t), 1)
        print(
            f"| {name} | {ours / elements * 1e9:.2f} | {ours / read:.1f} | {seen / read:.1f} "
            f"| {slow / ours:.0f} | {ratio} |",
            flush=True,
        )
    compare_strided(options.repeats)
    compare_pieces(options.repeats)
    compare_counted(large, options.repeats)


if __name__ == "__main__":
    main()
