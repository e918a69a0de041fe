"""Relays whose disk is full, whose spool is damaged, whose peers talk nonsense."""

from __future__ import annotations

import resource
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner

from rankscope.doctor.command import doctor
from rankscope.relay import RelaySettings, Service, relay
from rankscope.relay.spool import DAMAGED, FILE
from rankscope.relay.thinning import FULL
from rankscope.sketch import AddressError, NotARunError, SettingError
from rankscope.store import open_run
from rankscope.wire import PROTOCOL, Welcome, decode, encode

from ..collector.serving import (
    close_all,
    hello,
    outbox,
    send,
    start_collector,
    wait_until,
)
from ..collector.test_operation import limit_files
from .relaying import (
    assert_each_frame_is_stored_once,
    end,
    free_port,
    start_relay,
    statistics_of,
)


def stored(run: Path) -> int:
    """Records of a run that may not have begun."""
    try:
        return len(open_run(run).records())
    except NotARunError:
        return 0


def test_a_spool_that_is_full_is_told_as_gaps_of_the_run(tmp_path: Path) -> None:
    port = free_port()
    options = ["--spool", str(tmp_path / "spool"), "--min-free", "0", "--spool-bytes", "20KB"]
    process, address = start_relay(f"tcp://127.0.0.1:{port}", *options, "--until-done")
    box = outbox(address)
    send(box, range(200), pause_s=0.002)
    assert box.close(timeout_s=20)
    collector, _ = start_collector(tmp_path / "runs", "--until-done", port=port)
    told = statistics_of(end(process))
    end(collector)
    run = open_run(tmp_path / "runs" / "demo")
    gaps = run.events().query("kind == 'gap'")

    assert 0 < told["dropped"][FULL] < 200
    assert len(run.records()) == 200 - told["dropped"][FULL]
    assert run.records().step.iloc[-1] == 199
    assert gaps.text.str.endswith(f"{FULL}.").all()
    lost = gaps.text.str.extract(r"lost (\d+) frames")[0].astype(int)
    assert lost.sum() == told["dropped"][FULL]


@pytest.mark.parametrize("bound", [("--min-free", "1000TB"), ("--spool-bytes", "1")])
def test_where_there_is_no_room_to_keep_frames_they_go_up_all_the_same(
    tmp_path: Path, bound: tuple[str, str]
) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    options = ["--spool", str(tmp_path / "spool"), "--min-free", "0", *bound]
    process, address = start_relay(at, *options, "--until-done")
    boxes = [outbox(address, rank, 2) for rank in range(2)]
    for step in range(100):
        for box in boxes:
            send(box, [step])
    assert close_all(boxes, timeout_s=40) == [True, True]
    told = statistics_of(end(process))
    end(collector)

    assert told["dropped"] == {}
    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 2, 100)


def test_without_room_to_keep_frames_no_restart_costs_any(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs")
    options = ["--spool", str(tmp_path / "spool"), "--min-free", "1000TB"]
    process, address = start_relay(at, *options)
    box = outbox(address)
    send(box, range(40), pause_s=0.01)
    for left in (collector, process):
        left.kill()
        left.communicate()
    send(box, range(40, 80), pause_s=0.01)
    own = address.rpartition(":")[2]
    process, _ = start_relay(at, *options, "--until-done", port=own)
    send(box, range(80, 120), pause_s=0.01)
    collector, _ = start_collector(tmp_path / "runs", "--until-done", port=at.rpartition(":")[2])
    send(box, range(120, 160), pause_s=0.01)
    assert box.close(timeout_s=40)
    told = statistics_of(end(process))
    end(collector)

    assert told["dropped"] == {}
    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 1, 160)


def test_while_the_disk_is_full_frames_stay_in_memory(tmp_path: Path) -> None:
    port = free_port()
    options = ["--spool", str(tmp_path / "spool"), "--min-free", "0"]
    process, address = start_relay(f"tcp://127.0.0.1:{port}", *options, "--until-done")
    box = outbox(address)
    send(box, range(5))
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 5)
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))
    send(box, range(5, 30), pause_s=0.02)
    assert box.statistics().acknowledged == 5
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 30)
    assert box.close(timeout_s=20)
    process.kill()  # all is on disk again
    process.communicate()
    options += ["--until-done", "--first-agent", "0"]
    process, _ = start_relay(f"tcp://127.0.0.1:{port}", *options)
    collector, _ = start_collector(tmp_path / "runs", "--until-done", port=port)
    end(process)
    end(collector)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 1, 30)


