"""The kernels of an accelerator beside one read pass of the same memory.

`separate` reads tensors one by one, as activations come; `together` all of them in few launches, as
weights, gradients and optimizer state are read. Times are between events on the device, from the
first launch to the end of the copy home; of a kernel `alone` without merges and copy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import lru_cache

import torch

from rankscope.agent.reading import Reading
from rankscope.agent.steptable import StepRing
from rankscope.agent.torch.arithmetic import Plain, columns_of, row_words
from rankscope.agent.torch.device import Copy, DeviceMeter, Engine
from rankscope.agent.torch.found import Found
from rankscope.agent.torch.fused import Chunks, Fused, Kernels
from rankscope.agent.torch.meters import KERNELS, NotHereError
from rankscope.agent.torch.tables import chunks_of


def best(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of some calls, after one that compiles."""
    taken: list[float] = []
    for _ in range(repeats + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3)
    return min(taken[1:])


def a_step(
    engine: Engine, device: torch.device, how: Reading, *, together: bool
) -> Callable[..., None]:
    """What an agent does with the tensors of a step."""
    meter, step = DeviceMeter(device, engine), StepRing().take(0)
    assert step is not None
    on_their_way: list[Copy] = []

    @lru_cache(maxsize=1)
    def prepared(*tensors: torch.Tensor) -> Callable[..., None]:
        return meter.prepare([Found.of(row, how, one, one, one) for row, one in enumerate(tensors)])

    def run(tensors: list[torch.Tensor]) -> None:
        while on_their_way:  # of the call before, which has ended
            meter.receive(on_their_way.pop(), step)
        if together:
            prepared(*tensors)(step, tensors)
        else:
            for row, tensor in enumerate(tensors):
                meter.add(step, row, tensor, how)
        copy = meter.send_home()
        assert copy is not None, "a step was dropped"
        on_their_way.append(copy)

    return run


def alone(kernels: Kernels, device: torch.device) -> Callable[..., None]:
    """The launches of a kernel, each into the same leaves."""
    most = 1024
    leaves = columns_of(torch.zeros(most * row_words(), dtype=torch.int64, device=device), most)

    def run(tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            chunks = min(kernels.leaves_of(tensor.dtype, Reading()), most)
            size, number = chunks_of(tensor.numel(), chunks)
            kernels.read(Chunks(number, tensor, Reading(), None, size, 0), leaves)

    return run


def ways_to_read(device: torch.device) -> dict[str, Callable[..., None]]:
    """All kernels that run here, in each way that the agent uses them, and plain torch."""
    ways = {
        "separate": (Reading(), False),
        "together": (Reading(), True),
        "sentinel": (Reading(sentinel=True), True),
    }
    steps: dict[str, Callable[..., None]] = {}
    for name, make in KERNELS.items():
        try:
            kernels = make(device)
        except NotHereError as error:
            print(f"{name}: {error}")
            continue
        engine = Fused(device, lambda _, kernels=kernels: kernels)
        steps[f"{name}, alone"] = alone(kernels, device)
        for way, (how, together) in ways.items():
            steps[f"{name}, {way}"] = a_step(engine, device, how, together=together)
    steps["plain torch"] = a_step(Plain(device), device, Reading(), together=False)
    return steps


def main() -> None:
    """Print one row a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1_000_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="ways whose names begin so, as 'CUDA C'")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("There is no GPU here, and nothing is measured.")
    device = torch.device("cuda")
    torch.manual_seed(0)
    large = torch.randn(options.elements, device=device)
    cases = {
        "float32, normal": [large],
        "float32, ReLU": [large.relu()],
        "float32, constant": [torch.ones_like(large)],
        "bfloat16, normal": [large.bfloat16()],
        "bfloat16, ReLU": [large.relu().bfloat16()],
        "bfloat16, constant": [torch.ones_like(large).bfloat16()],
        "float8_e4m3fn": [large.to(torch.float8_e4m3fn)],
        "500 x 1,000 float32": [torch.randn(1000, device=device) for _ in range(500)],
        "100 x 1,048,576 bfloat16": [
            torch.randn(1 << 20, device=device).bfloat16() for _ in range(100)
        ],
        "64 x 16 MiB float32": list(torch.randn(64, 1 << 22, device=device)),
        "64 x 16 MiB bfloat16": list(torch.randn(64, 1 << 23, device=device).bfloat16()),
    }
    steps = {
        name: run for name, run in ways_to_read(device).items() if name.startswith(options.only)
    }
    print(torch.cuda.get_device_name(device))
    print(f"| case | read pass ms | {' | '.join(steps)} |")
    print("|---|---|" + "---|" * len(steps))
    for name, tensors in cases.items():
        words = [tensor.view(torch.uint8).view(torch.int64) for tensor in tensors]
        read = best(lambda w=words: [word.sum() for word in w], options.repeats)
        ratios = [
            best(lambda t=tensors, run=run: run(t), options.repeats) / read
            for run in steps.values()
        ]
        row = " | ".join(f"{ratio:.2f} x" for ratio in ratios)
        print(f"| {name} | {read * 1e3:.2f} | {row} |", flush=True)


if __name__ == "__main__":
    main()
