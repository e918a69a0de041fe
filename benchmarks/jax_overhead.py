"""What observing costs a training step under JAX: bare and observed blocks of steps in turn.

Blocks, for what an observed step leaves to the agent's thread is read while the next one runs, and
must not be paid for by a bare one. Both jobs start from the same seed, in one process, and must
give the same losses. The embedded collector runs on the same cores, as it does for a user.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from jax_gpt import Job

from rankscope.agent.jax import observe

BLOCK = 10
"""Steps of a block."""
NEVER = 10**9
"""Distance of steps in which something is due, so that nothing is."""


def seconds_of(job: Job) -> tuple[float, list[float]]:
    """Seconds and losses of a block of steps."""
    begin = time.perf_counter()
    losses = [job.step() for _ in range(BLOCK)]
    return time.perf_counter() - begin, losses


def measure(every: int, blocks: int, *, in_program: bool) -> None:
    """Print one row."""
    bare = Job(None)
    plain, observed = list[float](), list[float]()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        observe(run="overhead", directory=directory, every=every, in_program=in_program) as scope,
    ):
        watched = Job(scope)
        for _ in range(1 + blocks):
            seconds, losses = seconds_of(bare)
            plain.append(seconds)
            seconds, same = seconds_of(watched)
            observed.append(seconds)
            assert losses == same, f"the losses differ: {losses!r} {same!r}"
        sent = scope.statistics()
    plain, observed = plain[1:], observed[1:]  # the first block compiles
    ratio = statistics.median(a / b for a, b in zip(observed, plain, strict=True))
    mean = statistics.fmean(observed) / statistics.fmean(plain)
    due = "never" if every == NEVER else every
    print(
        f"| {due} | {statistics.median(plain) / BLOCK * 1e3:.0f} | "
        f"{statistics.median(observed) / BLOCK * 1e3:.0f} | {ratio:.3f} | {mean:.3f} | "
        f"{sent.sent} | {sent.dropped_frames} |",
        flush=True,
    )


def main() -> None:
    """All rows, or those asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10, help=f"of {BLOCK} steps each")
    parser.add_argument("--every", type=int, nargs="*", default=[1, 10, NEVER])
    parser.add_argument("--in-program", action="store_true", help="as on accelerators")
    options = parser.parse_args()
    print(
        "| every | bare ms | observed ms | median of pairs | ratio of means | frames | dropped |\n"
        + 7 * "|---"
        + "|"
    )
    for every in options.every:
        measure(every, options.blocks, in_program=options.in_program)


if __name__ == "__main__":
    main()
