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
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from jax_gpt import Job

from rankscope.agent.jax import observe

BLOCK = 10
"""Steps of a block."""
NEVER = 10**9
"""Distance of steps in which something is due, so that nothing is."""


@dataclass(frozen=True, slots=True)
class Block:
    """What a block of steps took."""

    seconds: float
    cpu_seconds: float
    """Of all threads of this process: the agent's, too, but not the collector."""
    losses: list[float]

    @classmethod
    def of(cls, job: Job) -> Block:
        """Run one."""
        begin, cpu = time.perf_counter(), time.process_time()
        losses = [job.step() for _ in range(BLOCK)]
        return cls(time.perf_counter() - begin, time.process_time() - cpu, losses)


def measure(every: int, blocks: int, *, in_program: bool) -> None:
    """Print one row."""
    bare = Job(None)
    pairs = list[tuple[Block, Block]]()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        observe(run="overhead", directory=directory, every=every, in_program=in_program) as scope,
    ):
        watched = Job(scope)
        for _ in range(1 + blocks):
            plain, observed = Block.of(bare), Block.of(watched)
            assert plain.losses == observed.losses, f"{plain.losses} != {observed.losses}"
            pairs.append((plain, observed))
        sent = scope.statistics()
    del pairs[0]  # it was compiled
    ratio = statistics.median(b.seconds / a.seconds for a, b in pairs)
    cpu = statistics.median(b.cpu_seconds / a.cpu_seconds for a, b in pairs)
    bare_ms, observed_ms = (
        statistics.median(pair[place].seconds for pair in pairs) / BLOCK * 1e3 for place in (0, 1)
    )
    print(
        f"| {'never' if every == NEVER else every} | {'program' if in_program else 'host'} | "
        f"{bare_ms:.0f} | {observed_ms:.0f} | {ratio:.3f} | {cpu:.3f} | "
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
        "| every | sketched in | bare ms | observed ms | median of pairs | of CPU time | frames | "
        "dropped |\n" + 8 * "|---" + "|"
    )
    for every in options.every:
        measure(every, options.blocks, in_program=options.in_program)


if __name__ == "__main__":
    main()
