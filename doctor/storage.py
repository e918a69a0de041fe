"""Whether a collector could write a place, how fast, and how many frames it joins and stores."""

from __future__ import annotations

import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from ..collector import Collector, CollectorSettings
from ..sketch.errors import BusyError, StoreError
from ..sketch.reference import sketch_array
from ..sketch.table import SketchTable
from ..store.lock import WriterLock
from ..store.objects import delete_below, keeps_conditions
from ..store.place import ObjectUrl, Place, place_of
from ..store.record import Event
from ..store.writer import RunWriter
from ..wire.codec import Frame, encode, encode_frame, make_schema
from ..wire.messages import PROTOCOL, Hello, MeshAxis, Site
from .finding import Check, Finding

LEAST_FREE = 1 << 30
"""Bytes: some hours of a small job."""
COMMITS = 20
SLOW_COMMIT_S, SLOW_REMOTE_S = 0.2, 1.0
"""Of a disk, and of an object store. Commits are made every second and a half."""
RANKS, SITES, STEPS = 4, 100, 100
"""Of the burst."""
FEW_FRAMES = 100.0
"""A second: what 100 ranks with a step a second send."""


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
