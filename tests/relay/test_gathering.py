"""Relays that merge: the record is that of the ranks alone, through kills and whoever is late."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest

from rankscope.store import open_run

from ..collector.serving import close_all, send, start_collector
from .relaying import assert_each_frame_is_stored_once, end, everything, start_relay, statistics_of
from .test_forwarding import run_both, run_job, start_senders


def test_merged_on_the_way_or_not_the_record_is_the_same(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    relay, address = start_relay(at, "--merge", "--until-done")
    told = statistics_of(run_both(relay, address, at, 4, 40))
    end(collector)
    merged, direct = (open_run(tmp_path / "runs" / name) for name in ("demo", "direct"))

    assert_each_frame_is_stored_once(merged, 4, 40)
    assert everything(merged) == everything(direct)
    losses = [run.training().sel(name="loss").values.tolist() for run in (merged, direct)]
    assert losses[0] == losses[1]
    assert told["sent"] == 160
    assert told["joined"] > 100
    assert (told["faults"], told["malformed"], told["dropped"]) == (0, 0, {})


def test_ranks_behind_several_relays_and_behind_none_make_one_record(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    relays = [start_relay(at, "--merge", "--until-done") for _ in range(2)]
    ways = [relays[0][1], relays[0][1], relays[1][1], relays[1][1], at]
    sent = [start_senders(way, 5, 40, only=[rank]) for rank, way in enumerate(ways)]
    for threads, _ in sent:
        threads[0].join()
    assert close_all([boxes[0] for _, boxes in sent], timeout_s=40) == [True] * 5
    for process, _ in relays:
        end(process)
    end(collector)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 5, 40)


@pytest.mark.parametrize("spool", [False, True])
def test_a_merging_relay_that_is_killed_loses_and_doubles_nothing(
    tmp_path: Path, *, spool: bool
) -> None:
    options = ["--spool", str(tmp_path / "spool"), "--min-free", "0"] if spool else []
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    relay, address = start_relay(at, "--merge", *options)
    threads, boxes = start_senders(address, 3, 150)
    for _ in range(4):
        time.sleep(random.uniform(0.1, 0.6))
        relay.kill()
        relay.communicate()
        relay, _ = start_relay(
            at, "--merge", "--until-done", *options, port=address.rpartition(":")[2]
        )
    for thread in threads:
        thread.join()
    assert close_all(boxes, timeout_s=60) == [True] * 3
    end(relay)
    end(collector)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 3, 150)


def test_the_collector_killed_behind_a_merging_relay_stores_all_once(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs")
    relay, address = start_relay(at, "--merge", "--until-done")
    threads, boxes = start_senders(address, 3, 150)
    for _ in range(4):
        time.sleep(random.uniform(0.2, 0.8))
        collector.kill()
        collector.communicate()
        collector, _ = start_collector(
            tmp_path / "runs", "--until-done", port=at.rpartition(":")[2]
        )
    for thread in threads:
        thread.join()
    assert close_all(boxes, timeout_s=60) == [True] * 3
    end(relay)
    end(collector)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 3, 150)


def test_a_rank_that_is_late_is_not_waited_for_long(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done", "--deadline", "60")
    relay, address = start_relay(at, "--merge", "--until-done")
    threads, boxes = start_senders(address, 3, 5, only=[0, 1])
    (_, [late]) = start_senders(address, 3, 0, only=[2])
    for thread in threads:
        thread.join()
    for _ in range(40):
        late.poll(time.monotonic())
        time.sleep(0.1)
    send(late, range(5))
    assert close_all([*boxes, late], timeout_s=40) == [True] * 3
    end(relay)
    end(collector)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 3, 5)


Tree = list[tuple[subprocess.Popen[str], str]]


def start_tree(at: str, tmp_path: Path, *, spools: bool, merge: bool = True) -> Tree:
    """A relay next to the collector, and two below it; where asked for each with a spool."""
    how = ["--merge"] if merge else []
    tree: Tree = []
    for name in ("upper", "left", "right"):
        kept = ["--spool", str(tmp_path / name), "--min-free", "0"] if spools else []
        below = name != "upper"
        options = [*(["--merge"] if below else how), *kept, "--until-done"]
        tree.append(start_relay(tree[0][1] if below else at, *options))
    return tree


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("spools", [False, True])
def test_through_a_tree_of_relays_the_record_is_the_same(
    tmp_path: Path, *, spools: bool, merge: bool
) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    tree = start_tree(at, tmp_path, spools=spools, merge=merge)
    # Two behind each lower relay, one at the upper one, one at the collector.
    ways = [tree[1][1]] * 2 + [tree[2][1]] * 2 + [tree[0][1], at]
    # With spools relays join only once they have heard from above that they may.
    sent = [start_senders(way, 6, 30, 0.15, only=[rank]) for rank, way in enumerate(ways)]
    for threads, _ in sent:
        threads[0].join()
    run_job(at, 6, 30, run="direct", launch="direct", prefix="direct")
    assert close_all([boxes[0] for _, boxes in sent], timeout_s=60) == [True] * 6
    told = [statistics_of(end(process)) for process, _ in reversed(tree)]
    end(collector)
    merged, direct = (open_run(tmp_path / "runs" / name) for name in ("demo", "direct"))

    assert_each_frame_is_stored_once(merged, 6, 30)
    assert everything(merged) == everything(direct)
    losses = [run.training().sel(name="loss").values.tolist() for run in (merged, direct)]
    assert losses[0] == losses[1]
    assert [one["sent"] for one in told] == [60, 60, 150]
    assert min(one["joined"] for one in told) > 0
    assert [(one["faults"], one["malformed"], one["dropped"]) for one in told] == [(0, 0, {})] * 3


@pytest.mark.parametrize("spools", [False, True])
@pytest.mark.parametrize("who", ["upper", "left", "collector"])
def test_in_a_tree_no_kill_loses_or_doubles_anything(
    tmp_path: Path, who: str, *, spools: bool
) -> None:
    kept = {
        name: ["--spool", str(tmp_path / name), "--min-free", "0"] if spools else []
        for name in ("upper", "left", "right")
    }
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    upper, above = start_relay(at, "--merge", "--until-done", *kept["upper"])
    lower = {
        name: start_relay(above, "--merge", "--until-done", *kept[name])
        for name in ("left", "right")
    }
    sent = [
        start_senders(lower[name][1], 4, 150, only=only)
        for name, only in (("left", [0, 1]), ("right", [2, 3]))
    ]
    for _ in range(3):
        time.sleep(random.uniform(0.3, 0.8))
        if who == "collector":
            collector.kill()
            collector.communicate()
            collector, _ = start_collector(tmp_path / "runs", "--until-done", port=port_of(at))
        elif who == "upper":
            upper.kill()
            upper.communicate()
            upper, _ = start_relay(
                at, "--merge", "--until-done", *kept["upper"], port=port_of(above)
            )
        else:
            process, address = lower["left"]
            process.kill()
            process.communicate()
            lower["left"] = start_relay(
                above, "--merge", "--until-done", *kept["left"], port=port_of(address)
            )
    for threads, _ in sent:
        for thread in threads:
            thread.join()
    assert close_all([box for _, boxes in sent for box in boxes], timeout_s=90) == [True] * 4
    for process in (lower["left"][0], lower["right"][0], upper, collector):
        end(process)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 4, 150)


def port_of(address: str) -> str:
    """The last part."""
    return address.rpartition(":")[2]