def test_what_is_stored_is_not_told_as_held_where_a_full_disk_keeps_it(tmp_path: Path) -> None:
    port = free_port()
    options = ["--spool", str(tmp_path / "spool"), "--min-free", "0"]
    process, address = start_relay(f"tcp://127.0.0.1:{port}", *options)
    box = outbox(address)
    send(box, range(30))
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 30)
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))
    collector, _ = start_collector(tmp_path / "runs", port=port)
    wait_until(lambda: stored(tmp_path / "runs" / "demo") == 30)
    time.sleep(1.0)  # for the relay to hear of it
    process.send_signal(signal.SIGTERM)
    log = end(process)
    box.close(timeout_s=0.0)
    collector.kill()
    collector.communicate()

    assert statistics_of(log)["disk_failures"] > 0
    assert statistics_of(log)["held_frames"] == 0
    assert "not stored upstream yet" not in log


def test_without_a_disk_that_works_frames_go_through_memory(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    options = ["--spool", str(tmp_path / "spool"), "--min-free", "0"]
    process, address = start_relay(at, *options, "--until-done")
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))
    box = outbox(address)
    send(box, range(40), pause_s=0.01)
    assert box.close(timeout_s=30)
    log = end(process)
    end(collector)

    assert "cannot be written" in log
    assert statistics_of(log)["disk_failures"] > 0
    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 1, 40)


def test_a_damaged_spool_is_told_in_the_run_and_stops_nothing(tmp_path: Path) -> None:
    port, spool = free_port(), tmp_path / "spool"
    options = ["--spool", str(spool), "--min-free", "0"]
    process, address = start_relay(f"tcp://127.0.0.1:{port}", *options)
    box = outbox(address)
    send(box, range(10))
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 10)
    process.kill()
    process.communicate()
    (spool / FILE).write_bytes(b"nonsense" * 4000)
    for journal in spool.glob(f"{FILE}-*"):
        journal.write_bytes(b"nonsense" * 4000)
    again, _ = start_relay(
        f"tcp://127.0.0.1:{port}", *options, "--until-done", port=address.rpartition(":")[2]
    )
    collector, _ = start_collector(tmp_path / "runs", "--until-done", port=port)
    send(box, range(10, 20), pause_s=0.05)
    assert box.close(timeout_s=30)
    log = end(again)
    end(collector)
    run = open_run(tmp_path / "runs" / "demo")

    assert "is damaged" in log
    assert len(list(spool.glob(f"{FILE}.corrupt-*"))) >= 1
    assert run.records().step.tolist() == list(range(10, 20))
    [gap] = run.events().query("kind == 'gap'").text
    assert "lost 10 frames" in gap
    assert gap.endswith("the relay's spool was damaged, and was set aside.")


def test_what_cannot_be_read_of_a_spool_is_left_out_and_the_rest_is_sent(tmp_path: Path) -> None:
    port, spool = free_port(), tmp_path / "spool"
    options = ["--spool", str(spool), "--min-free", "0", "--until-done"]
    process, address = start_relay(f"tcp://127.0.0.1:{port}", *options)
    for rank in range(2):
        box = outbox(address, rank, 2)
        send(box, range(10))
        assert box.close(timeout_s=20)
    process.kill()
    process.communicate()
    with closing(sqlite3.connect(spool / FILE)) as database:
        [first, second] = database.execute("SELECT id FROM member ORDER BY id").fetchall()
        database.execute("UPDATE member SET hello = x'0102' WHERE id = ?", first)
        change = "UPDATE frame SET header = x'c1c1' WHERE member = ? AND sequence = 4"
        database.execute(change, second)
        database.commit()
    process, _ = start_relay(f"tcp://127.0.0.1:{port}", *options, "--first-agent", "0")
    soon = "--deadline", "1", "--lost-after", "5"  # a rank of which nothing is left never leaves
    collector, _ = start_collector(tmp_path / "runs", "--until-done", *soon, port=port)
    log = end(process)
    end(collector)
    run = open_run(tmp_path / "runs" / "demo")

    assert "is damaged: 11 frames are left out" in log
    assert statistics_of(log)["dropped"] == {DAMAGED: 11}
    assert statistics_of(log)["faults"] == 0
    assert run.records().step.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    [gap] = run.events().query("kind == 'gap'").text
    assert gap.startswith("Rank 1 lost 1 frame")
    assert gap.endswith(f"{DAMAGED}.")


