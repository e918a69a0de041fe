"""Seconds from the sending of a frame until the incident that it begins is posted to a webhook.

First with a store that is well, then with one that takes nothing: the collector may write no file.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from rankscope.agent import Outbox
from rankscope.sketch import SketchTable, sketch_array
from rankscope.wire import PROTOCOL, Frame, Hello, MeshAxis, Site, pack_frame

INCIDENTS = 8
SITES = 100
HELLO = Hello(
    protocol_min=PROTOCOL,
    protocol_max=PROTOCOL,
    run="bench",
    launch="L",
    stream="s",
    rank=0,
    world_size=1,
    mesh=[MeshAxis(name="dp", size=1, coordinate=0)],
)
PAUSE_S = 0.37
"""Between frames: not in time with the collector's commits."""


class Server(ThreadingHTTPServer):
    """Notes when it is told that an incident begins."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.told = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """Takes what is posted."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["rankscope"]["last_step"] is None:
            self.server.told.set()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def send(box: Outbox, step: int, *, is_bad: bool) -> None:
    """A frame of all sites, one of which holds NaN if asked."""
    values = np.random.default_rng(step).standard_normal(64).astype(np.float32)
    bad = np.where(np.arange(64) == 3, np.nan, values).astype(np.float32) if is_bad else values
    table = SketchTable.concatenate([sketch_array(bad), *[sketch_array(values)] * (SITES - 1)])
    rows = np.arange(SITES, dtype=np.uint32)
    box.send(pack_frame(Frame(step=step, time_ns=time.time_ns(), sites=rows, table=table)))


def wait(box: Outbox, seconds: float, until: threading.Event) -> bool:
    """Let the box work for so long, or until that happens; whether it has."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until.is_set():
        box.poll(time.monotonic())
        time.sleep(0.002)
    return until.is_set()


def measure(box: Outbox, server: Server, first: int) -> list[float]:
    """Seconds for each of some incidents, each of one step."""
    taken, never = list[float](), threading.Event()
    for number in range(INCIDENTS):
        step = first + 3 * number
        server.told.clear()
        begin = time.perf_counter()
        send(box, step, is_bad=True)
        if not wait(box, 20, server.told):
            raise SystemExit(f"Nothing was told of step {step}.")
        taken.append(time.perf_counter() - begin)
        for good in (1, 2):
            wait(box, PAUSE_S, never)
            send(box, step + good, is_bad=False)
        wait(box, 2.0, never)  # it is over
    return taken


def main() -> None:
    """Print two rows."""
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rankscope", "collect", "--bind", "tcp://127.0.0.1:*"]
        command += ["--store", folder, "--announce", "--sink", f"webhook:{url}"]
        collector = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert collector.stdout is not None
        box = Outbox(json.loads(collector.stdout.readline())["address"], HELLO)
        box.set_sites([Site(kind="tap", name=f"layers.{place}") for place in range(SITES)])
        print("| store | incidents | median s | longest s |\n|---|---|---|---|")
        for name, limit in (("well", resource.RLIM_INFINITY), ("takes nothing", 0)):
            resource.prlimit(collector.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            taken = measure(box, server, 0 if limit else 1000)
            middle, longest = statistics.median(taken), max(taken)
            print(f"| {name} | {INCIDENTS} | {middle:.2f} | {longest:.2f} |")
        collector.kill()
        collector.wait()


if __name__ == "__main__":
    main()
