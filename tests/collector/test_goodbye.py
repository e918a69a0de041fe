"""A goodbye is answered when what it says is in the store, and not before."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankscope.collector import Collector
from rankscope.sketch import SketchTable
from rankscope.store import RunWriter, open_run
from rankscope.wire import (
    Ack,
    Frame,
    Gap,
    Goodbye,
    NeedSchema,
    Reject,
    Welcome,
    decode,
    encode,
    encode_frame,
    make_schema,
)

from .serving import QUICK, SITES, a_table, hello, wait_until

SCHEMA = make_schema(SITES)
GAP = Gap(first_step=1, last_step=1, frames=1, cause="the disk is slow")


class Peers:
    """Ranks of one collector, without sockets; one that is killed stores nothing more."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.writer: RunWriter | None = None
        self.collector = Collector(self.open, QUICK, lambda: 1, time.monotonic())

    def open(self, name: str) -> RunWriter:
        self.writer = RunWriter.open(self.store / name, run=name)
        return self.writer

    def say(self, rank: int, *parts: bytes) -> None:
        self.collector.receive(b"%d" % rank, parts, time.monotonic())

    def greet(self, rank: int, ranks: int = 1) -> None:
        self.say(rank, encode(hello(rank, ranks)))

    def frame(self, rank: int, step: int) -> None:
        table: SketchTable = a_table()
        rows = np.arange(len(SITES), dtype=np.uint32)
        frame = Frame(sites=rows, table=table, sequence=step, step=step, time_ns=1)
        self.say(rank, *encode_frame(frame, SCHEMA.hash))

    def goodbye(self, rank: int, last: int, **more: object) -> None:
        self.say(rank, encode(Goodbye(last=last, **more)))  # pyright: ignore[reportArgumentType]

    def answers(self, kind: type) -> list[object]:
        said, self.collector.outgoing = self.collector.outgoing, []
        every = [decode(part, "collector") for _, part in said]
        return [one for one in every if isinstance(one, kind)]

    def until(self, is_so: Callable[[], object]) -> None:
        """Let the collector go on until then; it stores on a thread of its own."""

        def goes_on() -> object:
            self.collector.tick(time.monotonic())
            return is_so()

        wait_until(goes_on)

    def kill(self) -> Peers:
        """Another collector, which knows what is stored."""
        assert self.writer is not None
        self.writer.close()
        return Peers(self.store)


@pytest.fixture
def peers(tmp_path: Path) -> Peers:
    return Peers(tmp_path)


@pytest.mark.parametrize("more", [{}, {"gaps": [GAP]}, {"reason": "it was told to"}])
def test_what_it_says_is_stored_when_it_is_answered(peers: Peers, more: dict[str, object]) -> None:
    peers.greet(0)
    peers.say(0, encode(SCHEMA))
    peers.frame(0, 0)
    peers.until(lambda: peers.answers(Ack) == [Ack(received=0, committed=0, left=False)])
    last = len(more.get("gaps", ()))  # pyright: ignore[reportArgumentType]
    peers.goodbye(0, last, **more)
    peers.collector.acknowledge()
    assert peers.answers(Ack) == [], "it is not durable"

    peers.until(lambda: peers.answers(Ack) == [Ack(received=last, committed=last, left=True)])
    peers.kill()
    run = open_run(peers.store / "demo")
    assert run.attempts["left"].tolist() == [(0,)]
    assert run.events()["kind"].tolist() == ["gap"] * ("gaps" in more) + ["rank-left"] * (
        "reason" in more
    )


def test_who_has_left_is_not_awaited_by_the_next_collector(peers: Peers) -> None:
    for rank in (0, 1):
        peers.greet(rank, 2)
        peers.say(rank, encode(SCHEMA))
        peers.frame(rank, 0)
    peers.goodbye(1, 0)
    peers.until(lambda: Ack(received=0, committed=0, left=False) in peers.answers(Ack))
    peers.until(lambda: open_run(peers.store / "demo").attempts["left"].tolist() == [(1,)])

    later = peers.kill()
    began = time.monotonic()
    later.greet(0, 2)
    later.say(0, encode(SCHEMA))
    later.frame(0, 1)
    later.until(lambda: Ack(received=1, committed=1, left=False) in later.answers(Ack))
    assert time.monotonic() - began < QUICK.joiner.deadline_s / 2

    later.greet(1, 2)
    later.goodbye(0, 1)
    later.until(lambda: Ack(received=1, committed=1, left=True) in later.answers(Ack))
    assert open_run(later.store / "demo").attempts["left"].tolist() == [(0,)], "1 came back"


def test_it_answers_for_no_frame_that_was_refused_for_want_of_its_schema(peers: Peers) -> None:
    peers.greet(0)
    peers.frame(0, 0)
    peers.goodbye(0, 0)
    said = peers.answers(object)
    assert [type(one) for one in said] == [Welcome, NeedSchema, Reject]
    assert isinstance(said[2], Reject)
    assert said[2].retry_s is not None, "the agent comes again, with the frame"


def test_it_answers_for_no_frame_that_is_left_to_the_next_collector(peers: Peers) -> None:
    peers.greet(0)
    peers.say(0, encode(SCHEMA))
    peers.collector.seal()
    peers.frame(0, 0)
    peers.goodbye(0, 0)
    peers.collector.tick(time.monotonic())
    peers.collector.close(time.monotonic())
    assert [
        one for one in peers.answers(Ack) if one != Ack(received=-1, committed=-1, left=False)
    ] == []
    assert open_run(peers.store / "demo").records().empty
