"""`rankscope doctor`: whether all that a collector and its agents need is there, and what to do."""

from __future__ import annotations

import platform
import secrets
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import click
import numpy as np
import zmq

from ..sketch.errors import AddressError, BusyError, ProtocolError, SettingError, StoreError
from ..sketch.reference import sketch_array
from ..sketch.table import SketchTable
from ..store.lock import WriterLock
from ..store.objects import delete_below, keeps_conditions
from ..store.place import ObjectUrl, Place, place_of
from ..store.record import Event
from ..store.writer import RunWriter
from ..wire.address import Address, parse_address
from ..wire.codec import Frame, decode, encode, encode_frame, make_schema
from ..wire.keys import COLLECTOR, OWN, AgentKeys
from ..wire.messages import PROTOCOL, Hello, MeshAxis, Ping, Pong, Reject, Site
from .session import Collector
from .settings import CollectorSettings

ANSWER_S = 5.0
DEFAULT = "tcp://127.0.0.1:7600"
LEAST_FREE = 1 << 30
"""Bytes: some hours of a small job."""
COMMITS = 20
SLOW_COMMIT_S, SLOW_REMOTE_S = 0.2, 1.0
"""Of a disk, and of an object store. Commits are made every second and a half."""
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
@click.option("--to", help="Address of a collector or relay, as tcp://host:7600.")
@click.option("--keys", help="Folder of an agent's keys, for a collector that asks for them.")
@click.option("--store", help="Folder or URL of runs that a collector here would write.")
def doctor(to: str | None, keys: str | None, store: str | None) -> None:
    """Check what a collector and its agents need; a line each, and what to do.

    Without options: this installation, and whether a collector could listen here. The exit code is
    1 if something is bad. `rankscope doctor --poptorch` checks PopTorch instead, by itself.
    """
    checks: list[Callable[[], Check]] = [check_versions]
    checks.append((lambda: check_network(to, keys)) if to else (lambda: check_port(keys)))
    if store is not None:
        checks.append(lambda: check_store(store))
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


def check_port(keys: str | None = None) -> Check:
    """Whether a collector could listen where it does by default; if one does, what it says."""
    where = parse_address(DEFAULT)
    with socket.socket() as probe:
        try:
            probe.bind((where.host, where.port))
        except OSError:
            for found in check_network(DEFAULT, keys):
                # On the collector's own machine it may well be one, and healthy.
                is_mute = keys is None and found.text == f"{DEFAULT}: {_silence(None)}"
                yield Finding("note", found.text) if is_mute else found
            return
    yield Finding("ok", f"{DEFAULT} is free for `rankscope collect`.")


def check_network(to: str, keys: str | None = None) -> Check:
    """Whether a collector answers, how fast, and whether its clock agrees with ours."""
    try:
        where = parse_address(to)
        own = AgentKeys.load(keys) if keys else None
    except (AddressError, SettingError) as error:
        yield Finding("bad", str(error))
        return
    refused = _why_unreachable(where)
    if refused:
        yield Finding("bad", f"{to} cannot be reached ({refused}): {_cure(where)}.")
        return
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger, peer.ipv6 = 0, where.is_ipv6
        peer.sndtimeo = int(ANSWER_S * 1000)  # after a refused handshake nobody takes a message
        if own is not None:
            own.protect(peer)
        peer.connect(to)
        pong, off_s = None, 0.0
        times: list[float] = []
        for payload in (b"", b"", b"", bytes(1 << 20)):
            before, sent_ns = time.perf_counter(), time.time_ns()
            pong = _ask(peer, payload)
            if not isinstance(pong, Pong):
                yield Finding("bad", f"{to}: {pong or _silence(keys)}")
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


def _silence(keys: str | None) -> str:
    """What may be the matter with what does not answer."""
    if keys is None:
        return (
            "what listens there does not answer: it is no collector, or it asks for keys; then "
            "give those of an agent, --keys keys/agent."
        )
    return (
        f"what listens there does not answer: it is no collector, or has no keys, or other ones "
        f"than {Path(keys) / COLLECTOR}, or {Path(keys) / OWN}.key is not in its folder agents/; "
        "its log says which."
    )


