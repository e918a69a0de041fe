"""A job of many ranks on one machine: frames a second to the store, memory, and lag.

Ranks are simulated, relays and collector are real processes: real agents' outboxes, 64 of them in
a process, send the same 500 sketches under their own names over TCP, each as fast as what is
durable lets it. Above 64 ranks they send through relays that merge, one for each 64 ranks. Half of
the sites are activations, each rank's own samples; half are weights, of which every rank holds a
copy. `lag` is the time from the last frame that was sent to the moment when all is durable.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.agent import Outbox
from rankscope.merge import (
    Contribution,
    Layout,
    Topology,
    groups_of,
    join,
    lay_out,
    merge_contributions,
)
from rankscope.merge.plan import Plans
from rankscope.sketch import SketchTable, sketch_array
from rankscope.store import open_run
from rankscope.wire import (
    PROTOCOL,
    Frame,
    Hello,
    JoinedMember,
    MeshAxis,
    Site,
    decode,
    encode_frame,
    make_schema,
    open_frame,
    open_joined,
    pack_frame,
)

RANKS_A_RELAY = 64
RELAYS_A_RELAY = 16
"""Where there are two levels of them."""
PENDING = 4
"""Frames that each rank has under way."""


def the_sites(sites: int) -> list[Site]:
    """Half of them cut over ranks, half copied."""
    return [
        Site(kind="activation", name=f"layers.{place}", placement={"dp": "shard"})
        if place < sites // 2
        else Site(kind="weight", name=f"layers.{place}.weight")
        for place in range(sites)
    ]


def tables(sites: int) -> SketchTable:
    """Sketches whose histograms fill about ten bins each, at different magnitudes."""
    rng = np.random.default_rng(0)
    scales = 2.0 ** rng.integers(-20, 8, sites)
    return SketchTable.concatenate(
        [sketch_array((rng.standard_normal(256) * scale).astype(np.float32)) for scale in scales]
    )


def outbox(address: str, rank: int, ranks: int, sites: int) -> Outbox:
    """One rank."""
    hello = Hello(
        protocol_min=PROTOCOL,
        protocol_max=PROTOCOL,
        run="bench",
        launch="L",
        stream=f"s{rank}",
        rank=rank,
        world_size=ranks,
        mesh=[MeshAxis(name="dp", size=ranks, coordinate=rank)],
        host=f"node-{rank // 8}",
    )
    box = Outbox(address, hello, window_bytes=64 << 20)
    box.set_sites(the_sites(sites))
    return box


def feed(own: range, ranks: int, sites: int, steps: int, address: str, gates: Any) -> None:
    """Send so many steps for these ranks, then wait until all is durable."""
    ready, start, results = gates
    boxes = [outbox(address, rank, ranks, sites) for rank in own]
    table, rows = tables(sites), np.arange(sites, dtype=np.uint32)
    while not all(box.statistics().connected for box in boxes):
        for box in boxes:
            box.poll(time.monotonic())
        time.sleep(0.01)
    ready.release()
    start.wait()
    for step in range(steps):
        frame = Frame(step=step, time_ns=time.time_ns(), sites=rows, table=table)
        packed = pack_frame(frame)
        for box in boxes:
            box.send(packed)
        while any(box.statistics().pending_frames >= PENDING for box in boxes):
            for box in boxes:
                box.poll(time.monotonic())
            time.sleep(0.01)
    last = time.monotonic()
    while any(box.statistics().pending_frames for box in boxes):
        for box in boxes:
            box.poll(time.monotonic())
        time.sleep(0.01)
    durable = time.monotonic()
    dropped = sum(box.statistics().dropped_frames for box in boxes)
    for box in boxes:
        box.close(timeout_s=0.0)
    results.put((last, durable, dropped))


def started(*arguments: str) -> tuple[subprocess.Popen[bytes], str]:
    """A process of the command line, and where it listens."""
    command = [sys.executable, "-m", "rankscope", *arguments, "--announce"]
    process = subprocess.Popen(
        [*command, "--bind", "tcp://127.0.0.1:*"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["address"]


def usage(process: int) -> tuple[float, float]:
    """CPU seconds, and the most MiB that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    [peak] = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return ticks / os.sysconf("SC_CLK_TCK"), peak / 2**10


