"""How long after `kill -9` a collector of a long run takes frames again.

A run of so many records is made, by a collector that is not closed, as if it had been killed. Then
collectors are started on it and killed, one after the other: `listens` is from the start of the
process to the address, `welcomes` to the answer to a rank's hello, for which the run is opened,
`durable` to the acknowledgement of a first frame.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rankscope.agent import Outbox
from rankscope.collector import Collector, CollectorSettings
from rankscope.sketch import SketchTable, sketch_array
from rankscope.store import RunWriter
from rankscope.wire import (
    PROTOCOL,
    Frame,
    Hello,
    MeshAxis,
    Site,
    encode,
    encode_frame,
    make_schema,
    pack_frame,
)

MOST_HELD = 32 << 20
"""Bytes that the collector may have in memory while the run is made."""


def hello(stream: str) -> Hello:
    """Of the only rank."""
    return Hello(
        protocol_min=PROTOCOL,
        protocol_max=PROTOCOL,
        run="long",
        launch="launch",
        stream=stream,
        rank=0,
        world_size=1,
        mesh=[MeshAxis(name="dp", size=1, coordinate=0)],
    )


def frame(step: int, sites: int) -> Frame:
    """All sites of a step."""
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    table = SketchTable.concatenate([sketch_array(values)] * sites)
    rows = np.arange(sites, dtype=np.uint32)
    return Frame(sequence=step, step=step, time_ns=step, sites=rows, table=table)


def make_run(store: Path, sites: list[Site], steps: int) -> None:
    """A run that was not finished, written with this process's own clock."""
    writers: list[RunWriter] = []

    def open_run(name: str) -> RunWriter:
        writers.append(RunWriter.open(store / name, run=name))
        return writers[-1]

    collector = Collector(open_run, CollectorSettings(), time.time_ns, time.monotonic())
    schema = make_schema(sites)
    for message in (hello("first"), schema):
        collector.receive(b"peer", [encode(message)], time.monotonic())
    for step in range(steps):
        parts = encode_frame(frame(step, len(sites)), schema.hash)
        collector.receive(b"peer", parts, time.monotonic())
        collector.tick(time.monotonic())
        # A stream that goes on without credit is dismissed, and what it sends is in no run.
        while collector.statistics().held_bytes > MOST_HELD:
            time.sleep(0.002)
            collector.tick(time.monotonic())
    until = time.monotonic() + 60
    while collector.statistics().records < steps and time.monotonic() < until:
        time.sleep(0.01)
        collector.tick(time.monotonic())
    stored = collector.statistics().records
    writers[0].close()
    if stored != steps:
        raise SystemExit(f"The run was to have {steps} records, and has {stored}.")


def restart(store: Path, sites: list[Site], step: int) -> tuple[float, float, float]:
    """Seconds from the start of the process until it listens, welcomes, and has stored a frame."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "rankscope", "collect", "--bind", "tcp://127.0.0.1:*"]
    process = subprocess.Popen(
        [*command, "--store", str(store), "--announce"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    address = json.loads(process.stdout.readline())["address"]
    listens = time.monotonic() - begin
    box = Outbox(address, hello(f"again-{step}"))
    box.set_sites(sites)
    box.send(pack_frame(frame(step, len(sites))))
    times: list[float] = []
    for done in (lambda: box.statistics().connected, lambda: box.statistics().acknowledged):
        while not done():
            box.poll(time.monotonic())
            time.sleep(0.002)
        times.append(time.monotonic() - begin)
    process.kill()
    process.wait()
    process.stdout.close()
    box.close(timeout_s=0)
    return listens, times[0], times[1]


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    sites = [Site(kind="tap", name=str(number)) for number in range(options.sites)]
    with tempfile.TemporaryDirectory() as folder:
        make_run(Path(folder), sites, options.steps)
        rows = [restart(Path(folder), sites, options.steps + n) for n in range(options.times)]
    medians = [f"{statistics.median(column):.2f}" for column in zip(*rows, strict=True)]
    worst = [f"{max(column):.2f}" for column in zip(*rows, strict=True)]
    print("| steps | sites | | listens s | welcomes s | durable s |")
    print("|---|---|---|---|---|---|")
    print(f"| {options.steps} | {options.sites} | median | {' | '.join(medians)} |")
    print(f"| | | most | {' | '.join(worst)} |")


if __name__ == "__main__":
    main()
