"""Ranks of which the collector keeps all go up singly, through relays that merge the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.store import open_run

from ..collector.serving import start_collector, stop_collectors
from .relaying import assert_each_frame_is_stored_once, end, everything, start_relay, statistics_of
from .test_forwarding import run_job


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    """Whatever happens to a test."""
    yield
    stop_collectors()


@pytest.mark.parametrize(("policy", "kept"), [("0,3", (0, 3)), ("all", (0, 1, 2, 3))])
def test_ranks_that_are_kept_are_not_joined(
    tmp_path: Path, policy: str, kept: tuple[int, ...]
) -> None:
    collector, at = start_collector(tmp_path, "--until-done", "--keep-per-rank", policy)
    relay, address = start_relay(at, "--merge", "--until-done")
    run_job(address, 4, 30)
    run_job(at, 4, 30, run="direct", launch="direct", prefix="direct")
    told = statistics_of(end(relay))
    end(collector)
    merged, direct = (open_run(tmp_path / name) for name in ("demo", "direct"))

    assert_each_frame_is_stored_once(merged, 4, 30)
    assert everything(merged) == everything(direct)
    assert merged.kept_ranks().tolist() == [kept] * 30
    assert (told["joined"] > 0) == (policy != "all")
    for rank in kept:
        assert merged.table(7, view=rank)[1] == direct.table(7, view=rank)[1]