def _ask(peer: zmq.Socket[bytes], payload: bytes) -> Pong | str:
    """Its answer, or what is wrong with it; empty if none comes."""
    try:
        peer.send(encode(Ping(payload=payload)))
    except zmq.Again:
        return ""
    if not peer.poll(int(ANSWER_S * 1000)):
        return ""
    try:
        answer = decode(peer.recv_multipart()[0], "collector")
    except ProtocolError:
        return "what listens there speaks another language; give the collector's address."
    if isinstance(answer, Pong):
        return answer
    older = "is older than this rankscope: install one version on both sides."
    return f"the collector {older}" if isinstance(answer, Reject) else "an answer made no sense."


def check_store(store: str) -> Check:
    """Whether a place can be written and has room, keeps two writers apart, and how fast it is.

    Nothing is left behind.
    """
    try:
        place = place_of(store)
        with _beside(place) as inside:
            if isinstance(inside, ObjectUrl):
                yield _judge_conditions(store, inside / "condition")
            else:
                yield _judge_room(store, inside)
            with RunWriter.open(inside / "run", run="run") as writer:
                if isinstance(inside, Path):
                    yield from _judge_lock(store, inside / "run")
                times = [_commit(writer, number) for number in range(COMMITS)]
            yield _judge_commits(times, isinstance(inside, Path))
            if isinstance(inside, Path):
                yield _judge_burst(_burst(inside))
    except (OSError, StoreError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        yield Finding("bad", f"{store} cannot be written ({why}): give another --store.")


@contextmanager
def _beside(place: Place) -> Generator[Place]:
    """A place of our own in `place`, which is gone afterwards, like folders made for it."""
    if isinstance(place, ObjectUrl):
        inside = place / f".rankscope-doctor-{secrets.token_hex(4)}"
        try:
            yield inside
        finally:
            delete_below(inside)
        return
    made = [one for one in (place, *place.parents) if not one.exists()]
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=".rankscope-doctor-") as folder:
            yield Path(folder)
    finally:
        with suppress(OSError):  # another process may have put something there
            for one in made:
                one.rmdir()


def _judge_room(store: str, folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    gib = free / 2**30
    if free < LEAST_FREE:
        return Finding(
            "bad", f"{store} has {gib:.2f} GiB free: make room, or give another --store."
        )
    return Finding("ok", f"{store} can be written and has {gib:.0f} GiB free.")


def _judge_conditions(store: str, at: ObjectUrl) -> Finding:
    if keeps_conditions(at):
        return Finding("ok", f"{store} can be written, and takes writes on condition.")
    text = "writes what it should refuse (If-Match, If-None-Match), so that two collectors could "
    return Finding("bad", f"{store} {text}spoil a run: use a server that keeps to these headers.")


def _judge_lock(store: str, run: Path) -> Check:
    try:
        WriterLock(run).release()
    except BusyError:
        return
    text = "does not know locks, so that two collectors could spoil a run: use a local disk."
    yield Finding("bad", f"The file system of {store} {text}")


def _judge_commits(times: Sequence[float], is_local: bool) -> Finding:
    usual, worst = statistics.median(times), max(times)
    text = f"A small commit takes {usual * 1e3:.1f} ms, {worst * 1e3:.1f} ms at most"
    if usual <= (SLOW_COMMIT_S if is_local else SLOW_REMOTE_S):
        return Finding("ok", f"{text}.")
    cure = "use a local disk, not a network's" if is_local else "use a store that is nearer"
    return Finding("bad", f"{text}: {cure}.")


def _commit(writer: RunWriter, number: int) -> float:
    before = time.perf_counter()
    event = Event(kind="report", attempt=0, rank=0, step=number, text="")
    writer.commit([], streams={"doctor": number}, events=[event])
    return time.perf_counter() - before


def _judge_burst(rate: float) -> Finding:
    """How many frames a second this machine joins and stores, without the network."""
    text = f"It joins and stores {rate:.0f} frames a second, of {SITES} sites each"
    if rate < FEW_FRAMES:
        cure = "give it a faster disk and a free core, or observe less often (every=10)"
        return Finding("note", f"{text}: {cure}.")
    return Finding("ok", f"{text}.")


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
        raise StoreError("a burst of frames was not stored, see the log above")
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
