"""Sessions as a hostile peer would have them, and a collector that must bear them.

A session is a list of messages, a message a list of parts. `tests/wire/corpus/` keeps some, as
msgpack, for a plain test and for `make fuzz`.
"""

from __future__ import annotations

import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import msgspec
import numpy as np

from rankscope.collector import Collector, CollectorSettings
from rankscope.sketch import CastCounts
from rankscope.store import RunWriter
from rankscope.wire import (
    Frame,
    Gap,
    Goodbye,
    Site,
    SiteExactCount,
    State,
    decode,
    encode,
    encode_frame,
    make_schema,
)

from .serving import SITES, a_table, hello

Session = list[list[bytes]]

CORPUS = Path(__file__).parent.parent / "wire" / "corpus"
EXACT_COUNTS = [SiteExactCount(site=0, name=CastCounts("float8_e5m2").name)]
SCHEMA = make_schema(SITES, EXACT_COUNTS)
TEXTS = [
    "",
    "x" * 1024,
    "é" * 600,
    "../../up",
    "/etc/passwd",
    "a\0b",
    "\x1b[2J\n",
    "<b>",
    "dp",
    "tp",
]
VALUES: dict[type, list[Any]] = {
    int: [-1, 0, 1, 2, 7, 1023, 2**31, 2**47, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)],
    float: [0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf")],
    str: [*TEXTS, "shard", "partial", "weight_gradient", "local_weight_gradient"],
    bytes: [b"", b"\0" * 16, b"x" * 17],
    bool: [True, False],
    list: [[], [[]] * 20, ["x"] * 5000],
    dict: [{}, {"": 0.0}, {"a" * 1024: 1e308}, {f"{i}": 1.0 for i in range(4000)}, {"dp": "shard"}],
    type(None): [0, ""],
}  # fmt: skip
"""What is put in the place of a part of a real message, mostly of the same type."""


def normal_session(
    rank: int = 0, ranks: int = 1, frames: int = 3, stream: str = "stream"
) -> Session:
    """What an agent says that means well."""
    named = {"stream": stream, "launch": stream, "host": "node", "facts": {"torch": "2"}}
    session = [[encode(hello(rank, ranks, budget=0.01, **named))]]
    session.append([encode(SCHEMA)])
    for step in range(frames):
        frame = Frame(
            sequence=step,
            step=step,
            time_ns=step + 1,
            sites=np.arange(2, dtype=np.uint32),
            table=a_table(step + 1.0),
            exact_counts={0: np.array([1, 2, 0, 300])},
            training={"loss": 1.0},
            health={"hook_seconds": 0.1, "wall_seconds": 1.0, "stretch": 1.0},
            reports=["a site is off"],
            gaps=[Gap(first_step=0, last_step=1, frames=1, cause="full")],
        )
        session.append(list(encode_frame(frame, SCHEMA.hash)))
    session.append([encode(State(step=frames, site="fc", tensors=1))])
    session.append([encode(Goodbye(last=frames - 1, reason="done"))])
    return session


def mutate(session: Session, random: Random) -> Session:
    """A session that is like another, but for some changes at places of its structure."""
    changed = [list(parts) for parts in session]
    for _ in range(random.randint(1, 4)):
        place = random.randrange(len(changed))
        kind = random.randrange(8)
        if kind < 4:
            changed[place][0] = _mutate_header(changed[place][0], random)
        elif kind == 4 and len(changed[place]) > 1:
            changed[place] = _mutate_blob(changed[place], random)
        elif kind == 5:
            changed.insert(random.randrange(len(changed) + 1), list(random.choice(changed)))
        elif kind == 6 and len(changed) > 2:
            del changed[place]
        else:
            changed[place] = [*changed[place], random.randbytes(random.randrange(9))]
    return changed


def _mutate_header(header: bytes, random: Random) -> bytes:
    """One value somewhere in it becomes another; a schema's hash is made to fit again."""
    try:
        message = msgpack.unpackb(header, strict_map_key=False)
    except (ValueError, TypeError):  # no msgpack, or a list as the key of a map
        return header
    if not isinstance(message, list):
        return header
    spot: Any = message
    while isinstance(spot, list) and spot:
        place = random.randrange(len(spot))
        inner: Any = spot[place]
        if isinstance(inner, list) and inner and random.random() < 0.8:
            spot = inner
            continue
        known = type(inner) in VALUES and random.random() < 0.9
        kind = type(inner) if known else random.choice(list(VALUES))
        spot[place] = random.choice(VALUES[kind])
        break
    changed = bytes(msgpack.packb(message) or b"")
    return _with_hash(changed) if message and message[0] == "schema" else changed


