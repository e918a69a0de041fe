"""Relays between real agents and real collectors: all arrives, once, and as it was sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.agent import Outbox
from rankscope.store import open_run

from ..collector.serving import (
    close_all,
    outbox,
    send,
    start_collector,
    stop_collectors,
)
from .relaying import (
    assert_each_frame_is_stored_once,
    end,
    start_relay,
    statistics_of,
)


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    """Whatever happens to a test."""
    yield
    stop_collectors()


@pytest.fixture(params=["memory", "spool"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """A relay with a spool, and one without."""
    spool = ["--spool", str(tmp_path / "spool"), "--min-free", "0"]
    return spool if request.param == "spool" else []


def start_senders(
    address: str, ranks: int, steps: int, pause_s: float = 0.01, **fields: object
) -> tuple[list[threading.Thread], list[Outbox]]:
    boxes = [outbox(address, rank, ranks, **fields) for rank in range(ranks)]
    threads = [
        threading.Thread(target=send, args=(box, range(steps)), kwargs={"pause_s": pause_s})
        for box in boxes
    ]
    for thread in threads:
        thread.start()
    return threads, boxes


def run_job(address: str, ranks: int, steps: int, pause_s: float = 0.01, **fields: object) -> None:
    """Ranks that send so many steps, and leave when all is durable."""
    threads, boxes = start_senders(address, ranks, steps, pause_s, **fields)
    for thread in threads:
        thread.join()
    assert close_all(boxes, timeout_s=40) == [True] * ranks


def test_what_goes_through_a_relay_is_what_was_sent(tmp_path: Path, options: list[str]) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    relay, address = start_relay(at, "--until-done", *options)
    threads, boxes = start_senders(address, 3, 40)
    for thread in threads:
        thread.join()
    assert close_all(boxes) == [True] * 3
    log = end(relay)
    end(collector)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 3, 40)
    told = statistics_of(log)
    assert (told["frames"], told["sent"], told["held_frames"]) == (120, 120, 0)
    assert (told["faults"], told["malformed"], told["dropped"]) == (0, 0, {})
