"""Peers that mean ill, on real sockets: each is bounded, and honest agents are served."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zmq

from rankscope.collector import CollectorSettings, JoinerSettings, Service
from rankscope.store import open_run
from rankscope.wire import Frame, Reject, State, Welcome, encode, encode_frame, make_schema
from rankscope.wire.memory import resident_bytes

from .serving import QUICK, SITES, Peer, a_table, hello, outbox, send, serving, wait_until

MIB = 1 << 20


def an_honest_job_is_served(service: Service, steps: int = 5, run: str = "honest") -> None:
    """A whole job, from hello to goodbye, all of it durable."""
    box = outbox(service.address, run=run, stream=run, launch=run)
    send(box, range(steps), pause_s=0.01)
    assert box.close(timeout_s=60), box.statistics()


@contextmanager
def meanwhile(what: Callable[[], object]) -> Generator[None]:
    """Do something over and over while the block runs."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            what()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def say_quickly(peer: Peer, *parts: bytes) -> None:
    """Without waiting for a collector that does not read."""
    try:
        peer.socket.send_multipart(parts, zmq.NOBLOCK)
    except zmq.Again:
        time.sleep(0.001)


def frame_of(sequence: int) -> tuple[bytes, bytes]:
    frame = Frame(
        sequence=sequence,
        step=sequence,
        time_ns=1,
        sites=np.arange(2, dtype=np.uint32),
        table=a_table(),
    )
    return encode_frame(frame, make_schema(SITES).hash)


@pytest.mark.parametrize("message", [b"\xc1" * 1000, encode(State(step=1, site="x"))])
def test_one_who_floods_without_a_hello_holds_nobody_up(tmp_path: Path, message: bytes) -> None:
    with (
        serving(tmp_path) as service,
        Peer(service.address) as peer,
        meanwhile(lambda: say_quickly(peer, message)),
    ):
        an_honest_job_is_served(service)
        assert service.statistics().refused > 100
    assert len(open_run(tmp_path / "honest").records()) == 5


def test_one_who_ignores_credit_is_turned_away(tmp_path: Path) -> None:
    frames = [frame_of(sequence) for sequence in range(2000)]  # else it may be too slow to do so
    with serving(tmp_path, replace(QUICK, commit_s=0.5)) as service, Peer(service.address) as peer:
        peer.say(hello())
        assert isinstance(peer.hear(), Welcome)
        peer.say(make_schema(SITES))
        for frame in frames:
            peer.say(*frame)
        answer = peer.hear(Reject)
        assert isinstance(answer, Reject)
        assert answer.reason == "More frames came than the credit that was given allows."
        an_honest_job_is_served(service)
        assert service.statistics().held_bytes < 64 * MIB


def test_one_who_reads_no_answers_costs_little(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        before = resident_bytes()
        with Peer(service.address) as peer:
            peer.socket.rcvhwm = 1
            for _ in range(50_000):
                say_quickly(peer, b"\xc1")  # each is answered with a sentence
            wait_until(lambda: service.statistics().refused > 10_000, timeout_s=60)
            an_honest_job_is_served(service)
            assert resident_bytes() - before < 128 * MIB


def test_one_who_says_to_be_another_rank_is_refused(tmp_path: Path) -> None:
    patient = replace(
        QUICK, joiner=JoinerSettings(deadline_s=2.0)
    )  # the rank is not taken for lost
    with serving(tmp_path, patient) as service:
        box = outbox(service.address)
        send(box, range(3))
        wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 3)
        with Peer(service.address) as peer:
            peer.say(hello(stream="liar"))
            answer = peer.hear(Reject)
            assert isinstance(answer, Reject)
            assert "is being received from another process" in answer.reason
            peer.say(make_schema(SITES))
            peer.say(*frame_of(77))
            assert peer.hear(Reject) is not None
        send(box, range(3, 6))
        assert box.close(timeout_s=30)
    run = open_run(tmp_path / "demo")

    assert run.records().step.tolist() == list(range(6))
    assert run.records().complete.all()


