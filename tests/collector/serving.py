"""Collectors and agents on loopback, for tests with real sockets."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import zmq

from rankscope.agent import Outbox
from rankscope.collector import CollectorSettings, JoinerSettings, Service
from rankscope.sinks import Sinks
from rankscope.sketch import SketchTable, sketch_array
from rankscope.wire import (
    PROTOCOL,
    Frame,
    Hello,
    MeshAxis,
    Site,
    decode,
    encode,
    encode_frame,
    make_schema,
    pack_frame,
)
from rankscope.wire.keys import CollectorKeys

SITES = [
    Site(kind="activation", name="fc", placement={"dp": "shard"}),
    Site(kind="weight", name="fc"),
]
VALUES = 8
"""Elements of each tensor."""

STARTED: list[subprocess.Popen[str]] = []
"""Collector processes of this test, for `stop_collectors`."""

QUICK = CollectorSettings(
    commit_s=0.05,
    joiner=JoinerSettings(deadline_s=2.0, lost_after_s=2.0),
    retry_s=0.05,
    resident_bytes=8 << 30,  # the process is that of the tests, which take some by themselves
)


class Peer:
    """An agent that says what the test wants."""

    def __init__(self, address: str) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(address)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.destroy(linger=0)

    def say(self, *parts: object) -> None:
        self.socket.send_multipart(
            [part if isinstance(part, bytes) else encode(part) for part in parts]  # pyright: ignore[reportArgumentType]
        )

    def hear(self, kind: type | None = None, timeout_s: float = 5.0) -> object:
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if self.socket.poll(int(left * 1000) + 1):
                message = decode(self.socket.recv(), "collector")
                if kind is None or isinstance(message, kind):
                    return message
        return None

    def frame(self, sequence: int, step: int | None = None, **header: object) -> None:
        frame = Frame(
            sequence=sequence,
            step=sequence if step is None else step,
            time_ns=1,
            sites=np.arange(2, dtype=np.uint32),
            table=a_table(),
        )
        head, blob = encode_frame(frame, make_schema(SITES).hash)
        self.say(msgspec.structs.replace(decode(head, "agent"), **header), blob)


def hello(rank: int = 0, world_size: int = 1, **fields: object) -> Hello:
    settings = {
        "protocol_min": PROTOCOL,
        "protocol_max": PROTOCOL,
        "run": "demo",
        "launch": "launch",
        "stream": f"stream-{rank}",
        "mesh": [MeshAxis(name="dp", size=world_size, coordinate=rank)],
        **fields,
    }
    return Hello(rank=rank, world_size=world_size, **settings)  # pyright: ignore[reportArgumentType]


def outbox(address: str, rank: int = 0, world_size: int = 1, **fields: object) -> Outbox:
    box = Outbox(address, hello(rank, world_size, **fields))
    box.set_sites(SITES)
    return box


def a_table(value: float = 1.0, weight: float = 1.0) -> SketchTable:
    arrays = [np.full(VALUES, value, np.float32), np.full(VALUES, weight, np.float32)]
    return SketchTable.concatenate([sketch_array(array) for array in arrays])


def send(
    box: Outbox,
    steps: Sequence[int],
    value: float = 1.0,
    pause_s: float = 0.0,
    health: dict[str, float] | None = None,
    *,
    weight: float = 1.0,
    reports: Sequence[str] = (),
    later_s: int = 0,
) -> None:
    for step in steps:
        box.send(
            pack_frame(
                Frame(
                    step=step,
                    time_ns=time.time_ns() + later_s * 1_000_000_000,
                    sites=np.arange(2, dtype=np.uint32),
                    table=a_table(value, weight),
                    training={"loss": float(step)},
                    health=health or {},
                    reports=list(reports),
                )
            )
        )
        box.poll(time.monotonic())
        time.sleep(pause_s)


@contextmanager
def a_tap(
    address: str, seen: bytearray, change: Callable[[bytes], bytes] = bytes
) -> Generator[str]:
    """An address that leads to a collector's; all bytes that pass are kept in `seen`.

    Args:
        change: what becomes of them on the way.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    ended = threading.Event()

    def passes(here: socket.socket, there: socket.socket) -> bool:
        with suppress(OSError):  # either may be gone
            if data := here.recv(65536):
                seen.extend(data)
                there.sendall(change(data))
                return True
        return False

    def pass_on(server: socket.socket) -> None:
        ends = dict[socket.socket, socket.socket]()
        with selectors.DefaultSelector() as selector:
            selector.register(server, selectors.EVENT_READ)
            while not ended.is_set():
                for key, _ in selector.select(0.1):
                    here = cast("socket.socket", key.fileobj)
                    if here is server:
                        one, two = server.accept()[0], socket.create_connection((host, int(port)))
                        ends |= {one: two, two: one}
                        selector.register(one, selectors.EVENT_READ)
                        selector.register(two, selectors.EVENT_READ)
                    elif not passes(here, ends[here]):
                        selector.unregister(here)
                        with suppress(OSError):
                            ends[here].shutdown(socket.SHUT_WR)
        for one in ends:
            one.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=pass_on, args=(server,))
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()


def close_all(boxes: Sequence[Outbox], timeout_s: float = 15.0) -> list[bool]:
    """Close at once, as the ranks of a job do: each waits for what is joined with the others."""
    answers = [False] * len(boxes)

    def close(place: int) -> None:
        answers[place] = boxes[place].close(timeout_s=timeout_s)

    threads = [threading.Thread(target=close, args=(place,)) for place in range(len(boxes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@contextmanager
def serving(
    store: str | Path,
    settings: CollectorSettings = QUICK,
    address: str = "tcp://127.0.0.1:*",
    keys: CollectorKeys | None = None,
    sinks: Sinks | None = None,
    *,
    until_done: bool = False,
) -> Generator[Service]:
    """A collector on a thread; when the block ends it stores all and stops."""
    service = Service(address, store, settings=settings, keys=keys, sinks=sinks)
    ended = threading.Event()

    def serve() -> None:
        try:
            service.run(ended.is_set, until_done=until_done)
        finally:
            service.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield service
    finally:
        ended.set()
        thread.join()


def start_collector(
    store: Path, *options: str, port: str = "*"
) -> tuple[subprocess.Popen[str], str]:
    """A collector process, and where it listens."""
    command = [sys.executable, "-m", "rankscope", "collect", "--announce", "--store", str(store)]
    process = subprocess.Popen(
        [*command, "--bind", f"tcp://127.0.0.1:{port}", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ},
    )
    STARTED.append(process)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return process, json.loads(line)["address"]


def start_with_health(store: Path, *options: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A collector process with /healthz, in the folder of its runs, and where it is."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "rankscope", "collect", "--announce", "--store", str(store)),
            *("--bind", "tcp://127.0.0.1:*", "--health", "127.0.0.1:0", *options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=store,
    )
    STARTED.append(process)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return process, json.loads(line)


def stop_collectors() -> None:
    """End what a test that failed has left behind."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def wait_until(what: Callable[[], object], timeout_s: float = 15.0) -> None:
    """Until `what()` is true."""
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
