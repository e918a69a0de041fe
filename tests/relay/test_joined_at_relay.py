"""Joined frames at a relay: taken as a whole or not at all; what is wrong in one stops nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from rankscope.relay import Relay, RelaySettings, Spool
from rankscope.wire import (
    PROTOCOL,
    FrameHeader,
    Goodbye,
    Hello,
    JoinedHeader,
    Ping,
    Pong,
    Reject,
    Site,
    Welcome,
    decode,
    encode,
    make_schema,
)
from rankscope.wire.via import addressed, arrived, unwrap, wrap

from ..collector.hostile import fitting
from ..collector.serving import hello
from ..collector.test_joined import SCHEMA, SITES, frame_of, joined

BELOW, OTHER = b"below", b"other"


class Peers:
    """Two ranks behind one relay, which are at another relay, of which this is the upstream."""

    def __init__(self, folder: Path) -> None:
        settings = RelaySettings(spool=folder, min_free=0, merge=True)
        self.spool = Spool(settings)
        self.relay = Relay(settings, self.spool, 1, 0.0)
        self.now = 0.0
        self.went: list[object] = []
        """Headers of what went up."""
        self.relay.connected(0.0)
        self.tick(0.0)  # it asks who is there before it says anything else

    def say(self, route: bytes, member: int | None, parts: list[bytes]) -> None:
        sent = parts if member is None else wrap(member, parts)
        self.relay.receive(*arrived(route, sent), now=self.now)

    def greet(self, route: bytes, rank: int) -> None:
        self.say(route, rank, [encode(hello(rank, 2))])
        self.say(route, rank, [encode(SCHEMA)])

    def tick(self, seconds: float = 0.1) -> None:
        """Let time pass; upstream welcomes whoever says hello, and takes all."""
        self.now += seconds
        sent = list[Sequence[bytes]]()

        def put(parts: Sequence[bytes]) -> bool:
            sent.append(list(parts))
            return True

        self.relay.tick(self.now, put)
        for parts in sent:
            number, rest = unwrap(parts)
            message = decode(rest[0], "agent")
            if isinstance(message, Ping):
                pong = Pong(protocol=PROTOCOL, version="0", time_ns=0)
                self.relay.answer([encode(pong)], self.now)
                continue
            assert number is not None
            self.went.append(message)
            if isinstance(message, Hello):
                welcome = Welcome(
                    protocol=PROTOCOL,
                    attempt=0,
                    committed=-1,
                    credit_frames=1000,
                    credit_bytes=1 << 30,
                    joins=True,
                )
                self.relay.answer(wrap(number, [encode(welcome)]), self.now)

    def answers(self) -> list[object]:
        said, self.relay.outgoing = self.relay.outgoing, []
        return [decode(unwrap(addressed(*one)[1:])[1][0], "collector") for one in said]

    def rejects(self) -> int:
        return sum(isinstance(one, Reject) for one in self.answers())

    def sequences(self) -> list[tuple[int, ...]]:
        """Of each frame that went up the numbers of what it stands for."""
        found = list[tuple[int, ...]]()
        for one in self.went:
            if isinstance(one, FrameHeader):
                found.append((one.sequence,))
            elif isinstance(one, JoinedHeader):
                found.append(tuple(said.sequence for said in one.members))
        return found


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    """A relay that both ranks have greeted through another."""
    both = Peers(tmp_path)
    for _ in range(2):  # at first it does not know whether frames may be joined
        both.greet(BELOW, 0)
        both.greet(BELOW, 1)
        both.tick()
    both.answers()
    yield both
    assert both.relay.statistics().faults == 0
    both.spool.close()


def test_it_says_of_joining_what_upstream_says(peers: Peers) -> None:
    peers.say(OTHER, 7, [encode(hello(0, 2))])
    peers.say(OTHER, 8, [encode(hello(1, 2, stream="new"))])
    [known, unknown] = [one for one in peers.answers() if isinstance(one, Welcome)]
    peers.tick()  # upstream welcomes the new one
    [again] = [one for one in peers.answers() if isinstance(one, Reject)]
    peers.say(OTHER, 9, [encode(hello(1, 2, stream="new"))])
    [knows] = [one for one in peers.answers() if isinstance(one, Welcome)]

    assert (known.joins, unknown.joins, knows.joins) == (True, False, True)
    assert again.retry_s is not None


def test_it_goes_on_with_its_numbers(peers: Peers) -> None:
    for step in range(3):
        peers.say(BELOW, 0, joined([0, 1], step))
    peers.tick()

    assert peers.relay.statistics().frames == 6
    assert peers.sequences() == [(0, 0), (1, 1), (2, 2)]


def test_it_is_taken_once(peers: Peers) -> None:
    for _ in range(2):
        peers.say(BELOW, 0, joined([0, 1]))
    peers.tick()

    assert peers.relay.statistics().duplicates == 2
    assert peers.sequences() == [(0, 0)]


def test_it_is_refused_where_some_of_it_came_before(peers: Peers) -> None:
    peers.say(BELOW, 1, list(frame_of(0)))
    peers.say(BELOW, 0, joined([0, 1]))

    assert peers.rejects() == 2
    assert peers.relay.statistics().frames == 1


def test_nobody_joins_streams_of_another_connection(peers: Peers) -> None:
    peers.greet(OTHER, 1)
    peers.answers()
    peers.say(BELOW, 0, joined([0, 1]))

    assert peers.rejects() == 1
    assert peers.relay.statistics().frames == 0


def test_when_one_of_its_streams_is_not_known_all_come_again(peers: Peers) -> None:
    peers.say(BELOW, 0, joined([0, 1, 2], world_size=3))

    assert peers.rejects() == 2
    assert peers.relay.statistics().frames == 0


def test_it_comes_on_the_stream_of_its_first_rank(peers: Peers) -> None:
    peers.say(BELOW, 1, joined([0, 1]))

    assert peers.rejects() == 2


def test_a_stream_that_owes_a_frame_is_not_joined(peers: Peers) -> None:
    header, blob = frame_of(0)
    lacking = make_schema([*SITES, Site(kind="tap", name="new")])
    peers.say(BELOW, 1, [encode(replace(decode(header, "agent"), schema=lacking.hash)), blob])
    peers.say(BELOW, 0, joined([0, 1], 0, sequences={0: 0, 1: 1}))

    assert peers.rejects() == 2
    assert peers.relay.statistics().frames == 0


def test_it_answers_for_no_frame_that_was_refused_for_want_of_its_schema(peers: Peers) -> None:
    header, blob = frame_of(0)
    lacking = make_schema([*SITES, Site(kind="tap", name="new")])
    peers.say(BELOW, 0, [encode(replace(decode(header, "agent"), schema=lacking.hash)), blob])
    peers.say(BELOW, 0, [encode(Goodbye(last=0))])

    assert peers.rejects() == 1, "the sender comes again, with the frame"
    peers.greet(BELOW, 0)
    peers.say(BELOW, 0, [header, blob])
    peers.say(BELOW, 0, [encode(Goodbye(last=0))])
    assert (peers.rejects(), peers.relay.statistics().frames) == (0, 1)


def test_a_stream_that_has_ended_is_not_joined(peers: Peers) -> None:
    peers.say(BELOW, 1, [encode(Goodbye(last=-1))])
    peers.say(BELOW, 0, joined([0, 1]))

    assert peers.rejects() == 2


def test_one_that_is_damaged_goes_up_as_it_came(peers: Peers) -> None:
    header, blob = joined([0, 1])
    peers.greet(OTHER, 2)  # of three ranks
    peers.say(BELOW, 0, [header, blob[:-1] + bytes([blob[-1] ^ 1])])
    peers.tick()
    peers.tick(3.0)

    assert peers.sequences() == [(0, 0)]


def test_whatever_is_in_it_the_relay_goes_on(peers: Peers) -> None:
    random = Random(0)
    for number in range(300):
        header, blob = joined([0, 1], number)
        changed = bytearray(header if number % 2 else blob)
        for _ in range(random.randint(1, 3)):
            changed[random.randrange(len(changed))] = random.randrange(256)
        other = bytes(changed)
        parts = [other, blob] if number % 2 else [fitting(header, other), other]
        peers.say(BELOW, 0, parts)
        peers.greet(BELOW, 0)
        peers.greet(BELOW, 1)
        peers.tick(3.0)
    assert peers.relay.statistics().frames > 100
    assert len(peers.sequences()) > 100
