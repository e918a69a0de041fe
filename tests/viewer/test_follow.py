"""One poller a run, only while somebody listens."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.sketch import StoreError
from rankscope.store import open_run
from rankscope.viewer.follow import Follower


def pollers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "rankscope-follow"}


def test_each_look_tells_every_listener_and_counts_what_is_new(new_job: Callable) -> None:
    job = new_job(bad_step=None)
    job.commit(range(2))
    follower, told = Follower(open_run(job.path), interval_s=3600), []
    follower.listen(lambda: told.append("a"))
    follower.listen(lambda: told.append("b"))

    follower.look()
    assert (told, follower.version) == (["a", "b"], 0)
    job.commit(range(2, 3))
    follower.look()

    assert (told, follower.version) == (["a", "b"] * 2, 1)
    follower.stop()


def test_many_listeners_share_one_poller_that_ends_with_the_last(broken_job: Path) -> None:
    others = pollers()  # of tests before, in the middle of a last look
    follower = Follower(open_run(broken_job), interval_s=3600)
    assert pollers() <= others
    leave = [follower.listen(lambda: None) for _ in range(3)]
    [poller] = pollers() - others

    for end in leave:
        end()
    poller.join(timeout=5)

    assert follower.listeners == 0
    assert not poller.is_alive()


def test_why_is_asked_once_a_snapshot_for_all_pages(new_job: Callable) -> None:
    job = new_job(bad_step=None, watched=True)
    job.commit(range(2))
    follower = Follower(open_run(job.path), interval_s=3600)
    first = follower.why()
    follower.look()
    assert follower.why() is first

    job.commit(range(2, 3))
    follower.look()

    assert (first.last_step, follower.why().last_step) == (1, 2)


def test_what_was_asked_of_a_snapshot_is_answered_with_the_next_look(new_job: Callable) -> None:
    job = new_job(bad_step=None, watched=True)
    job.commit(range(2))
    follower = Follower(open_run(job.path), interval_s=3600)
    follower.why()
    job.commit(range(2, 3))

    follower.look()
    job.path.rename(job.path.with_name("away"))

    assert follower.why().last_step == 2  # so that no page waits for the store
    with pytest.raises(StoreError):
        follower.training("loss")


def test_a_store_that_is_away_is_told_once_in_a_sentence(
    broken_job: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run"
    shutil.copytree(broken_job, path)
    follower, looked = Follower(open_run(path), interval_s=0.01), threading.Event()
    path.rename(tmp_path / "away")

    with caplog.at_level(logging.WARNING):
        leave = follower.listen(looked.set)
        threading.Timer(0.5, (tmp_path / "away").rename, [path]).start()
        assert looked.wait(30)  # it goes on once the store is there again
        leave()
        follower.stop()

    [told] = [one for one in caplog.records if one.name.startswith("rankscope")]
    assert told.exc_info is None
    assert told.getMessage().startswith(f"Trying again every 0.01 s: Cannot read {path}: ")
