"""Collector processes that are killed, stopped, refused and starved: nothing is lost or doubled."""

from __future__ import annotations

import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankscope.agent import Outbox
from rankscope.collector import Service, collect
from rankscope.sketch import AddressError
from rankscope.store import Run, open_run

from .serving import VALUES, close_all, outbox, send, start_collector, stop_collectors, wait_until

SENDER = """
import sys, time
sys.path.append(sys.argv[1])
from serving import outbox, send, wait_until
box = outbox(sys.argv[2], 1, 2)
wait_until(lambda: box.poll(time.monotonic()) or box.statistics().connected)
print("ready", flush=True)
send(box, range(1000), pause_s=0.02)
"""


@pytest.fixture(autouse=True)
def no_collector_stays() -> Iterator[None]:
    """Whatever happens to a test."""
    yield
    stop_collectors()


def assert_each_frame_is_stored_once(run: Run, ranks: int, steps: int) -> None:
    records = run.records(all_attempts=True)

    assert records.step.tolist() == list(range(steps))
    assert records.complete.all()
    counts = run.scalar("count").sel(site="activation:fc").values
    assert counts.tolist() == [float(ranks * VALUES)] * steps
    assert not run.events().kind.eq("gap").any()


def pending(box: Outbox) -> int:
    """How many frames are not durable, after a look at the network."""
    box.poll(time.monotonic())
    return box.statistics().pending_frames


def run_senders(
    address: str, ranks: int, steps: int
) -> tuple[list[threading.Thread], list[Outbox]]:
    boxes = [outbox(address, rank, ranks) for rank in range(ranks)]
    threads = [
        threading.Thread(target=send, args=(box, range(steps)), kwargs={"pause_s": 0.01})
        for box in boxes
    ]
    for thread in threads:
        thread.start()
    return threads, boxes


def test_a_collector_that_is_killed_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    process, address = start_collector(tmp_path)
    port = address.rpartition(":")[2]
    threads, boxes = run_senders(address, 4, 200)
    for after_s in (0.6, 0.3):
        time.sleep(after_s)
        process.kill()
        process.communicate()
        process, again = start_collector(tmp_path, "--until-done", port=port)
        assert again == address
    for thread in threads:
        thread.join()
    assert close_all(boxes, timeout_s=30) == [True] * 4
    assert process.wait(20) == 0
    process.communicate()
    run = open_run(tmp_path / "demo")

    assert_each_frame_is_stored_once(run, 4, 200)
    assert run.finished


def test_what_goes_on_is_told_once_however_often_the_collector_is_killed(tmp_path: Path) -> None:
    process, address = start_collector(tmp_path)
    port = address.rpartition(":")[2]
    boxes = [outbox(address, rank, 2) for rank in range(2)]
    for kill in range(3):
        for place, box in enumerate(boxes):
            steps = range(5 * kill, 5 * kill + 5)
            send(box, steps, weight=1.0 + place, reports=["Something odd happened"])
        wait_until(lambda: sum(map(pending, boxes)) == 0)
        process.kill()
        process.communicate()
        process, _ = start_collector(tmp_path, "--until-done", port=port)
    for box in boxes:
        send(box, [15], weight=1.0)
    assert close_all(boxes) == [True] * 2
    assert process.wait(20) == 0
    process.communicate()
    run = open_run(tmp_path / "demo")

    [alert] = run.alerts().query("rule == 'replica-divergence'").to_dict("records")
    assert (alert["first_step"], alert["last_step"]) == (0, 14)
    assert len(run.events().query("kind == 'report'")) == 2 * 15


def test_when_a_job_and_its_collector_were_killed_the_next_start_tells_it(tmp_path: Path) -> None:
    for launch, first, end in (("one", 0, 5), ("two", 3, 7), ("three", 6, 9)):
        process, address = start_collector(tmp_path, "--until-done")
        boxes = [
            outbox(address, rank, 2, launch=launch, stream=f"{launch}-{rank}") for rank in range(2)
        ]
        for box in boxes:
            send(box, range(first, end))
        if launch == "three":
            assert close_all(boxes) == [True] * 2
            assert process.wait(20) == 0
        else:  # nobody says goodbye
            wait_until(lambda boxes=boxes: sum(map(pending, boxes)) == 0)
            process.kill()
            close_all(boxes, timeout_s=0)
        process.communicate()
    run = open_run(tmp_path / "demo")

    assert run.ending.text == (
        "finished; attempt 0: ranks lost: 0, 1 (last seen in step 4); "
        "attempt 1: ranks lost: 0, 1 (last seen in step 6)"
    )
    told = run.events().query("kind == 'rank-lost'")
    assert told[["attempt", "rank", "step"]].values.tolist() == [
        *([0, 0, 4], [0, 1, 4]),
        *([1, 0, 6], [1, 1, 6]),
    ]
    assert told["text"].iloc[-1] == (
        "Rank 1 had not said goodbye when the run was started again; its last step that is stored "
        "is 6."
    )
    assert run.records()["step"].tolist() == [*range(9)]


