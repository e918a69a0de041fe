"""Frames a second that a collector process commits, sustained, from real senders over TCP.

Eight ranks send 500 sites each as fast as their windows let them; a record joins all eight. What is
stored are merged columns, histograms, the spread over ranks and each rank's main statistics. The
time runs from the moment all are connected to the last durable acknowledgement. `stolen` is the
share of this machine's CPU time that its hypervisor gave to other machines meanwhile. Milliseconds
are of CPU: of the collector a record, from the first frame to the last acknowledgement, and of the
senders a frame. On a machine that others use, too, they say more than frames a second.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.agent import Outbox
from rankscope.sketch import SketchTable, sketch_array
from rankscope.wire import PROTOCOL, Frame, Hello, MeshAxis, Site, pack_frame
from rankscope.wire.keys import AgentKeys

WINDOW_FRAMES = 64
IDLE_S = 0.05
"""How long a sender sleeps when its window is full: as the thread of an agent does."""


@dataclass(frozen=True)
class Sent:
    """What one sender did."""

    frames: int
    seconds: float
    durable: bool
    dropped: int
    cpu_s: float


def send(
    rank: int, ranks: int, sites: int, seconds: float, address: str, keys: str, gates: Any
) -> None:
    """Send frames for so long, then wait until all are durable."""
    ready, start, results = gates
    table = tables(sites, seed=rank)
    own = AgentKeys.load(keys) if keys else None
    box = Outbox(address, hello(rank, ranks), keys=own, window_frames=256, window_bytes=64 << 20)
    box.set_sites(
        [
            Site(kind="activation", name=f"layers.{i}", placement={"dp": "shard"})
            for i in range(sites)
        ]
    )
    while not box.statistics().connected:
        box.poll(time.monotonic())
        time.sleep(0.01)
    ready.release()
    start.wait()
    begin, step, rows = time.monotonic(), 0, np.arange(sites, dtype=np.uint32)
    cpu_before = time.process_time()
    while time.monotonic() - begin < seconds:
        if box.statistics().pending_frames < WINDOW_FRAMES:
            numbers = {"loss": 1.0 / (step + 1)}
            box.send(
                pack_frame(
                    Frame(
                        step=step,
                        time_ns=time.time_ns(),
                        sites=rows,
                        table=table,
                        training=numbers,
                    )
                )
            )
            step += 1
        else:
            time.sleep(IDLE_S)
        box.poll(time.monotonic())
    durable = box.close(timeout_s=120)
    dropped = box.statistics().dropped_frames
    cpu_s = time.process_time() - cpu_before
    results.put(Sent(step, time.monotonic() - begin, durable, dropped, cpu_s))


def tables(sites: int, seed: int) -> SketchTable:
    """Sketches whose histograms fill about ten bins each, at different magnitudes."""
    rng = np.random.default_rng(seed)
    scales = 2.0 ** rng.integers(-20, 8, sites)
    return SketchTable.concatenate(
        [sketch_array((rng.standard_normal(256) * scale).astype(np.float32)) for scale in scales]
    )


def hello(rank: int, ranks: int) -> Hello:
    """The introduction of one data-parallel rank."""
    mesh = [MeshAxis(name="dp", size=ranks, coordinate=rank)]
    return Hello(
        protocol_min=PROTOCOL,
        protocol_max=PROTOCOL,
        run="bench",
        launch="L",
        stream=f"s{rank}",
        rank=rank,
        world_size=ranks,
        mesh=mesh,
    )


def usage(process: int) -> tuple[float, float]:
    """CPU seconds and resident MiB of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return ticks / os.sysconf("SC_CLK_TCK"), resident / 2**20


def stolen() -> tuple[int, int]:
    """Ticks of all cores that the hypervisor gave to others, and all ticks."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return ticks[7], sum(ticks)


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--sites", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--keys", action="store_true", help="Encrypt with CURVE.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as made:
        rankscope = [sys.executable, "-m", "rankscope"]
        command = [*rankscope, "collect", "--bind", "tcp://127.0.0.1:*"]
        keys = f"{made}/keys/agent" if options.keys else ""
        if keys:
            subprocess.run([*rankscope, "keygen", f"{made}/keys"], check=True)
            command += ["--keys", f"{made}/keys/collector"]
        collector = subprocess.Popen(
            [*command, "--store", folder, "--until-done", "--announce"], stdout=subprocess.PIPE
        )
        assert collector.stdout is not None
        address = json.loads(collector.stdout.readline())["address"]
        spawn = multiprocessing.get_context("spawn")
        gates = spawn.Semaphore(0), spawn.Event(), spawn.Queue()
        senders = [
            spawn.Process(
                target=send,
                args=(rank, options.ranks, options.sites, options.seconds, address, keys, gates),
            )
            for rank in range(options.ranks)
        ]
        for sender in senders:
            sender.start()
        for _ in senders:
            gates[0].acquire()
        cpu_before, _ = usage(collector.pid)
        stolen_before, ticks_before = stolen()
        gates[1].set()
        time.sleep(options.seconds / 2)
        _, early = usage(collector.pid)
        time.sleep(options.seconds / 2)
        cpu, late = usage(collector.pid)
        stolen_after, ticks_after = stolen()
        sent: list[Sent] = [gates[2].get() for _ in senders]
        cpu_in_all, _ = usage(collector.pid)
        collector.wait(120)
        stored = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    frames, seconds = sum(one.frames for one in sent), max(one.seconds for one in sent)
    share = (cpu - cpu_before) / options.seconds
    lost = (stolen_after - stolen_before) / max(ticks_after - ticks_before, 1)
    a_record = 1e3 * (cpu_in_all - cpu_before) * options.ranks / frames
    a_frame = 1e3 * sum(one.cpu_s for one in sent) / frames
    print(
        "| ranks | sites | frames/s | core used | collector ms a record | sender ms a frame "
        "| stolen | MiB half-way, end | B a row | all durable | dropped |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    print(
        f"| {options.ranks} | {options.sites} | {frames / seconds:.0f} | {share:.2f} | "
        f"{a_record:.1f} | {a_frame:.2f} | {lost:.1%} | {early:.0f}, {late:.0f} | "
        f"{stored / frames / options.sites:.0f} | "
        f"{all(one.durable for one in sent)} | {sum(one.dropped for one in sent)} |"
    )


if __name__ == "__main__":
    main()
