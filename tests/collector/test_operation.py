"""What an operator has of a collector: its health, its log, its bounds."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from torch import nn

from rankscope.agent import Outbox, RankscopeWarning
from rankscope.agent.torch import observe
from rankscope.collector import CollectorStatistics, Health
from rankscope.collector.joiner import LATE
from rankscope.sketch import AddressError, SketchTable, sketch_array
from rankscope.store import open_run
from rankscope.wire import Frame, Site, pack_frame
from rankscope.wire.health import HealthServer

from .serving import close_all, hello, outbox, send, start_with_health, stop_collectors, wait_until


@pytest.fixture(autouse=True)
def no_collector_stays() -> Iterator[None]:
    """Whatever happens to a test."""
    yield
    stop_collectors()


def ask(url: str) -> tuple[int, dict[str, Any]]:
    """The code, and what is told."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def limit_files(process: subprocess.Popen[str], size_bytes: int) -> None:
    """No file may grow beyond it: the store can write nothing if it is 0."""
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size_bytes, hard))


def test_health_and_counters_are_told_over_http(tmp_path: Path) -> None:
    process, where = start_with_health(tmp_path)
    box = outbox(where["address"])
    send(box, range(5))
    assert ask(f"{where['health']}/healthz") == (200, {"status": "ok"})
    assert box.close(timeout_s=15)
    wait_until(lambda: ask(f"{where['health']}/counters")[1]["records"] == 5)
    counters = ask(f"{where['health']}/counters")[1]

    assert counters["frames"] == 5
    assert counters["address"] == where["address"]
    assert ask(f"{where['health']}/other")[0] == 404
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.04, 0.1])
def test_a_signal_that_comes_as_it_ends_by_itself_is_no_failure(
    tmp_path: Path, after_s: float
) -> None:
    process, where = start_with_health(tmp_path, "--until-done")
    box = outbox(where["address"])
    send(box, range(3))
    assert box.close(timeout_s=15)
    assert process.stderr is not None
    while "is stored" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(after_s)
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0


def test_a_store_that_takes_nothing_is_told_with_the_reason(tmp_path: Path) -> None:
    process, where = start_with_health(tmp_path)
    box = outbox(where["address"])
    send(box, range(2))
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 2)
    limit_files(process, 0)
    send(box, range(2, 4))
    wait_until(lambda: box.poll(time.monotonic()) or ask(f"{where['health']}/healthz")[0] == 503)
    said = ask(f"{where['health']}/healthz")[1]["status"]
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().rejected)
    told = box.statistics().rejected
    limit_files(process, resource.RLIM_INFINITY)

    run = tmp_path / "demo"
    assert said == told == f"Run 'demo' cannot be stored: Cannot write to {run}: File too large"
    assert box.close(timeout_s=20)
    assert box.statistics().rejected == ""
    wait_until(lambda: ask(f"{where['health']}/healthz")[0] == 200)


