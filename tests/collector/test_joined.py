"""Joined frames at the collector: taken as a whole or not at all, of one connection's streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from rankscope.collector import Collector
from rankscope.merge import Contribution, Topology, join, lay_out
from rankscope.store import RunWriter, open_run
from rankscope.wire import (
    Frame,
    Goodbye,
    JoinedMember,
    Reject,
    Site,
    decode,
    encode,
    encode_frame,
    make_schema,
    open_frame,
)
from rankscope.wire.via import addressed, arrived, unwrap, wrap

from .hostile import fitting
from .serving import QUICK, SITES, VALUES, a_table, hello

SCHEMA = make_schema(SITES)
RELAY, OTHER = b"relay", b"other"


def frame_of(step: int, *, partial: bool = False) -> tuple[bytes, bytes]:
    frame = Frame(
        partial=partial,
        sequence=step,
        step=step,
        time_ns=step + 1,
        sites=np.arange(2, dtype=np.uint32),
        table=a_table(),
    )
    return encode_frame(frame, SCHEMA.hash)


def joined(
    ranks: list[int],
    step: int = 0,
    world_size: int = 2,
    sequences: Mapping[int, int] | None = None,
) -> list[bytes]:
    """What a relay makes of frames of these ranks."""
    topology = Topology.of(SITES, {"dp": world_size}, world_size)
    parts, said = dict[int, Contribution](), dict[int, JoinedMember]()
    for rank in ranks:
        header, blob = frame_of(step)
        packed = open_frame(decode(header, "agent"), blob, SCHEMA)
        parts[rank] = Contribution(packed, lay_out(SITES, [0, 1], hello(rank, world_size).mesh))
        number = (sequences or {}).get(rank, step)
        said[rank] = JoinedMember(stream=f"stream-{rank}", sequence=number, time_ns=1)
    header, blob = join(parts, said, topology, SCHEMA.hash)
    return [encode(header), blob]


class Peers:
    """Ranks 0 and 1 behind one relay, rank 1 also elsewhere if asked."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.collector = Collector(
            lambda name: RunWriter.open(store / name, run=name), QUICK, lambda: 1, 0.0
        )

    def say(self, route: bytes, member: int | None, parts: list[bytes]) -> None:
        sent = parts if member is None else wrap(member, parts)
        self.collector.receive(*arrived(route, sent), now=0.0)

    def greet(self, route: bytes, rank: int) -> None:
        self.say(route, rank, [encode(hello(rank, 2))])
        self.say(route, rank, [encode(SCHEMA)])

    def answers(self) -> list[object]:
        said, self.collector.outgoing = self.collector.outgoing, []
        return [decode(unwrap(addressed(*one)[1:])[1][0], "collector") for one in said]

    def counts_of_nothing(self) -> None:
        """Close; nothing is stored."""
        self.collector.close(1.0)
        assert open_run(self.store / "demo").records().empty

    def counts(self) -> list[float]:
        """Close, and of each record how many elements it has."""
        self.collector.close(1.0)
        run = open_run(self.store / "demo")
        return run.scalar("count").sel(site="activation:fc").values.tolist()


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    """A collector that both ranks have greeted through a relay."""
    both = Peers(tmp_path)
    both.greet(RELAY, 0)
    both.greet(RELAY, 1)
    both.answers()
    yield both
    assert both.collector.statistics().faults == 0


def test_it_counts_for_each_of_its_ranks(peers: Peers) -> None:
    for step in range(3):
        peers.say(RELAY, 0, joined([0, 1], step))
    for rank in (0, 1):
        peers.say(RELAY, rank, [encode(Goodbye(last=2))])

    assert peers.collector.statistics().frames == 6
    assert peers.counts() == [2.0 * VALUES] * 3


def test_it_is_taken_once(peers: Peers) -> None:
    for _ in range(2):
        peers.say(RELAY, 0, joined([0, 1]))

    assert peers.collector.statistics().duplicates == 2
    assert peers.counts() == [2.0 * VALUES]


def test_it_is_refused_where_some_of_it_came_before(peers: Peers) -> None:
    peers.say(RELAY, 1, list(frame_of(0)))
    peers.say(RELAY, 0, joined([0, 1]))
    answers = peers.answers()

    assert [type(one) for one in answers] == [Reject, Reject]
    assert all(isinstance(one, Reject) and one.retry_s for one in answers)
    assert peers.counts() == [VALUES]


def test_nobody_joins_streams_of_another_connection(peers: Peers) -> None:
    peers.greet(OTHER, 1)
    peers.answers()
    peers.say(RELAY, 0, joined([0, 1]))

    assert [type(one) for one in peers.answers()] == [Reject]
    assert peers.collector.statistics().frames == 0
    peers.say(OTHER, 1, list(frame_of(0)))
    assert peers.counts() == [VALUES]


def test_whatever_is_in_it_the_collector_goes_on(peers: Peers) -> None:
    random = Random(0)
    for number in range(300):
        header, blob = joined([0, 1], number)
        changed = bytearray(header if number % 2 else blob)
        for _ in range(random.randint(1, 3)):
            changed[random.randrange(len(changed))] = random.randrange(256)
        other = bytes(changed)
        parts = [other, blob] if number % 2 else [fitting(header, other), other]
        peers.say(RELAY, 0, parts)
        peers.greet(RELAY, 0)
        peers.greet(RELAY, 1)
        peers.collector.tick(float(number))
    assert peers.collector.statistics().failed_commits == 0
    peers.counts()


def test_a_step_that_began_unfinished_is_completed_by_joined_frames(peers: Peers) -> None:
    header, blob = frame_of(0, partial=True)
    peers.say(RELAY, 1, [header, blob])
    peers.say(RELAY, 0, joined([0, 1], 0, sequences={0: 0, 1: 1}))
    peers.say(RELAY, 0, joined([0, 1], 1, sequences={0: 1, 1: 2}))

    assert not [one for one in peers.answers() if isinstance(one, Reject)]
    assert peers.counts() == [2.0 * VALUES] * 2


def test_when_one_of_its_streams_is_not_known_all_come_again(peers: Peers) -> None:
    peers.say(RELAY, 0, joined([0, 1, 2], world_size=3))
    refused = [one for one in peers.answers() if isinstance(one, Reject)]

    assert len(refused) == 2
    assert peers.collector.statistics().frames == 0
    peers.counts_of_nothing()


def test_a_stream_that_owes_a_frame_is_not_joined(peers: Peers) -> None:
    header, blob = frame_of(0)
    lacking = make_schema([*SITES, Site(kind="tap", name="new")])
    peers.say(RELAY, 1, [encode(replace(decode(header, "agent"), schema=lacking.hash)), blob])
    peers.say(RELAY, 0, joined([0, 1], 0, sequences={0: 0, 1: 1}))

    assert len([one for one in peers.answers() if isinstance(one, Reject)]) == 2
    assert peers.collector.statistics().frames == 0
    peers.counts_of_nothing()