def measure(ranks: int, sites: int, steps: int, folder: str) -> str:
    """One row."""
    collector, root = started("collect", "--store", folder)
    number = ranks // RANKS_A_RELAY if ranks > RANKS_A_RELAY else 0
    relays = [started("relay", "--to", root, "--merge") for _ in range(number)]
    ways = [address for _, address in relays] or [root]
    share = ranks // len(ways)
    spawn = multiprocessing.get_context("spawn")
    gates = spawn.Semaphore(0), spawn.Event(), spawn.Queue()
    feeders = [
        spawn.Process(
            target=feed,
            args=(range(place * share, (place + 1) * share), ranks, sites, steps, way, gates),
        )
        for place, way in enumerate(ways)
    ]
    for feeder in feeders:
        feeder.start()
    for _ in feeders:
        gates[0].acquire()
    begin = time.monotonic()
    cpu = [usage(process.pid)[0] for process in (collector, *(one for one, _ in relays))]
    gates[1].set()
    told = [gates[2].get() for _ in feeders]
    after = [usage(process.pid) for process in (collector, *(one for one, _ in relays))]
    for process in (*(one for one, _ in relays), collector):
        process.terminate()
        process.wait(60)
    records = open_run(Path(folder) / "bench").records()
    last, durable = max(one[0] for one in told), max(one[1] for one in told)
    frames = ranks * steps
    root_ms = 1e3 * (after[0][0] - cpu[0]) / steps
    relay_ms = 1e3 * sum(now[0] - before for now, before in zip(after[1:], cpu[1:], strict=True))
    relay_mib = max((mib for _, mib in after[1:]), default=0.0)
    return (
        f"| {ranks} | {number} | {frames / (durable - begin):.0f} | {root_ms:.0f} | "
        f"{relay_ms / steps / max(number, 1):.0f} | {after[0][1]:.0f} | {relay_mib:.0f} | "
        f"{durable - last:.2f} | {records['complete'].tolist().count(True)} of {steps} | "
        f"{sum(one[2] for one in told)} |"
    )


def merging(world_size: int, sites: int) -> str:
    """One row, in this process: what relays on two levels make of a step, and the collector."""
    the_schema = make_schema(the_sites(sites))
    frame = Frame(step=0, time_ns=1, sites=np.arange(sites, dtype=np.uint32), table=tables(sites))
    header, blob = encode_frame(frame, the_schema.hash)
    opened = open_frame(decode(header, "agent"), blob, the_schema)
    topology, plans = Topology.of(the_schema.sites, {"dp": world_size}, world_size), Plans()

    def place(ranks: range) -> Layout:
        axes = [[MeshAxis(name="dp", size=world_size, coordinate=rank)] for rank in ranks]
        names = zip(axes, ranks, strict=True)
        groups = [name for mesh, rank in names for name in groups_of(mesh, f"node-{rank // 8}")]
        return lay_out(the_schema.sites, range(sites), axes[0], (), groups)

    def send_up(parts: dict[int, Contribution], ranks: range) -> tuple[Contribution, int, float]:
        """What a relay makes of these, in bytes and milliseconds, when it has done so before."""
        said = {rank: JoinedMember(stream=f"s{rank}", sequence=0, time_ns=1) for rank in ranks}
        join(parts, said, topology, the_schema.hash, plans)
        begin = time.process_time()
        joined, packed = join(parts, said, topology, the_schema.hash, plans)
        took_ms = 1e3 * (time.process_time() - begin)
        again = open_joined(joined, packed, the_schema)
        return Contribution(again, place(ranks), tuple(ranks)), len(packed), took_ms

    def merge(above: dict[int, Contribution]) -> float:
        """Milliseconds at the collector, of the second record."""
        merge_contributions(above, plans)
        begin = time.process_time()
        merge_contributions(above, plans)
        return 1e3 * (time.process_time() - begin)

    def alike(one: Contribution, each: int) -> dict[int, Contribution]:
        """As if every relay of so many ranks had sent that."""
        firsts = range(0, world_size, each)
        return {first: replace(one, members=tuple(range(first, first + each))) for first in firsts}

    lower, first, size = dict[int, Contribution](), 0.0, 0
    for start in range(0, min(world_size, RANKS_A_RELAY * RELAYS_A_RELAY), RANKS_A_RELAY):
        ranks = range(start, start + RANKS_A_RELAY)
        parts = {rank: Contribution(opened, place(range(rank, rank + 1))) for rank in ranks}
        lower[start], size, took_ms = send_up(parts, ranks)
        first = first or took_ms
    alone = (len(header) + len(blob)) / 1000
    row = f"| {world_size} | {alone:.0f} | {size / 1000:.0f} | {first:.0f} | "
    row += f"{merge(alike(lower[0], RANKS_A_RELAY)):.0f} | "
    if len(lower) < RELAYS_A_RELAY:
        return row + " | | |"
    each = RANKS_A_RELAY * RELAYS_A_RELAY
    upper, size, took_ms = send_up(lower, range(each))
    return row + f"{size / 1000:.0f} | {took_ms:.0f} | {merge(alike(upper, each)):.0f} |"


def main() -> None:
    """Print a row for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--sites", type=int, default=500)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--merging", action="store_true", help="Only what merging takes.")
    options = parser.parse_args()
    if options.merging:
        print(
            "| ranks | kB a frame | kB joined | ms at a relay | ms at the collector "
            "| kB of an upper relay | ms there | ms at the collector above those |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for ranks in options.ranks:
            print(merging(ranks, options.sites), flush=True)
        return
    print(
        "| ranks | relays | frames/s | collector ms a step | relay ms a step, each "
        "| collector MiB | relay MiB | lag s | complete records | dropped |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(ranks, options.sites, options.steps, folder), flush=True)


if __name__ == "__main__":
    main()