def test_the_last_words_of_training_are_why_the_collector_could_not_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it learns so only after the goodbye."""
    monkeypatch.setattr("rankscope.agent.block.CLOSE_S", 3.0)
    process, where = start_with_health(tmp_path)

    def train() -> None:
        with observe(nn.Linear(2, 2), run="demo", to=where["address"]) as scope:
            scope.step()
            wait_until(lambda: scope.statistics().acknowledged)
            limit_files(process, 0)

    with pytest.warns(RankscopeWarning, match=r"not stored: Run 'demo' cannot .*: File too large"):
        train()


def test_a_run_for_which_there_was_no_room_begins_when_there_is(tmp_path: Path) -> None:
    process, where = start_with_health(tmp_path)
    limit_files(process, 0)
    box = outbox(where["address"])
    send(box, range(2))
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().rejected)
    told = box.statistics().rejected
    limit_files(process, resource.RLIM_INFINITY)

    assert told == f"Cannot write to {tmp_path / 'demo'}: File too large."
    assert box.close(timeout_s=20)


def test_a_loop_that_hangs_is_unwell() -> None:
    counts = CollectorStatistics()
    health = Health(at=100.0, address="", started=0.0, failing="", is_full=False, counts=counts)

    assert health.status(101.0) == (200, "ok")
    assert health.status(130.0) == (503, "The collector has not looked up for 30 s.")


def test_a_client_that_says_nothing_holds_up_nobody(tmp_path: Path) -> None:
    _, where = start_with_health(tmp_path)
    port = int(where["health"].rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port)) as slow,
    ):
        slow.sendall(b"GET /hea")
        assert ask(f"{where['health']}/healthz")[0] == 200


def test_health_is_told_over_ipv6() -> None:
    now, counts = time.monotonic(), CollectorStatistics()
    look = Health(at=now, address="", started=now, failing="", is_full=False, counts=counts)
    server = HealthServer("[::1]:0", lambda: look)
    assert server.address.startswith("http://[::1]:")
    assert ask(f"{server.address}/healthz") == (200, {"status": "ok"})
    server.close()


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("7601", "looks like 127.0.0.1:7610, got '7601'"),
        ("127.0.0.1:99999", "looks like"),
        ("0.0.0.0:0", "say `--insecure`"),
    ],
)
def test_a_place_that_will_not_do_is_refused(place: str, text: str) -> None:
    with pytest.raises(AddressError, match=text):
        HealthServer(place, lambda: pytest.fail("nobody asks"))


def test_log_lines_are_json_if_wanted(tmp_path: Path) -> None:
    process, where = start_with_health(tmp_path, "--log-format", "json", "--until-done")
    box = outbox(where["address"])
    send(box, range(3))
    assert box.close(timeout_s=15)
    assert process.wait(15) == 0
    began, said = map(json.loads, process.communicate()[1].splitlines())

    assert began["message"].startswith("Listening on tcp://127.0.0.1:")
    assert said["message"] == "Run 'demo' is stored: 3 records since we began."
    assert (said["level"], said["logger"]) == ("info", "rankscope.collector.session")
    assert said["time"].endswith("+00:00")


def test_a_record_that_a_late_rank_patches_is_told_once(tmp_path: Path) -> None:
    process, where = start_with_health(tmp_path, "--deadline", "0.3", "--until-done")
    boxes = [outbox(where["address"], rank, 2, stream=f"stream-{rank}") for rank in range(2)]
    send(boxes[1], [0])
    send(boxes[0], range(3))

    def records() -> float:
        for box in boxes:
            box.poll(time.monotonic())
        return ask(f"{where['health']}/counters")[1]["records"]

    wait_until(lambda: records() == 3)
    send(boxes[1], [1, 2])
    wait_until(lambda: records() == 5)
    assert close_all(boxes) == [True, True]
    assert process.wait(15) == 0
    assert "Run 'demo' is stored: 3 records since we began." in process.communicate()[1]
    assert open_run(tmp_path / "demo").records()["ranks"].tolist() == [2, 2, 2]


MIB = 1 << 20
RANKS, SITES = (
    48,
    [Site(kind="activation", name=str(n), placement={"dp": "shard"}) for n in range(400)],
)


def big_boxes(address: str) -> list[Outbox]:
    """Ranks whose frames are some 100 kB each."""
    boxes = [
        Outbox(address, hello(rank, RANKS), window_bytes=2 * MIB, window_frames=64)
        for rank in range(RANKS)
    ]
    for box in boxes:
        box.set_sites(SITES)
    return boxes


def test_memory_stays_bounded_while_nothing_can_be_stored_whatever_agents_send(
    tmp_path: Path,
) -> None:
    """64 MiB for frames; 48 ranks would send 400 MiB, and keep what they may not send."""
    process, where = start_with_health(tmp_path, "--memory", "64", "--until-done")
    boxes = big_boxes(where["address"])
    one = sketch_array(np.random.default_rng(0).standard_normal(4096).astype(np.float32))
    table = SketchTable.concatenate([one] * len(SITES))
    rows = np.arange(len(SITES), dtype=np.uint32)
    packed = [
        pack_frame(Frame(step=step, time_ns=1, sites=rows, table=table)) for step in range(120)
    ]
    for box in boxes:  # all are welcome, and their sites are known
        box.send(packed[0])
    wait_until(lambda: poll(boxes) or all(box.statistics().acknowledged for box in boxes), 60)
    before = psutil.Process(process.pid).memory_info().rss
    limit_files(process, 0)
    most = 0
    for step in range(1, 120):
        for box in boxes:
            box.send(packed[step])
        poll(boxes)
        most = max(most, psutil.Process(process.pid).memory_info().rss - before)
    while not all(box.control for box in boxes):  # after some seconds they are asked for less
        poll(boxes)
        most = max(most, psutil.Process(process.pid).memory_info().rss - before)
        time.sleep(0.01)
    counters = ask(f"{where['health']}/counters")[1]
    limit_files(process, resource.RLIM_INFINITY)

    assert counters["is_full"]
    assert {box.control.stretch for box in boxes if box.control} <= {2, 4}
    assert counters["held_bytes"] <= 1.5 * 64 * MIB
    assert most < 200 * MIB
    wait_until(lambda: poll(boxes) or not any(b.statistics().pending_frames for b in boxes), 120)
    lost = [box.statistics().dropped_frames for box in boxes]
    close_all(boxes, timeout_s=60)
    assert process.wait(60) == 0
    run = open_run(tmp_path / "demo")
    stored = sum(run.records(all_attempts=True)["ranks"].tolist())
    gaps = run.gaps()
    late = sum(gaps[gaps["cause"] == LATE]["frames"].tolist())  # its rank was too far behind
    assert sum(gaps["frames"].tolist()) == sum(lost) + late
    assert stored == RANKS * 120 - sum(lost) - late
    told = run.events().query("kind == 'overload'")["text"].tolist()
    assert told[0].startswith("The collector does not keep up: from step ")
    print(f"{most / MIB:.0f} MiB more for {RANKS} ranks, of 64 MiB for frames")


def poll(boxes: list[Outbox]) -> None:
    """A look at the network by each."""
    for box in boxes:
        box.poll(time.monotonic())
