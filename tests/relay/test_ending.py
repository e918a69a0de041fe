"""When a relay and a collector end, and what they leave; signals of the job are not for them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from rankscope.store import open_run
from rankscope.wire.codec import encode

from ..collector.serving import Peer, close_all, hello, outbox, send, start_collector, wait_until
from .relaying import assert_each_frame_is_stored_once, end, start_relay, statistics_of

Start = Callable[[Path], subprocess.Popen[str]]


def a_relay(folder: Path) -> subprocess.Popen[str]:
    return start_relay("tcp://127.0.0.1:9", "--spool", str(folder / "spool"))[0]


def a_collector(folder: Path) -> subprocess.Popen[str]:
    return start_collector(folder / "runs")[0]


@pytest.mark.parametrize("start", [a_relay, a_collector])
def test_signals_for_the_job_do_not_end_what_serves_it(tmp_path: Path, start: Start) -> None:
    process = start(tmp_path)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    process.terminate()
    end(process)


@pytest.mark.parametrize("start", [a_relay, a_collector])
def test_a_terminal_that_is_closed_ends_what_serves_as_sigterm_does(
    tmp_path: Path, start: Start
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        process = start(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    end(process)


@pytest.mark.parametrize("name", ["TERM", "HUP"])
@pytest.mark.parametrize("command", ["relay --to tcp://127.0.0.1:9", "collect"])
def test_a_signal_that_is_ignored_at_the_start_stays_so(
    tmp_path: Path, command: str, name: str
) -> None:
    words = f"{sys.executable} -m rankscope {command} --announce --bind tcp://127.0.0.1:*"
    process = subprocess.Popen(
        ["bash", "-c", f"trap '' {name}; exec {words}"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(getattr(signal, f"SIG{name}"))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    process.send_signal(signal.SIGINT)
    end(process)


def start_with_input(to: str, spool: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A relay whose input is ours, and where it listens: it serves until we close that."""
    with zmq.Context() as context, context.socket(zmq.REP) as probe:
        address = f"tcp://127.0.0.1:{probe.bind_to_random_port('tcp://127.0.0.1')}"
    relay = subprocess.Popen(
        [
            *(sys.executable, "-m", "rankscope", "relay", "--to", to, "--bind", address),
            *("--announce", "--spool", spool, "--min-free", "0", "--while-input"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert relay.stdout is not None
    assert relay.stdout.readline()
    return relay, address


@contextmanager
def a_rank(address: str) -> Generator[None]:
    """One that is welcome, and goes without a goodbye."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as rank:
        rank.linger = 0
        rank.connect(address)
        rank.send(encode(hello()))
        assert rank.poll(10_000)
        yield


def ended(relay: subprocess.Popen[bytes]) -> str:
    """Close its input, and wait for it; what it logged."""
    _, log = relay.communicate(timeout=60)
    assert relay.returncode == 0, log
    return log.decode()


def test_it_waits_for_whom_it_does_not_know_as_long_as_somebody_is_connected(
    tmp_path: Path,
) -> None:
    _, at = start_collector(tmp_path)
    relay, address = start_relay(at, "--until-done", "--first-agent", "0.5")
    with Peer(address):
        with pytest.raises(subprocess.TimeoutExpired):
            relay.wait(3.0)
        box = outbox(address)
    send(box, range(3))
    assert close_all([box]) == [True]
    end(relay)
    wait_until(lambda: len(open_run(tmp_path / "demo").records()) == 3)


def test_while_its_input_is_open_it_outlasts_those_that_come_and_go(tmp_path: Path) -> None:
    _, at = start_collector(tmp_path / "runs")
    relay, address = start_with_input(at, tmp_path / "spool")
    for number in range(2):
        box = outbox(address, stream=f"stream-{number}", launch=f"launch-{number}")
        send(box, range(5))
        assert close_all([box]) == [True]
        with pytest.raises(subprocess.TimeoutExpired):
            relay.wait(1.5)
    assert statistics_of(ended(relay))["held_frames"] == 0
    wait_until(lambda: len(open_run(tmp_path / "runs" / "demo").records(all_attempts=True)) == 10)


def test_who_did_not_say_goodbye_is_not_waited_for_when_the_input_has_ended(
    tmp_path: Path,
) -> None:
    _, at = start_collector(tmp_path / "runs")
    relay, address = start_with_input(at, tmp_path / "spool")
    with a_rank(address):
        began = time.monotonic()
    assert statistics_of(ended(relay))["streams"] == 1
    assert time.monotonic() - began < 15  # silence would be one of 30 s
    assert not (tmp_path / "spool").exists()


def test_sigterm_leaves_it_serving_and_then_little_time(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs")
    collector.terminate()
    end(collector)
    relay, address = start_with_input(at, tmp_path / "spool")
    relay.terminate()
    box = outbox(address)
    send(box, range(3))
    assert close_all([box]) == [True]
    began = time.monotonic()
    assert statistics_of(ended(relay))["held_frames"] == 3
    assert time.monotonic() - began < 15  # without it there is no end, for there is no collector


def test_sigterm_leaves_no_spool_where_all_is_stored_of_ranks_that_were_killed(
    tmp_path: Path,
) -> None:
    _, at = start_collector(tmp_path / "runs")
    relay, address = start_with_input(at, tmp_path / "spool")
    with a_rank(address):
        relay.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            relay.wait(1.0)
    assert statistics_of(ended(relay))["held_frames"] == 0
    assert not (tmp_path / "spool").exists()


def test_it_says_when_there_is_a_connection_again(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs")
    collector.terminate()
    end(collector)
    relay, address = start_with_input(at, tmp_path / "spool")
    box = outbox(address)
    send(box, range(3))
    assert close_all([box]) == [True]
    start_collector(tmp_path / "runs", port=at.rpartition(":")[2])
    said = ended(relay).splitlines()
    texts = [line.partition(" ")[2] for line in said]
    lost = texts.index(f"There is no connection to {at} yet: what comes is kept.")
    assert texts.index(f"There is a connection to {at}.") > lost
    run = open_run(tmp_path / "runs" / "demo")
    assert_each_frame_is_stored_once(run, 1, 3)
