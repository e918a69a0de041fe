"""Ranks of which the collector keeps all go up singly, through relays that merge the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from rankscope.agent import Outbox
from rankscope.sketch import StoreError
from rankscope.store import open_run

from ..collector.serving import close_all, send, start_collector, wait_until
from .relaying import (
    assert_each_frame_is_stored_once,
    end,
    everything,
    free_port,
    start_relay,
    statistics_of,
)
from .test_forwarding import run_both, start_senders


@pytest.mark.parametrize(("policy", "kept"), [("0,3", (0, 3)), ("all", (0, 1, 2, 3))])
def test_ranks_that_are_kept_are_not_joined(
    tmp_path: Path, policy: str, kept: tuple[int, ...]
) -> None:
    collector, at = start_collector(tmp_path, "--until-done", "--keep-per-rank", policy)
    relay, address = start_relay(at, "--merge", "--until-done")
    told = statistics_of(run_both(relay, address, at, 4, 30))
    end(collector)
    merged, direct = (open_run(tmp_path / name) for name in ("demo", "direct"))

    assert_each_frame_is_stored_once(merged, 4, 30)
    assert everything(merged) == everything(direct)
    assert merged.kept_ranks().tolist() == [kept] * 30
    assert (told["joined"] > 0) == (policy != "all")
    for rank in kept:
        assert merged.table(7, view=rank)[1] == direct.table(7, view=rank)[1]


def polled(boxes: Sequence[Outbox]) -> bool:
    """Let them send what they have."""
    for box in boxes:
        box.poll(time.monotonic())
    return True


def stored(store: Path) -> int:
    """How many records there are."""
    with suppress(StoreError):
        return len(open_run(store).records())
    return 0


@pytest.mark.parametrize("spool", [False, True])
def test_nor_are_they_on_a_level_below(tmp_path: Path, *, spool: bool) -> None:
    port, kept = free_port(), ["--spool", str(tmp_path / "spool"), "--min-free", "0"]
    upper, above = start_relay(
        f"tcp://127.0.0.1:{port}", "--merge", "--until-done", *(kept if spool else [])
    )
    lower, below = start_relay(above, "--merge", "--until-done")
    # The upper one knows nothing of the collector when these come.
    threads, boxes = start_senders(below, 3, 20)
    for thread in threads:
        thread.join()
    collector, _ = start_collector(
        tmp_path / "runs", "--until-done", "--keep-per-rank", "0", port=port
    )
    store = tmp_path / "runs" / "demo"
    wait_until(lambda: polled(boxes) and stored(store) == 20, timeout_s=60)
    time.sleep(2)  # those who were told at once say hello again meanwhile
    for step in range(20, 60):
        for box in boxes:
            send(box, [step])
    assert close_all(boxes, timeout_s=60) == [True] * 3
    told = [statistics_of(end(process)) for process in (lower, upper)]
    end(collector)
    run = open_run(store)

    assert_each_frame_is_stored_once(run, 3, 60)
    assert run.kept_ranks().tolist() == [(0,)] * 60
    assert told[0]["joined"] > 0
    assert told[1]["faults"] == told[0]["faults"] == 0
