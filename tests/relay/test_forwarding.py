"""Relays between real agents and real collectors: all arrives, once, and as it was sent."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankscope.agent import Outbox
from rankscope.relay.spool import FILE
from rankscope.store import open_run
from rankscope.wire import Alerts

from ..collector.serving import (
    close_all,
    outbox,
    send,
    start_collector,
    wait_until,
)
from .relaying import (
    assert_each_frame_is_stored_once,
    end,
    everything,
    free_port,
    start_relay,
    statistics_of,
)


@pytest.fixture(params=["memory", "spool"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """A relay with a spool, and one without."""
    spool = ["--spool", str(tmp_path / "spool"), "--min-free", "0"]
    return spool if request.param == "spool" else []


def start_senders(
    address: str,
    ranks: int,
    steps: int,
    pause_s: float = 0.01,
    prefix: str = "stream",
    only: Sequence[int] | None = None,
    **fields: str,
) -> tuple[list[threading.Thread], list[Outbox]]:
    boxes = [
        outbox(address, rank, ranks, stream=f"{prefix}-{rank}", **fields)
        for rank in (range(ranks) if only is None else only)
    ]
    threads = [
        threading.Thread(target=send, args=(box, range(steps)), kwargs={"pause_s": pause_s})
        for box in boxes
    ]
    for thread in threads:
        thread.start()
    return threads, boxes


def run_job(
    address: str,
    ranks: int,
    steps: int,
    prefix: str = "stream",
    run: str = "demo",
    launch: str = "launch",
) -> None:
    """Ranks that send so many steps, and leave when all is durable."""
    threads, boxes = start_senders(address, ranks, steps, prefix=prefix, run=run, launch=launch)
    for thread in threads:
        thread.join()
    assert close_all(boxes, timeout_s=40) == [True] * ranks


def run_both(relay: subprocess.Popen[str], address: str, at: str, ranks: int, steps: int) -> str:
    """Two jobs that send the same, through a relay and directly; what the relay has logged.

    While the direct one, `direct`, has not left the collector does not end.
    """
    threads, boxes = start_senders(at, ranks, steps, run="direct", launch="direct", prefix="direct")
    run_job(address, ranks, steps)
    log = end(relay)
    for thread in threads:
        thread.join()
    assert close_all(boxes, timeout_s=40) == [True] * ranks
    return log


def test_what_goes_through_a_relay_is_what_was_sent(tmp_path: Path, options: list[str]) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    relay, address = start_relay(at, "--until-done", *options)
    log = run_both(relay, address, at, 3, 30)
    end(collector)
    through, direct = (open_run(tmp_path / "runs" / name) for name in ("demo", "direct"))

    assert_each_frame_is_stored_once(through, 3, 30)
    assert everything(through) == everything(direct)
    told = statistics_of(log)
    assert (told["frames"], told["sent"], told["held_frames"]) == (90, 90, 0)
    assert (told["faults"], told["malformed"], told["dropped"]) == (0, 0, {})


def test_a_relay_that_is_killed_loses_nothing_and_doubles_nothing(
    tmp_path: Path, options: list[str]
) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    relay, address = start_relay(at, *options)
    threads, boxes = start_senders(address, 3, 150)
    for _ in range(4):
        time.sleep(random.uniform(0.1, 0.6))
        relay.kill()
        relay.communicate()
        relay, _ = start_relay(at, "--until-done", *options, port=address.rpartition(":")[2])
    for thread in threads:
        thread.join()
    assert close_all(boxes, timeout_s=60) == [True] * 3
    end(relay)
    end(collector)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 3, 150)


def test_a_collector_that_is_killed_behind_a_relay_loses_nothing(
    tmp_path: Path, options: list[str]
) -> None:
    collector, at = start_collector(tmp_path / "runs")
    relay, address = start_relay(at, "--until-done", *options)
    threads, boxes = start_senders(address, 3, 150)
    for _ in range(3):
        time.sleep(random.uniform(0.3, 0.8))
        collector.kill()
        collector.communicate()
        collector, _ = start_collector(
            tmp_path / "runs", "--until-done", port=at.rpartition(":")[2]
        )
    for thread in threads:
        thread.join()
    assert close_all(boxes, timeout_s=60) == [True] * 3
    assert statistics_of(end(relay))["connections"] >= 3
    end(collector)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 3, 150)


def test_with_a_spool_agents_need_no_collector(tmp_path: Path) -> None:
    port, spool = free_port(), str(tmp_path / "spool")
    to = f"tcp://127.0.0.1:{port}"
    relay, address = start_relay(to, "--spool", spool, "--min-free", "0")
    run_job(address, 2, 20)  # all is durable, and the agents are gone
    relay.kill()
    relay.communicate()
    options = ["--spool", spool, "--min-free", "0", "--until-done", "--first-agent", "0"]
    relay, _ = start_relay(to, *options)
    collector, _ = start_collector(tmp_path / "runs", "--until-done", port=port)
    log = end(relay)
    end(collector)

    assert "40 frames are left in the spool and will be sent." in log
    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 2, 20)
    relay, _ = start_relay(to, *options)
    assert f"The spool {spool} is empty: there is nothing to send." in end(relay)


def test_frames_of_the_job_before_do_not_end_it_before_this_job_comes(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    options = ["--spool", str(spool), "--min-free", "0", "--until-done"]
    relay, address = start_relay(f"tcp://127.0.0.1:{free_port()}", *options)
    box = outbox(address, run="before", stream="before-0", launch="before")
    send(box, range(5))
    assert box.close(timeout_s=15)
    relay.kill()
    relay.communicate()
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    relay, address = start_relay(at, *options)
    wait_until(lambda: (tmp_path / "runs" / "before").exists())
    end(collector)  # what was left is stored, and nobody has come yet
    time.sleep(1.0)
    assert relay.poll() is None
    port = at.rpartition(":")[2]
    collector, _ = start_collector(tmp_path / "runs", "--until-done", port=port)
    run_job(address, 2, 10)
    end(relay)
    end(collector)

    assert len(open_run(tmp_path / "runs" / "before").records()) == 5
    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 2, 10)
    assert not spool.joinpath(FILE).exists()


def test_a_folder_that_it_made_goes_with_the_empty_spool(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    spool = tmp_path / "spools" / "17.0"
    relay, address = start_relay(at, "--spool", str(spool), "--min-free", "0", "--until-done")
    run_job(address, 2, 10)
    end(relay)
    end(collector)

    assert list(spool.parent.iterdir()) == []


def test_without_a_spool_agents_wait_for_the_collector(tmp_path: Path) -> None:
    port = free_port()
    relay, address = start_relay(f"tcp://127.0.0.1:{port}", "--until-done")
    box = outbox(address)
    send(box, range(20), pause_s=0.02)
    assert not box.statistics().connected
    collector, _ = start_collector(tmp_path / "runs", "--until-done", port=port)
    assert box.close(timeout_s=30)
    end(relay)
    end(collector)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 1, 20)


def test_relays_may_be_stacked(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    root, root_address = start_relay(at, "--until-done")
    spool = ["--spool", str(tmp_path / "spool"), "--min-free", "0"]
    leaves = [start_relay(root_address, "--until-done", *options) for options in ([], spool)]
    threads, boxes = list[threading.Thread](), list[Outbox]()
    for rank in range(4):
        boxes.append(outbox(leaves[rank % 2][1], rank, 4))
        threads.append(threading.Thread(target=send, args=(boxes[-1], range(30))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert close_all(boxes, timeout_s=40) == [True] * 4
    for relay in (leaves[0][0], leaves[1][0], root):
        end(relay)
    end(collector)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 4, 30)


def test_several_runs_go_through_one_relay(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    relay, address = start_relay(at, "--until-done")
    jobs = [
        threading.Thread(
            target=run_job,
            args=(address, 2, 20),
            kwargs={"run": name, "launch": name, "prefix": name},
        )
        for name in ("one", "two")
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    end(relay)
    end(collector)

    for name in ("one", "two"):
        assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / name), 2, 20)


def test_a_refusal_for_good_comes_through(tmp_path: Path) -> None:
    _, at = start_collector(tmp_path / "runs", "--run", "another")
    _, address = start_relay(at)
    box = outbox(address)
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().rejected)

    assert box.statistics().rejected == "This collector does not take run 'demo'."
    box.close(timeout_s=0)


def test_signs_of_life_go_through_and_a_rank_that_gives_none_is_named(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done", "--lost-after", "4")
    _, address = start_relay(at)
    boxes = [outbox(address, rank, 2) for rank in range(2)]
    for box in boxes:
        send(box, range(3))
    wait_until(
        lambda: (
            [box.poll(time.monotonic()) for box in boxes]
            and all(box.statistics().acknowledged == 3 for box in boxes)
        )
    )
    run = open_run(tmp_path / "runs" / "demo")
    deadline = time.monotonic() + 30
    while not (run.events().kind == "rank-lost").any() and time.monotonic() < deadline:
        boxes[0].poll(time.monotonic())
        boxes[0].beat(time.monotonic(), step=2, site="fc", tensors=1, health=dict)
        time.sleep(0.05)
        run = open_run(tmp_path / "runs" / "demo")
    assert boxes[0].close(timeout_s=30)
    end(collector)
    boxes[1].close(timeout_s=0)

    events = open_run(tmp_path / "runs" / "demo").events()
    assert events[events.kind == "rank-lost"]["rank"].tolist() == [1]


def test_a_relay_that_is_told_to_stop_sends_what_it_has(tmp_path: Path, options: list[str]) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    relay, address = start_relay(at, *options)
    box = outbox(address)
    send(box, range(10))
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().sent == 10)
    time.sleep(0.2)
    relay.send_signal(signal.SIGTERM)
    told = statistics_of(end(relay))
    box.close(timeout_s=0)

    assert (told["frames"], told["held_frames"]) == (10, 0)
    collector.send_signal(signal.SIGTERM)
    end(collector)
    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 1, 10)


def test_agents_are_told_how_to_go_on_also_when_they_come_again(tmp_path: Path) -> None:
    _, at = start_collector(tmp_path / "runs")
    _, address = start_relay(at)
    box = outbox(address, budget=0.01)
    costs = {"stretch": 1.0}
    send(box, [0], health={**costs, "hook_seconds": 0.0, "wall_seconds": 1.0})
    send(box, [40], health={**costs, "hook_seconds": 1.0, "wall_seconds": 4.0})
    wait_until(lambda: box.poll(time.monotonic()) or box.control)
    again = outbox(address, budget=0.01)  # the same stream, on a new connection
    wait_until(lambda: again.poll(time.monotonic()) or again.control)

    assert box.control is not None
    assert again.control == box.control
    for one in (box, again):
        one.close(timeout_s=0)


def test_agents_behind_a_relay_are_told_of_alerts(tmp_path: Path) -> None:
    _, at = start_collector(tmp_path / "runs")
    _, address = start_relay(at)
    boxes = [outbox(address, rank, 2, keeps_back=True) for rank in range(2)]
    told: list[list[Alerts]] = [[], []]
    send(boxes[0], [0])
    send(boxes[1], [0], value=float("nan"))

    def all_heard() -> bool:
        for box, heard in zip(boxes, told, strict=True):
            box.poll(time.monotonic())
            heard += box.take_alerts()
        return all(told)

    wait_until(all_heard)
    assert close_all(boxes) == [True, True]
    assert told[0] == told[1]
    assert told[0][0].send_ring
