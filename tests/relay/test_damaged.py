"""Messages that are damaged on the way: they come again, or it is told that they cannot be read.

Real connections, with a proxy in one of them that changes bytes.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankscope.store import open_run

from ..collector.serving import a_tap, close_all, outbox, send, serving, wait_until
from .relaying import assert_each_frame_is_stored_once, relaying

PROMPT_S = 5.0
"""Far less than a rank that is silent is waited for, and than an agent waits for answers."""


@dataclass(slots=True)
class Noise:
    """Damages the tag of messages of one kind, so many times."""

    tag: bytes
    times: int

    def __call__(self, data: bytes) -> bytes:
        word = bytes([0xA0 + len(self.tag)]) + self.tag
        while self.times and word in data:
            self.times -= 1
            data = data.replace(word, word[:-1] + b"?", 1)
        return data


WAYS = ["direct", "below a relay", "above a relay"]


@contextmanager
def a_way(store: Path, way: str, noise: Noise) -> Generator[str]:
    """Where an agent is to send for a collector."""
    with serving(store) as service:
        if way == "above a relay":
            with a_tap(service.address, bytearray(), noise) as up, relaying(up) as relay:
                yield relay.address
        elif way == "below a relay":
            with (
                relaying(service.address) as relay,
                a_tap(relay.address, bytearray(), noise) as down,
            ):
                yield down
        else:
            with a_tap(service.address, bytearray(), noise) as down:
                yield down


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tag", [b"goodbye", b"frame", b"schema"])
def test_what_was_damaged_once_comes_again(tmp_path: Path, way: str, tag: bytes) -> None:
    noise = Noise(tag, 1)
    with a_way(tmp_path, way, noise) as address:
        box = outbox(address)
        send(box, range(3))
        began = time.monotonic()
        assert close_all([box]) == [True]
        assert time.monotonic() - began < PROMPT_S
        wait_until(lambda: open_run(tmp_path / "demo").attempts["left"].tolist() == [(0,)])
        assert time.monotonic() - began < PROMPT_S
    assert noise.times == 0
    run = open_run(tmp_path / "demo")
    assert_each_frame_is_stored_once(run, 1, 3)
    assert run.events().empty


@pytest.mark.parametrize("way", WAYS)
def test_who_says_goodbye_in_no_words_at_all_ends_soon_and_it_is_told_why(
    tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    with a_way(tmp_path, way, Noise(b"goodbye", 1000)) as address:
        box = outbox(address)
        send(box, range(3))
        began = time.monotonic()
        assert close_all([box]) == [False]
        assert time.monotonic() - began < PROMPT_S
        wait_until(lambda: open_run(tmp_path / "demo").attempts["left"].tolist() == [(0,)])
        assert time.monotonic() - began < PROMPT_S
    run = open_run(tmp_path / "demo")
    told = run.events()

    assert run.records().step.tolist() == [0, 1, 2]
    assert told["kind"].tolist() == ["rank-left"]
    said = "Rank 0 left: twice it sent what cannot be read: A message from an agent cannot be read"
    assert told["text"].str.startswith(said).all()
    assert "A message from an agent cannot be read: Invalid value" in caplog.text


@pytest.mark.parametrize("way", WAYS)
def test_a_frame_that_is_damaged_again_is_left_out(tmp_path: Path, way: str) -> None:
    with a_way(tmp_path, way, noise := Noise(b"frame", 2)) as address:
        box = outbox(address)
        send(box, [0])
        wait_until(lambda: box.poll(time.monotonic()) or not noise.times)
        send(box, [1, 2])
        began = time.monotonic()
        assert close_all([box]) == [True], "it is dealt with"
        assert time.monotonic() - began < PROMPT_S
    run = open_run(tmp_path / "demo")
    gaps = run.gaps()

    assert run.records().step.tolist() == [1, 2]
    assert gaps["frames"].tolist() == [1]
    [cause] = gaps["cause"].tolist()
    unread = cause.startswith("its frame could not be read: A message from an agent cannot be read")
    assert unread or (way == "below a relay" and cause == "unknown")
