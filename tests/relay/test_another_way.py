"""A rank goes on past a relay in whose spool frames of it lie: real processes and connections."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankscope.agent import Outbox
from rankscope.sketch import NotARunError
from rankscope.store import open_run

from ..chaos.proxy import Proxy
from ..collector.serving import close_all, outbox, send, start_collector, wait_until
from .relaying import assert_each_frame_is_stored_once, end, start_relay, statistics_of

ELSEWHERE = "it is in the spool of a relay that the rank has left, or in a store that is gone"
WAYS = ["to the collector", "through a relay", "through a relay with a spool"]


@dataclass(slots=True)
class Paths:
    """An agent's way, and that of the relay which it leaves."""

    agent: Proxy
    relay: Proxy
    collector: str
    left: subprocess.Popen[str]
    spool: str
    """Where that listens."""
    other: str
    """Where the agent goes on."""


@contextmanager
def paths(folder: Path, way: str, *options: str) -> Generator[Paths]:
    """A relay with a spool whose way up leads nowhere, and another way for its agents."""
    _, at = start_collector(folder / "runs", *options)
    up = Proxy("tcp://127.0.0.1:1")
    left, address = start_relay(up.address, "--spool", str(folder / "left"))
    more = () if way == WAYS[1] else ("--spool", str(folder / "other"))
    other = at if way == WAYS[0] else start_relay(at, *more)[1]
    down = Proxy(address)
    try:
        yield Paths(down, up, at, left, address, other)
    finally:
        down.close()
        up.close()


def goes_on(box: Outbox) -> None:
    """The agent reads what it is told, and gives a sign of life."""
    now = time.monotonic()
    box.poll(now)
    box.beat(now, step=15, site="", tensors=0, health=dict[str, float])


def records_of(run: Path) -> int:
    """How many are stored."""
    try:
        return len(open_run(run).records())
    except NotARunError:  # it has not begun
        return 0


def poll_until_durable(box: Outbox, frames: int) -> None:
    """Until so many are, wherever that is."""
    wait_until(lambda: goes_on(box) or box.statistics().acknowledged == frames)


@pytest.mark.parametrize("way", WAYS)
def test_what_lies_in_its_spool_comes_first_and_nothing_is_lost(tmp_path: Path, way: str) -> None:
    with paths(tmp_path, way) as of:
        box = outbox(of.agent.address)
        send(box, range(10))
        poll_until_durable(box, 10)
        of.agent.lead_to(of.other)
        of.agent.reset()
        began = time.monotonic()
        send(box, range(10, 15), pause_s=0.1)
        wait_until(lambda: goes_on(box) or time.monotonic() - began > 2)
        of.relay.lead_to(of.collector)
        assert close_all([box], timeout_s=30) == [True]
        run = tmp_path / "runs" / "demo"
        wait_until(lambda: records_of(run) == 15)
        of.left.send_signal(signal.SIGTERM)
        assert statistics_of(end(of.left))["held_frames"] == 0

    assert_each_frame_is_stored_once(open_run(run), 1, 15)


@pytest.mark.parametrize(
    ("way", "leaves"), [(WAYS[0], True), (WAYS[0], False), (WAYS[1], True), (WAYS[2], False)]
)
def test_what_does_not_come_in_time_is_told_as_a_gap_and_never_counts_twice(
    tmp_path: Path, way: str, leaves: bool
) -> None:
    run = tmp_path / "runs" / "demo"
    with paths(tmp_path, way, "--deadline", "2", "--lost-after", "6") as of:
        of.agent.lead_to(of.other)
        box = outbox(of.agent.address)
        send(box, range(3))
        poll_until_durable(box, 3)
        wait_until(lambda: records_of(run) == 3)
        of.agent.lead_to(of.spool)
        of.agent.reset()
        send(box, range(3, 10))
        poll_until_durable(box, 10)
        of.agent.lead_to(of.other)
        of.agent.reset()
        send(box, range(10, 15))
        wait_until(lambda: goes_on(box) or records_of(run) == 8)
        if leaves:
            assert close_all([box]) == [True]
            wait_until(lambda: open_run(run).attempts["left"].tolist() == [(0,)])
        before = of.relay.accepted
        of.relay.lead_to(of.collector)
        wait_until(lambda: goes_on(box) or of.relay.accepted > before)
        began = time.monotonic()
        wait_until(lambda: goes_on(box) or time.monotonic() - began > 8)
        if not leaves:
            send(box, range(15, 20))
            assert close_all([box]) == [True]
        wait_until(lambda: open_run(run).attempts["left"].tolist() == [(0,)])
        of.left.send_signal(signal.SIGTERM)
        assert statistics_of(end(of.left))["held_frames"] == 0
    stored = open_run(run)
    gap = stored.gaps()[["rank", "first_step", "last_step", "frames", "cause"]]

    assert stored.records().step.tolist() == [0, 1, 2, *range(10, 15 if leaves else 20)]
    assert stored.scalar("count").sel(site="activation:fc").values.tolist() == [8.0] * (
        8 if leaves else 13
    )
    assert gap.values.tolist() == [[0, 3, 9, 7, ELSEWHERE]]
    assert stored.events()["kind"].tolist() == ["gap"], "nobody is lost, nobody comes back"
