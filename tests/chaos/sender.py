"""One rank as a process: it writes down what it will send, sends it, and says how it ended.

    sender.py ADDRESS RANK RANKS STEPS PAUSE_S LEDGER [LAUNCH]

A line of the ledger is written before its frame is given to the outbox, so that it is there however
the process ends. What it says comes from NumPy and from the rank's own sketch alone.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

from rankscope.agent import Outbox
from rankscope.sketch import SketchTable, sketch_array
from rankscope.wire import PROTOCOL, Frame, Hello, MeshAxis, Site, pack_frame

SITES = [
    Site(kind="activation", name="fc", placement={"dp": "shard"}),
    Site(kind="weight", name="fc"),
]
ELEMENTS = 64
CLOSE_S = 60.0
REST_S = 0.005
"""Between two looks at the network."""


def arrays(rank: int, step: int) -> list[np.ndarray]:
    """What a rank holds in a step: samples of its own, and a weight that all have alike."""
    own = np.random.default_rng((rank, step)).standard_normal(ELEMENTS).astype(np.float32)
    own[: (rank + step) % 4] = np.nan
    return [own, np.full(ELEMENTS, step + 1, np.float32)]


def loss(rank: int, step: int) -> float:
    """A number that only this frame has."""
    return rank + step / 2**20


def main(address: str, rank: int, ranks: int, steps: int, pause_s: float, ledger: str) -> None:
    """Send all, and wait until all is durable."""
    file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(**line: object) -> None:
        os.write(file, (json.dumps(line) + "\n").encode())

    hello = Hello(
        protocol_min=PROTOCOL,
        protocol_max=PROTOCOL,
        run="demo",
        launch=LAUNCH,
        stream=f"{LAUNCH}-{rank}",
        rank=rank,
        world_size=ranks,
        mesh=[MeshAxis(name="dp", size=ranks, coordinate=rank)],
        process=os.getpid(),
    )
    box = Outbox(address, hello, window_frames=int(os.environ.get("WINDOW_FRAMES", "256")))
    box.set_sites(SITES)
    for step in range(steps):
        held = arrays(rank, step)
        table = SketchTable.concatenate([sketch_array(array) for array in held])
        write(
            step=step,
            counts=[len(held[0]), int(np.isnan(held[0]).sum())],
            checksum=[int(number) for number in table.checksum],
        )
        box.send(
            pack_frame(
                Frame(
                    step=step,
                    time_ns=time.time_ns(),
                    sites=np.arange(len(SITES), dtype=np.uint32),
                    table=table,
                    training={"loss": loss(rank, step)},
                )
            )
        )
        until = time.monotonic() + pause_s
        while True:
            box.poll(time.monotonic())
            left = until - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, REST_S))
        now = box.statistics()
        write(acknowledged=now.acknowledged, dropped=now.dropped_frames)
    durable = box.close(timeout_s=CLOSE_S)
    now = box.statistics()
    write(
        durable=durable,
        acknowledged=now.acknowledged,
        dropped=now.dropped_frames,
        pending=now.pending_frames,
        rejected=now.rejected,
    )


if __name__ == "__main__":
    LAUNCH = sys.argv[7] if len(sys.argv) > 7 else "launch"
    main(
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
        float(sys.argv[5]),
        sys.argv[6],
    )