def test_one_who_takes_anothers_stream_cannot_take_back_what_is_stored(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        box = outbox(service.address)
        send(box, range(5))
        wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 5)
        with Peer(service.address) as peer:
            peer.say(hello())  # the same stream: a replay of what went over the wire
            assert isinstance(answer := peer.hear(), Welcome)
            assert answer.committed == 4
            peer.say(make_schema(SITES))
            for sequence in range(5):
                peer.say(*frame_of(sequence))
            wait_until(lambda: service.statistics().duplicates >= 5)
        send(box, range(5, 8), pause_s=0.05)
        assert box.close(timeout_s=30)
    run = open_run(tmp_path / "demo")

    assert run.records().step.tolist() == list(range(8))
    assert run.scalar("count").sel(site="activation:fc").values.tolist() == [8.0] * 8


def test_one_who_says_hello_without_end_is_bounded(tmp_path: Path) -> None:
    settings = replace(QUICK, max_streams=100, max_runs=4, max_attempts=40)
    turn = iter(range(10**9))

    def say_hello(peer: Peer) -> None:
        n = next(turn)
        new = hello(run=f"run-{n % 50}", stream=f"s{n}", launch=f"l{n}")
        say_quickly(peer, encode(new))

    with serving(tmp_path, settings) as service, Peer(service.address) as peer:
        an_honest_job_is_served(service, run="first")
        box = outbox(service.address, run="first", stream="goes-on", launch="goes-on")
        wait_until(lambda: box.poll(time.monotonic()) or box.statistics().connected)
        with meanwhile(lambda: say_hello(peer)):
            send(box, range(20), pause_s=0.05)
            wait_until(lambda: service.statistics().refused > 200, timeout_s=60)
            assert box.close(timeout_s=60)
        assert service.statistics().runs <= 4
        assert service.statistics().faults == 0


def test_connections_without_end_do_not_shut_out_those_that_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    most = QUICK.resident_bytes
    settings = CollectorSettings(commit_s=0.05, max_connections=20, resident_bytes=most)
    with serving(tmp_path, settings) as service:
        box = outbox(service.address)
        wait_until(lambda: box.poll(time.monotonic()) or box.statistics().connected)
        place = "127.0.0.1", int(service.address.rpartition(":")[2])
        with ExitStack() as crowd:
            for _ in range(40):
                crowd.enter_context(socket.create_connection(place))
            wait_until(lambda: "until some go nobody is let in" in caplog.text)
            late = crowd.enter_context(socket.create_connection(place, timeout=20))
            with suppress(ConnectionResetError):
                while late.recv(100):  # the greeting, and then the end
                    pass
            send(box, range(3))
            assert box.close(timeout_s=30)
        an_honest_job_is_served(service)


def test_a_message_of_parts_without_end_costs_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    most = resident_bytes() + 192 * MIB
    with serving(tmp_path, replace(QUICK, resident_bytes=most)) as service:
        part = bytes(MIB)

        def more(peer: Peer) -> None:
            try:
                peer.socket.send(part, zmq.SNDMORE | zmq.NOBLOCK)
            except zmq.Again:
                time.sleep(0.001)
            time.sleep(0.002)

        with Peer(service.address) as peer, meanwhile(lambda: more(peer)):
            wait_until(lambda: "all connections are closed" in caplog.text, timeout_s=60)
        an_honest_job_is_served(service)
    assert len(open_run(tmp_path / "honest").records()) == 5


def test_a_message_of_many_parts_is_one_complaint(tmp_path: Path) -> None:
    with serving(tmp_path) as service, Peer(service.address) as peer:
        peer.say(*[b"x"] * 10_000)
        answer = peer.hear(Reject)
        assert isinstance(answer, Reject)
        an_honest_job_is_served(service)
        assert service.statistics().malformed == 1