def _with_hash(schema: bytes) -> bytes:
    try:
        _, _, _, sites, exact_counts = msgpack.unpackb(schema)
        sites = msgspec.convert(sites, list[Site])
        exact_counts = msgspec.convert(exact_counts, list[SiteExactCount])
        return encode(make_schema(sites, exact_counts))
    except (msgspec.ValidationError, ValueError, TypeError):
        return schema


def _mutate_blob(parts: list[bytes], random: Random) -> list[bytes]:
    """Some bytes of the columns become others, and the checksum fits."""
    blob = bytearray(parts[1])
    for _ in range(random.randint(1, 8)):
        if blob:
            at = random.randrange(len(blob))
            blob[at : at + 8] = random.choice(
                [b"\xff" * 8, b"\x7f" * 8, bytes(8), random.randbytes(8)]
            )[: len(blob) - at]
    return [fitting(parts[0], bytes(blob)), bytes(blob)]


def fitting(header: bytes, blob: bytes) -> bytes:
    """The header of a frame with the blob's checksum."""
    try:
        message = decode(header, "agent")
        return encode(msgspec.structs.replace(message, crc32=zlib.crc32(blob)))
    except Exception:  # whatever it is, it stays as it is
        return header


class Sandbox:
    """A collector with a store of its own."""

    def __init__(self, folder: Path, settings: CollectorSettings | None = None) -> None:
        self.store = folder / "store"
        self.store.mkdir()
        self.collector = Collector(
            lambda name: RunWriter.open(self.store / name, run=name),
            settings or CollectorSettings(commit_s=0.0, max_runs=4),
            time.time_ns,
            0.0,
        )
        self.now = 0.0

    def play(self, session: Session, peer: bytes = b"peer") -> None:
        """Let a peer say all of it; the loop of a service goes on meanwhile."""
        for parts in session:
            self.now += 0.1
            self.collector.receive(peer, parts, self.now)
            self.collector.tick(self.now)
            self.collector.outgoing.clear()

    def rest(self) -> None:
        """Let commits that are under way come to their end."""
        while self.collector.is_storing:
            time.sleep(0.01)
            self.collector.tick(self.now)

    def runs(self) -> list[str]:
        """What is in the store, but for its locks."""
        return sorted(one.name for one in self.store.iterdir() if not one.name.endswith(".lock"))

    def check(self) -> None:
        """Nothing of ours was at fault, and nothing was written elsewhere."""
        statistics = self.collector.statistics()
        assert statistics.faults == 0
        assert statistics.failed_commits == 0
        assert [entry.name for entry in self.store.parent.iterdir()] == ["store"]

    def close(self) -> None:
        """Wait until all ranks are lost, and store what there is."""
        self.now += 1000.0
        self.collector.tick(self.now)
        self.collector.close(self.now)


def bear(session: Session) -> None:
    """A fresh collector bears a session, before and after one that means well."""
    with tempfile.TemporaryDirectory() as folder:
        sandbox = Sandbox(Path(folder))
        sandbox.play(session)
        sandbox.check()
        before = sandbox.collector.statistics().frames
        sandbox.now += 40.0  # longer than a rank may be silent
        sandbox.play(normal_session(frames=2, stream="well"), b"other")
        assert sandbox.collector.statistics().frames == before + 2
        sandbox.close()
        sandbox.check()


def save(session: Session, name: str) -> None:
    """Keep a session in the corpus."""
    (CORPUS / f"{name}.msgpack").write_bytes(msgspec.msgpack.encode(session))


def load(file: Path | bytes) -> Sequence[Sequence[bytes]]:
    """A session of the corpus; bytes that are none are one message of one part."""
    raw = file.read_bytes() if isinstance(file, Path) else file
    try:
        return msgspec.msgpack.decode(raw, type=list[list[bytes]])
    except (msgspec.DecodeError, ValueError):
        return [[raw]]
