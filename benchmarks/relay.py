"""What a relay costs: frames a second through one process, its CPU time for each, its memory.

Ranks of 500 sites send through a real relay over TCP to a sink that calls every frame durable at
once and stores nothing, so that the relay is what is measured. CPU time is what a busy machine
disturbs least. `lag` is the time from the last frame to the last acknowledgement.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import zmq

from rankscope.agent import Outbox
from rankscope.sketch import SketchTable, sketch_array
from rankscope.wire import (
    PROTOCOL,
    Ack,
    Frame,
    FrameHeader,
    Goodbye,
    Hello,
    MeshAxis,
    Site,
    Welcome,
    decode,
    encode,
    pack_frame,
)
from rankscope.wire.via import addressed, arrived

PENDING = 32
"""Frames that each rank has under way."""


def sink(socket: zmq.Socket[bytes], ended: threading.Event) -> None:
    """Answer as a collector would that stores in no time."""
    while not ended.is_set():
        if not socket.poll(50):
            continue
        route, *parts = socket.recv_multipart()
        peer, rest = arrived(route, parts)
        match decode(rest[0], "agent"):
            case Hello():
                answer = Welcome(
                    protocol=PROTOCOL,
                    attempt=0,
                    committed=-1,
                    credit_frames=32,
                    credit_bytes=16 << 20,
                )
            case FrameHeader(sequence=last) | Goodbye(last=last):
                answer = Ack(received=last, committed=last)
            case _:
                continue
        socket.send_multipart(addressed(peer, encode(answer)))


def a_frame(sites: int) -> Frame:
    """Sketches whose histograms fill about ten bins each, at different magnitudes."""
    rng = np.random.default_rng(0)
    scales = 2.0 ** rng.integers(-20, 8, sites)
    tables = [
        sketch_array((rng.standard_normal(256) * scale).astype(np.float32)) for scale in scales
    ]
    rows = np.arange(sites, dtype=np.uint32)
    return Frame(step=0, time_ns=0, sites=rows, table=SketchTable.concatenate(tables))


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
    )
    box = Outbox(address, hello, window_bytes=64 << 20)
    box.set_sites([Site(kind="activation", name=f"layers.{i}") for i in range(sites)])
    return box


def usage(process: int) -> tuple[float, float]:
    """CPU seconds and resident MiB of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return ticks / os.sysconf("SC_CLK_TCK"), resident / 2**20


def measure(ranks: int, sites: int, seconds: float, options: list[str]) -> str:
    """One row: what passes in so long a time."""
    ended, context = threading.Event(), zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind("tcp://127.0.0.1:*")
    thread = threading.Thread(target=sink, args=(socket, ended))
    thread.start()
    to = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    command = [sys.executable, "-m", "rankscope", "relay", "--announce", "--to", to, *options]
    relay = subprocess.Popen(
        [*command, "--bind", "tcp://127.0.0.1:*", "--until-done"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert relay.stdout is not None
    address = json.loads(relay.stdout.readline())["address"]
    boxes = [outbox(address, rank, ranks, sites) for rank in range(ranks)]
    header, blob = pack_frame(a_frame(sites))
    while not all(box.statistics().connected for box in boxes):
        for box in boxes:
            box.poll(time.monotonic())
    before, _ = usage(relay.pid)
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        for box in boxes:
            if box.statistics().pending_frames < PENDING:
                box.send((header, blob))
            box.poll(time.monotonic())
    lasted = time.monotonic() - begin
    while any(box.statistics().pending_frames for box in boxes):
        for box in boxes:
            box.poll(time.monotonic())
    lag = time.monotonic() - begin - lasted
    after, resident = usage(relay.pid)
    frames = sum(box.statistics().acknowledged for box in boxes)
    for box in boxes:
        box.close(timeout_s=10)
    relay.wait(60)
    relay.stdout.close()
    ended.set()
    thread.join()
    context.destroy(linger=0)
    kind = "spool" if options else "memory"
    cost_us = (after - before) / frames * 1e6
    rate = frames / (lasted + lag)
    return f"| {kind} | {ranks} | {rate:.0f} | {cost_us:.0f} | {resident:.0f} | {lag:.2f} |"


def main() -> None:
    """Print a row without and one with a spool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--sites", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=8.0)
    given = parser.parse_args()
    print("| frames in | ranks | frames/s | CPU µs a frame | MiB | lag, s |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for options in ([], ["--spool", folder, "--min-free", "0"]):
            print(measure(given.ranks, given.sites, given.seconds, options), flush=True)


if __name__ == "__main__":
    main()