def test_a_rank_that_is_killed_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    process, address = start_collector(
        tmp_path, "--until-done", "--deadline", "3", "--lost-after", "1"
    )
    folder = str(Path(__file__).parent)
    victim = subprocess.Popen(
        [sys.executable, "-c", SENDER, folder, address], stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    assert victim.stdout.readline() == "ready\n"
    box, step = outbox(address, 0, 2), 0
    while box.statistics().acknowledged < 10:
        send(box, [step], pause_s=0.02)
        step += 1
    victim.kill()
    victim.communicate()
    # The victim may have been ahead, but not by so much.
    send(box, [*range(step, step + 20), 5000], pause_s=0.01)
    assert box.close(timeout_s=20)
    assert process.wait(20) == 0
    process.communicate()
    run = open_run(tmp_path / "demo")

    lost = run.events().query("kind == 'rank-lost'")
    assert lost["rank"].tolist() == [1]
    assert "Rank 1 was silent for 1 s; it was last seen in step" in lost.text.iloc[0]
    assert run.records().step.tolist() == [*range(step + 20), 5000]
    assert not run.records().complete.iloc[-1]


def test_it_stores_what_there_is_when_it_is_told_to_stop(tmp_path: Path) -> None:
    process, address = start_collector(tmp_path)
    zero = outbox(address, 0, 2)
    send(zero, range(5))
    wait_until(lambda: zero.poll(time.monotonic()) or zero.statistics().sent == 5)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)

    assert process.wait(10) == 0
    process.communicate()
    run = open_run(tmp_path / "demo")
    assert run.records().complete.tolist() == [False] * 5
    assert run.finished
    zero.close(timeout_s=0)


def test_a_full_disk_is_waited_for_and_nothing_is_lost(tmp_path: Path) -> None:
    process, address = start_collector(tmp_path, "--until-done")
    box = outbox(address)
    send(box, range(3))
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 3)
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))
    send(box, range(3, 30), pause_s=0.1)  # longer than from one commit to the next
    assert box.statistics().acknowledged == 3
    assert process.poll() is None
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))

    assert box.close(timeout_s=20)
    assert process.wait(20) == 0
    log = process.communicate()[1]
    assert "Run 'demo' cannot be stored" in log
    assert "Run 'demo' can be stored again." in log
    assert_each_frame_is_stored_once(open_run(tmp_path / "demo"), 1, 30)


def test_a_run_whose_folder_is_deleted_is_begun_again(tmp_path: Path) -> None:
    collector, address = start_collector(tmp_path, "--until-done", "--run", "demo")
    box = outbox(address)
    send(box, range(10))
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 10)
    shutil.rmtree(tmp_path / "demo")
    send(box, range(10, 20), pause_s=0.02)
    assert box.close(timeout_s=30)
    assert collector.wait(30) == 0
    assert collector.stderr is not None
    log = collector.stderr.read()

    assert "demo was moved or deleted while it was written. It is begun again." in log
    run = open_run(tmp_path / "demo")
    assert run.records().step.tolist() == list(range(10, 20))
    [gap] = run.gaps().to_dict("records")
    cause = "it is in the spool of a relay that the rank has left, or in a store that is gone"
    assert (gap["frames"], gap["cause"]) == (10, cause)
    assert run.finished


def test_runs_whose_disk_is_gone_are_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "disk" / "runs"
    collector, address = start_collector(store)
    box = outbox(address)
    send(box, range(10))
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 10)
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    send(box, range(10, 20), pause_s=0.1)
    wait_until(lambda: box.poll(time.monotonic()) or "with what it lay in" in caplog.text)
    (tmp_path / "unmounted").rename(tmp_path / "disk")
    assert box.close(timeout_s=30)
    collector.terminate()
    assert collector.wait(30) == 0

    run = open_run(store / "demo")
    assert run.records().step.tolist() == list(range(20))
    assert not len(run.gaps())


def test_what_is_no_address_is_a_wrong_option(tmp_path: Path) -> None:
    result = CliRunner().invoke(collect, ["--store", str(tmp_path), "--bind", "somewhere"])

    assert result.exit_code == 2
    told = "Error: Invalid value for '--bind': An address looks like tcp://127.0.0.1:7600"
    assert told in result.output.splitlines()[-1]


def test_the_path_of_a_socket_that_is_used_is_left_alone(tmp_path: Path) -> None:
    other, data = tmp_path / "socket", tmp_path / "data.csv"
    data.write_text("mine")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(other))
        server.listen()
        for path, text in ((other, "is in use: stop"), (data, "is no socket: take another path")):
            words = ["--store", str(tmp_path / "runs"), "--bind", f"ipc://{path}"]
            result = CliRunner().invoke(collect, words)
            assert isinstance(result.exception, AddressError)
            assert text in str(result.exception)
    assert data.read_text() == "mine"
    # Its owner is gone: what it left behind keeps nobody out.
    service = Service(f"ipc://{other}", str(tmp_path / "runs"))
    service.close()
    assert service.address == f"ipc://{other}"


def test_an_open_address_without_keys_is_refused_in_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(collect, ["--store", str(tmp_path), "--bind", "tcp://0.0.0.0:*"])

    assert isinstance(result.exception, AddressError)
    assert "say `--insecure`" in str(result.exception)
    assert "\n" not in str(result.exception)
