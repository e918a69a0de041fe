"""`rankscope doctor`: whether all that a collector and its agents need is there, and what to do."""

from __future__ import annotations

import platform
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import click
import numpy as np
import zmq

from ..sketch.errors import AddressError, BusyError, ProtocolError, StoreError
from ..sketch.reference import sketch_array
from ..sketch.table import SketchTable
from ..store.lock import WriterLock
from ..store.record import Event
from ..store.writer import RunWriter
from ..wire.address import Address, parse_address
from ..wire.codec import Frame, decode, encode, encode_frame, make_schema
from ..wire.messages import PROTOCOL, Hello, MeshAxis, Ping, Pong, Reject, Site
from .session import Collector
from .settings import CollectorSettings

ANSWER_S = 5.0
DEFAULT = "tcp://127.0.0.1:7600"
LEAST_FREE = 1 << 30
"""Bytes: some hours of a small job."""
SLOW_COMMIT_S = 0.2
"""Commits are made every second and a half."""
CLOCK_S = 1.0
"""Frames carry the time of their rank, and a run is read by it."""
RANKS, SITES, STEPS = 4, 100, 100
"""Of the burst."""
FEW_FRAMES = 100.0
"""A second: what 100 ranks with a step a second send."""
PACKAGES = ("numpy", "msgspec", "pyzmq", "icechunk", "zarr", "xarray", "pandas")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line."""

    state: Literal["ok", "note", "bad"]
    text: str


Check = Iterator[Finding]


@click.command()
@click.option("--to", help="Address of a collector, as tcp://host:7600.")
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of runs that a collector here would write.",
)
def doctor(to: str | None, store: Path | None) -> None:
    """Check what a collector and its agents need; a line each, and what to do.

    Without options: this installation, and whether a collector could listen here. The exit code is
    1 if something is bad.
    """
    checks: list[Callable[[], Check]] = [check_versions]
    checks.append((lambda: check_network(to)) if to else check_port)
    if store is not None:
        checks += [lambda: check_store(store), lambda: check_burst(store)]
    is_bad = False
    for check in checks:
        for finding in check():
            click.echo(f"{finding.state:<5} {finding.text}")
            is_bad |= finding.state == "bad"
    sys.exit(int(is_bad))


def check_versions() -> Check:
    """What is installed."""
    found: list[str] = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Finding("bad", f"{name} is not installed: pip install 'rankscope[collector]'.")
    python = f"Python {platform.python_version()} on {platform.system()}"
    ours = f"rankscope {version('rankscope')} (protocol {PROTOCOL})"
    yield Finding("ok", f"{ours}, {python}, {', '.join(found)}, libzmq {zmq.zmq_version()}.")


def check_port() -> Check:
    """Whether a collector could listen where it does by default."""
    where = parse_address(DEFAULT)
    with socket.socket() as probe:
        try:
            probe.bind((where.host, where.port))
        except OSError:
            yield from check_network(DEFAULT)
            return
    yield Finding("ok", f"{DEFAULT} is free for `rankscope collect`.")


def check_network(to: str) -> Check:
    """Whether a collector answers, how fast, and whether its clock agrees with ours."""
    try:
        where = parse_address(to)
    except AddressError as error:
        yield Finding("bad", str(error))
        return
    refused = _why_unreachable(where)
    if refused:
        yield Finding("bad", f"{to} cannot be reached ({refused}): {_cure(where)}.")
        return
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger, peer.ipv6 = 0, where.is_ipv6
        peer.connect(to)
        pong, off_s = None, 0.0
        times: list[float] = []
        for payload in (b"", b"", b"", bytes(1 << 20)):
            before, sent_ns = time.perf_counter(), time.time_ns()
            pong = _ask(peer, payload)
            if not isinstance(pong, Pong):
                yield Finding("bad", f"{to}: {pong}")
                return
            times.append(time.perf_counter() - before)
            if payload == b"":
                off_s = (pong.time_ns - (sent_ns + time.time_ns()) / 2) / 1e9
    yield from _judge_peer(to, pong, min(times[:3]), times[3], off_s)


def _judge_peer(to: str, pong: Pong | None, least_s: float, full_s: float, off_s: float) -> Check:
    assert pong is not None
    if pong.protocol != PROTOCOL:
        text = f"speaks protocol {pong.protocol}, this rankscope {PROTOCOL}: install one version."
        yield Finding("bad", f"The collector at {to} {text}")
    rate = 1 / max(full_s - least_s, 1e-6)
    yield Finding(
        "ok",
        f"{to} answers in {least_s * 1e3:.1f} ms and takes {rate:.0f} MiB/s; it is rankscope "
        f"{pong.version}.",
    )
    if abs(off_s) > CLOCK_S:
        side = "ahead of" if off_s > 0 else "behind"
        text = f"The collector's clock is {abs(off_s):.1f} s {side} this machine's: "
        yield Finding("bad", text + "let both follow a time server (chrony, systemd-timesyncd).")
    else:
        yield Finding("ok", f"Both clocks agree within {max(abs(off_s), least_s) * 1e3:.0f} ms.")


def _why_unreachable(where: Address) -> str:
    """A plain connection says why, where ZeroMQ would try for ever."""
    if where.transport == "ipc":
        return "" if Path(where.host).is_socket() else "there is no such socket"
    try:
        socket.create_connection((where.host, where.port), timeout=ANSWER_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _cure(where: Address) -> str:
    if where.is_local:
        return f"start `rankscope collect --bind {where}`"
    return (
        f"start `rankscope collect --bind tcp://*:{where.port}` there, "
        "and let its firewall pass that port"
    )


def _ask(peer: zmq.Socket[bytes], payload: bytes) -> Pong | str:
    peer.send(encode(Ping(payload=payload)))
    if not peer.poll(int(ANSWER_S * 1000)):
        return "what listens there does not answer; it is no collector, or it wants a key (CURVE)."
    try:
        answer = decode(peer.recv_multipart()[0], "collector")
    except ProtocolError:
        return "what listens there speaks another language; give the collector's address."
    if isinstance(answer, Pong):
        return answer
    older = "is older than this rankscope: install one version on both sides."
    return f"the collector {older}" if isinstance(answer, Reject) else "an answer made no sense."


def check_store(store: Path) -> Check:
    """Whether the folder can be written, has room, knows locks, and how fast a commit is."""
    try:
        store.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(store).free
        with tempfile.TemporaryDirectory(dir=store, prefix=".rankscope-doctor-") as folder:
            place = Path(folder) / "run"
            with RunWriter.open(place, run="run") as writer:
                yield from _judge_lock(place)
                times = [_commit(writer, number) for number in range(20)]
    except (OSError, StoreError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        yield Finding("bad", f"{store} cannot be written ({why}): give another --store.")
        return
    gib = free / 2**30
    if free < LEAST_FREE:
        yield Finding("bad", f"{store} has {gib:.2f} GiB free: make room, or give another --store.")
    else:
        yield Finding("ok", f"{store} can be written and has {gib:.0f} GiB free.")
    usual, worst = statistics.median(times), max(times)
    text = f"A small commit takes {usual * 1e3:.1f} ms, {worst * 1e3:.1f} ms at most"
    if usual > SLOW_COMMIT_S:
        yield Finding("bad", f"{text}: use a local disk, not a network's.")
    else:
        yield Finding("ok", f"{text}.")


def _judge_lock(place: Path) -> Check:
    try:
        WriterLock(place).release()
    except BusyError:
        return
    text = "does not know locks, so that two collectors could spoil a run: use a local disk."
    yield Finding("bad", f"The file system of {place.parent.parent} {text}")


def _commit(writer: RunWriter, number: int) -> float:
    before = time.perf_counter()
    event = Event(kind="report", attempt=0, rank=0, step=number, text="")
    writer.commit([], streams={"doctor": number}, events=[event])
    return time.perf_counter() - before


def check_burst(store: Path) -> Check:
    """How many frames a second this machine joins and stores, without the network."""
    try:
        with tempfile.TemporaryDirectory(dir=store, prefix=".rankscope-doctor-") as folder:
            rate = _burst(Path(folder))
    except (OSError, StoreError) as error:
        yield Finding("bad", f"A burst of frames could not be stored: {error}")
        return
    text = f"It joins and stores {rate:.0f} frames a second, of {SITES} sites each"
    if rate < FEW_FRAMES:
        cure = "give it a faster disk and a free core, or observe less often (every=10)"
        yield Finding("note", f"{text}: {cure}.")
    else:
        yield Finding("ok", f"{text}.")


def _burst(folder: Path) -> float:
    settings = CollectorSettings(commit_s=0.2)
    collector = Collector(
        lambda name: RunWriter.open(folder / name, run=name), settings, time.time_ns, 0.0
    )
    sites = [Site(kind="tap", name=str(n), placement={"dp": "shard"}) for n in range(SITES)]
    schema = make_schema(sites)
    values = np.random.default_rng(0).standard_normal(1024).astype(np.float32)
    table = SketchTable.concatenate([sketch_array(values)] * SITES)
    rows = np.arange(SITES, dtype=np.uint32)
    peers = [str(rank).encode() for rank in range(RANKS)]
    for rank, peer in enumerate(peers):
        collector.receive(peer, [encode(_hello(rank))], time.monotonic())
        collector.receive(peer, [encode(schema)], time.monotonic())
    begin = time.perf_counter()
    for step in range(STEPS):
        frame = Frame(sequence=step, step=step, time_ns=step, sites=rows, table=table)
        parts = encode_frame(frame, schema.hash)
        for peer in peers:
            collector.receive(peer, parts, time.monotonic())
        collector.tick(time.monotonic())
    collector.close(time.monotonic())
    took = time.perf_counter() - begin
    if collector.statistics().records < STEPS:
        raise StoreError("see the log above.")
    return RANKS * STEPS / took


def _hello(rank: int) -> Hello:
    return Hello(
        protocol_min=PROTOCOL,
        protocol_max=PROTOCOL,
        run="burst",
        launch="doctor",
        stream=f"doctor-{rank}",
        rank=rank,
        world_size=RANKS,
        mesh=[MeshAxis(name="dp", size=RANKS, coordinate=rank)],
    )