@pytest.mark.parametrize("relays", [1, 2])
def test_relays_that_lead_back_to_themselves_lose_nothing(tmp_path: Path, relays: int) -> None:
    ports = [free_port() for _ in range(relays)]
    spools = [["--spool", str(tmp_path / port), "--min-free", "0"] for port in ports]
    ring = []
    for place, port in enumerate(ports):
        above = f"tcp://127.0.0.1:{ports[(place + 1) % relays]}"
        ring.append(start_relay(above, *spools[place], port=port)[0])
    box = outbox(f"tcp://127.0.0.1:{ports[0]}")
    send(box, range(10), pause_s=0.05)
    assert box.close(timeout_s=20)
    said = "What is sent up comes back to this relay: say another `--to`"
    asked = [["--to", f"tcp://127.0.0.1:{port}"] for port in ports]
    wait_until(lambda: any(said in CliRunner().invoke(doctor, one).output for one in asked))
    for process in ring:
        process.send_signal(signal.SIGTERM)
    assert said in "".join(map(end, ring))
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    for spool in spools:
        end(start_relay(at, *spool, "--until-done", "--first-agent", "0")[0])
    end(collector)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 1, 10)


def test_what_nobody_takes_upstream_is_bounded_in_memory(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    process, address = start_relay(at, "--until-done", "--memory-bytes", "20KB")
    box = outbox(address)
    send(box, [0])
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 1)
    collector.send_signal(signal.SIGSTOP)
    send(box, range(1, 150), pause_s=0.002)
    assert box.statistics().pending_frames > 100
    assert box.statistics().sent < 100
    collector.send_signal(signal.SIGCONT)
    assert box.close(timeout_s=40)
    end(process)
    end(collector)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 1, 150)


def test_nonsense_is_counted_and_disturbs_nobody(tmp_path: Path) -> None:
    _, at = start_collector(tmp_path / "runs")
    process, address = start_relay(at)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(address)
        for parts in ([b"\xc1"], [b""], [b"\x92\xa3via\xff", b"x"], [b"a", b"b", b"c"] * 20):
            socket.send_multipart(parts)
        socket.send_multipart([encode(hello(protocol_min=PROTOCOL + 1, protocol_max=99))])
        socket.send_multipart([encode(hello(run="../../etc"))])
        answers = [decode(socket.recv(), "collector") for _ in range(6)]
        socket.send_multipart([encode(hello())])
        welcome = decode(socket.recv(), "collector")
    process.send_signal(signal.SIGTERM)
    told = statistics_of(end(process))

    assert [one.code for one in answers] == ["malformed"] * 4 + ["protocol", "run"]
    assert isinstance(welcome, Welcome)
    assert (told["malformed"], told["refused"], told["faults"]) == (4, 6, 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--to", "somewhere"), "An address looks like tcp://127.0.0.1:7600"),
        (("--to", "tcp://*:1"), "has a host and a port"),
        (("--to", "tcp://a:1", "--bind", "here"), "An address looks like tcp://127.0.0.1:7600"),
        (("--to", "tcp://a:1", "--spool-bytes", "0"), "It must be 1 at least, got '0'."),
    ],
)
def test_what_an_option_cannot_be_is_a_usage_error(options: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(relay, options)

    assert result.exit_code == 2
    assert text in result.output


def test_an_address_that_others_reach_has_to_be_wanted() -> None:
    result = CliRunner().invoke(relay, ["--to", "tcp://a:1", "--bind", "tcp://0.0.0.0:*"])

    assert isinstance(result.exception, AddressError)
    assert "say `--insecure`" in str(result.exception)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SettingError, match="must be at least 1, got 0"):
        RelaySettings(spool_bytes=0)


@pytest.mark.parametrize(
    ("given", "size"), [("2GiB", 2 << 30), ("512MB", 512 << 20), ("100", 100), ("1.5k", 1536)]
)
def test_sizes_have_units(given: str, size: int) -> None:
    [option] = [one for one in relay.params if one.name == "spool_bytes"]
    assert option.type.convert(given, option, None) == size


def test_a_size_without_sense_is_a_usage_error() -> None:
    result = CliRunner().invoke(relay, ["--to", "tcp://a:1", "--spool-bytes", "many"])

    assert result.exit_code == 2
    assert "A size looks like 512MiB" in result.output


def test_an_address_in_use_is_told(tmp_path: Path) -> None:
    first = Service("tcp://127.0.0.1:*", "tcp://127.0.0.1:1", settings=RelaySettings(drain_s=0.0))
    with pytest.raises(AddressError, match="is in use"):
        Service(first.address, "tcp://127.0.0.1:1")
    first.close()


def test_why_upstream_cannot_store_is_told_below(tmp_path: Path) -> None:
    """By a relay without a spool: frames that wait in one are the relay's."""
    collector, above = start_collector(tmp_path / "runs")
    _, address = start_relay(above)
    box = outbox(address)
    send(box, range(2))
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 2)
    limit_files(collector, 0)
    send(box, range(2, 4))
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().rejected)
    assert box.statistics().rejected.startswith("Run 'demo' cannot be stored: Cannot write to ")
    limit_files(collector, resource.RLIM_INFINITY)

    wait_until(lambda: box.poll(time.monotonic()) or not box.statistics().rejected)
    assert box.close(timeout_s=20)
