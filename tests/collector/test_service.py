"""A collector on a socket: what it stores, what it answers, and what does not disturb it."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from rankscope.collector import CollectorSettings, JoinerSettings, Service
from rankscope.collector.joiner import UNREADABLE
from rankscope.rules import why
from rankscope.sketch import AddressError, BusyError, StoreError
from rankscope.store import open_run
from rankscope.wire import (
    PROTOCOL,
    Ack,
    Alerts,
    Control,
    Gap,
    Goodbye,
    NeedSchema,
    Reject,
    State,
    Via,
    Welcome,
    decode,
    encode,
    make_schema,
)
from rankscope.wire.via import unwrap, wrap

from .serving import (
    QUICK,
    SITES,
    Peer,
    close_all,
    hello,
    outbox,
    send,
    serving,
    wait_until,
)


def test_who_leaves_last_does_not_wait_for_the_next_commit(tmp_path: Path) -> None:
    with serving(tmp_path, replace(QUICK, commit_s=20.0)) as service:
        boxes = [outbox(service.address, rank, 2) for rank in range(2)]
        for box in boxes:
            send(box, range(70))
        assert close_all(boxes) == [True, True]
        assert len(open_run(tmp_path / "demo").records()) == 70


def test_frames_become_records_that_can_be_read(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        boxes = [outbox(service.address, rank, 2) for rank in range(2)]
        for step in range(20):
            for rank, box in enumerate(boxes):
                send(box, [step], value=rank + 1.0, pause_s=0.002)
        assert close_all(boxes) == [True, True]
    run = open_run(tmp_path / "demo")

    assert run.records().step.tolist() == list(range(20))
    assert run.records().complete.all()
    assert run.scalar("count").sel(site="activation:fc").values.tolist() == [16.0] * 20
    assert run.scalar("mean").sel(site="activation:fc").values.tolist() == [1.5] * 20
    assert run.scalar("count").sel(site="weight:fc").values.tolist() == [8.0] * 20
    assert run.finished
    assert boxes[0].statistics().acknowledged == 20


def test_a_step_can_be_read_within_two_seconds(tmp_path: Path) -> None:
    settings = CollectorSettings(resident_bytes=QUICK.resident_bytes)
    with serving(tmp_path, settings) as service:
        box = outbox(service.address)
        wait_until(lambda: box.poll(time.monotonic()) or box.statistics().connected)
        started = time.monotonic()
        send(box, [0])
        wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 1)
        assert len(open_run(tmp_path / "demo").records()) == 1
        assert time.monotonic() - started < 2.0
        box.close(timeout_s=5)


def test_a_duplicate_is_acknowledged_and_not_counted_twice(tmp_path: Path) -> None:
    with serving(tmp_path) as service, Peer(service.address) as peer:
        peer.say(hello())
        assert peer.hear(Welcome) == Welcome(
            protocol=PROTOCOL,
            attempt=0,
            committed=-1,
            credit_frames=32,
            credit_bytes=16 << 20,
            joins=True,
        )
        peer.say(make_schema(SITES))
        peer.frame(0)
        wait_until(lambda: peer.hear(Ack) == Ack(received=0, committed=0, left=False))
        peer.frame(0)
        assert peer.hear(Ack) == Ack(received=0, committed=0, left=False)
        peer.say(Goodbye(last=0))
        assert peer.hear(Ack) == Ack(received=0, committed=0, left=True)
        assert service.statistics().duplicates == 1
    assert len(open_run(tmp_path / "demo").records()) == 1


def test_an_unknown_schema_is_asked_for_and_the_order_is_kept(tmp_path: Path) -> None:
    with serving(tmp_path) as service, Peer(service.address) as peer:
        peer.say(hello())
        peer.frame(0)
        peer.frame(1)
        assert peer.hear(NeedSchema) == NeedSchema(hash=make_schema(SITES).hash)
        peer.say(make_schema(SITES))
        peer.frame(0)
        peer.frame(1)
        peer.say(Goodbye(last=1))
        wait_until(lambda: peer.hear(Ack) == Ack(received=1, committed=1, left=True))
    assert open_run(tmp_path / "demo").records().step.tolist() == [0, 1]


def test_what_was_dropped_does_not_stall_a_stream_and_is_told(tmp_path: Path) -> None:
    with serving(tmp_path) as service, Peer(service.address) as peer:
        peer.say(hello())
        peer.say(make_schema(SITES))
        peer.frame(0)
        peer.frame(5, gaps=[Gap(first_step=1, last_step=4, frames=4, cause="the disk is slow")])
        peer.say(Goodbye(last=7))
        wait_until(lambda: peer.hear(Ack) == Ack(received=7, committed=7, left=True))
    events = open_run(tmp_path / "demo").events()

    assert events.kind.tolist() == ["gap", "gap"]
    assert events.text[0] == "Rank 0 lost 4 frames of steps 1 to 4: the disk is slow."
    assert events.text[1] == "Rank 0 lost 2 frames of step 5: unknown.", "the goodbye said to 7"


def test_a_damaged_frame_is_told_and_passed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path) as service, Peer(service.address) as peer:
        peer.say(hello())
        peer.say(make_schema(SITES))
        peer.frame(0)
        peer.frame(3, gaps=[Gap(first_step=1, last_step=2, frames=2, cause="slow")], crc32=7)
        peer.frame(4)
        peer.say(Goodbye(last=4))
        wait_until(lambda: peer.hear(Ack) == Ack(received=4, committed=4, left=True))
        assert service.statistics().malformed == 1
    run = open_run(tmp_path / "demo")

    assert run.records().step.tolist() == [0, 4]
    told = run.gaps()[["first_step", "last_step", "frames", "cause"]]
    assert told.to_numpy().tolist() == [
        [1, 2, 2, "slow"],
        [3, 3, 1, f"{UNREADABLE}: A frame's checksum does not match: it was damaged on the way"],
    ]
    assert "Rank 0 of run 'demo': A frame's checksum" in caplog.text


def test_strangers_do_not_disturb(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = replace(QUICK, max_message_bytes=100_000)
    with serving(tmp_path, settings) as service:
        box = outbox(service.address)
        with Peer(service.address) as peer:
            for garbage in (
                b"",
                b"\xc1",
                b"GET / HTTP/1.1\r\n\r\n",
                b"\x92\xa5hello\x01",
                b"x" * 999,
            ):
                peer.say(garbage)
                assert isinstance(answer := peer.hear(Reject), Reject)
                assert answer.code == "malformed"
            peer.say(encode(Goodbye(last=1)), b"second part")
            assert peer.hear(Reject).code == "malformed"  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
            peer.say(State(step=1, site=""))
            assert peer.hear(Reject) == Reject(
                code="stream", reason="This collector does not know you: say hello.", retry_s=0.2
            )
        with Peer(service.address) as peer:
            peer.say(bytes(200_000))
            assert peer.hear(timeout_s=0.2) is None
        with socket.create_connection(
            ("127.0.0.1", int(service.address.rpartition(":")[2]))
        ) as raw:
            raw.sendall(b"\x00\xff" * 500)
        send(box, range(3))
        assert box.close(timeout_s=10)
        assert service.statistics().malformed == 6
    assert len(open_run(tmp_path / "demo").records()) == 3
    lines = [line for line in caplog.messages if "An unknown peer" in line]
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"protocol_min": 8, "protocol_max": 9}, "protocol", "speaks protocol 5, the agent 8 to 9"),
        ({"protocol_min": 4, "protocol_max": 4}, "protocol", "protocol 5, the agent 4: update one"),
        ({"run": "../up"}, "run", "A run's name is letters"),
        ({"run": "a/b"}, "run", "A run's name is letters"),
        ({"run": ".hidden"}, "run", "A run's name is letters"),
        ({"run": "CON/"}, "run", "A run's name is letters"),
        ({"rank": 4}, "malformed", "Rank 4 of 1 does not fit its mesh"),
        ({"world_size": 30_000, "mesh": []}, "full", "takes 20000 ranks"),
        ({"mesh": []}, "", ""),
    ],
)
def test_a_hello_that_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, object], code: str, text: str
) -> None:
    with serving(tmp_path) as service, Peer(service.address) as peer:
        peer.say(msgspec.structs.replace(hello(), **change))
        answer = peer.hear()
    if not code:
        assert isinstance(answer, Welcome)
        return
    assert isinstance(answer, Reject)
    assert (answer.code, answer.retry_s) == (code, None)
    assert text in answer.reason


def test_ranks_of_one_start_must_agree_on_the_world(tmp_path: Path) -> None:
    with serving(tmp_path) as service, Peer(service.address) as one, Peer(service.address) as two:
        one.say(hello(0, 2))
        assert isinstance(one.hear(), Welcome)
        two.say(hello(1, 3))
        answer = two.hear()
    assert isinstance(answer, Reject)
    assert answer.reason == (
        "This start of run 'demo' has 2 ranks on mesh {'dp': 2}, got 3 on {'dp': 3}."
    )


def test_two_processes_cannot_be_the_same_rank(tmp_path: Path) -> None:
    with serving(tmp_path) as service, Peer(service.address) as one, Peer(service.address) as two:
        one.say(hello(stream="a"))
        assert isinstance(one.hear(), Welcome)
        two.say(hello(stream="b"))
        answer = two.hear()
    assert isinstance(answer, Reject)
    assert "is being received from another process" in answer.reason
    assert answer.retry_s is not None


def test_a_new_launch_is_a_new_attempt(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        for launch in ("first", "second"):
            box = outbox(service.address, launch=launch, stream=launch)
            send(box, range(3))
            assert box.close(timeout_s=10)
    records = open_run(tmp_path / "demo").records(all_attempts=True)

    assert records.attempt.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_start_that_goes_on_beside_a_later_one_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path) as service:
        first, second = (
            outbox(service.address, launch=launch, stream=launch) for launch in ("first", "second")
        )
        for box in (first, second):
            send(box, [0])
            wait_until(lambda box=box: box.poll(time.monotonic()) or box.statistics().acknowledged)
        send(first, [1], later_s=10)  # it may be at its end
        send(first, [2, 3], later_s=60)
        send(second, [1], later_s=60)
        assert close_all([first, second]) == [True, True]

    run = open_run(tmp_path / "demo")
    told = run.events().query("kind == 'two-jobs'")
    assert told[["attempt", "step"]].to_numpy().tolist() == [[0, 2]]
    assert "Attempt 0 goes on beside attempt 1, as of two jobs under one name" in caplog.text
    assert told["text"].item() in why(run).not_observed


def test_several_runs_are_served(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        boxes = [outbox(service.address, run=name, stream=name) for name in ("one", "two")]
        for box in boxes:
            send(box, range(2))
        assert close_all(boxes) == [True, True]
    assert [len(open_run(tmp_path / name).records()) for name in ("one", "two")] == [2, 2]


def test_a_run_that_another_collector_writes_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with serving(tmp_path) as first, serving(tmp_path) as second:
        box = outbox(first.address)
        send(box, range(2))
        wait_until(lambda: box.poll(time.monotonic()) or box.statistics().acknowledged == 2)
        other = outbox(second.address)
        wait_until(lambda: other.poll(time.monotonic()) or other.statistics().rejected)
        assert "is being written by process" in other.statistics().rejected
        with pytest.raises(BusyError, match="is being written by process"):
            Service(
                "tcp://127.0.0.1:*", tmp_path, settings=CollectorSettings(runs=frozenset({"demo"}))
            )
        box.close(timeout_s=5)
        other.close(timeout_s=0)


def test_a_record_without_its_last_rank_is_stored_and_patched(tmp_path: Path) -> None:
    joiner = JoinerSettings(deadline_s=0.2, lost_after_s=30.0)
    with serving(tmp_path, replace(QUICK, joiner=joiner)) as service:
        zero, one = (outbox(service.address, rank, 2) for rank in range(2))
        send(zero, [0])
        wait_until(lambda: zero.poll(time.monotonic()) or zero.statistics().acknowledged == 1)
        assert open_run(tmp_path / "demo").records().complete.tolist() == [False]
        send(one, [0])
        assert close_all([zero, one]) == [True, True]
    run = open_run(tmp_path / "demo")

    assert run.records().complete.tolist() == [True]
    assert run.scalar("count").sel(site="activation:fc").values.tolist() == [16.0]


def test_a_busy_port_is_named(tmp_path: Path) -> None:
    with serving(tmp_path) as service, pytest.raises(AddressError, match=r"is in use: stop what"):
        Service(service.address, tmp_path)


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:*", "tcp://*:*", "tcp://10.1.2.3:7600"])
def test_an_address_that_others_reach_must_be_wanted(tmp_path: Path, address: str) -> None:
    with pytest.raises(AddressError, match="say `--insecure`"):
        Service(address, tmp_path)


def test_an_address_of_another_machine_cannot_be_listened_on(tmp_path: Path) -> None:
    with pytest.raises(
        AddressError, match=r"^This machine cannot listen on tcp://192\.0\.2\.1:7600"
    ):
        Service("tcp://192.0.2.1:7600", tmp_path, insecure=True)


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match="cannot be written"):
        Service("tcp://127.0.0.1:*", tmp_path / "file")


def test_it_ends_by_itself_if_nobody_comes(tmp_path: Path) -> None:
    service = Service("tcp://127.0.0.1:*", tmp_path, settings=replace(QUICK, first_hello_s=0.1))
    started = time.monotonic()
    service.run(lambda: False, until_done=True)
    service.close()

    assert time.monotonic() - started < 2.0


def test_it_waits_for_whom_it_does_not_know_as_long_as_somebody_is_connected(
    tmp_path: Path,
) -> None:
    settings = replace(QUICK, first_hello_s=0.1)
    with serving(tmp_path, settings, until_done=True) as service:
        with Peer(service.address):
            time.sleep(1.5)  # what takes no clock
            box = outbox(service.address)
        send(box, range(3))
        assert box.close(timeout_s=10)
    assert open_run(tmp_path / "demo").records()["step"].tolist() == [0, 1, 2]


def test_the_log_is_quiet_when_all_is_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path) as service:
        box = outbox(service.address)
        send(box, range(3))
        assert box.close(timeout_s=10)
    assert [record.levelno for record in caplog.records if record.levelno > logging.INFO] == []


def test_agents_above_their_budget_are_told_how_to_go_on(tmp_path: Path) -> None:
    def events() -> pd.DataFrame:
        return open_run(tmp_path / "demo").events()

    with serving(tmp_path) as service:
        with Peer(service.address) as first, Peer(service.address) as late:
            costly = {"hook_seconds": 0.0, "wall_seconds": 0.0, "stretch": 1.0}
            first.say(hello(budget=0.01))
            first.say(make_schema(SITES))
            first.frame(0, health=costly)
            first.frame(1, step=40, health={**costly, "hook_seconds": 1.0, "wall_seconds": 4.0})
            told = first.hear(Control)
            assert isinstance(told, Control)
            assert told.stretch == 4
            assert told.from_step > 40
            late.say(hello(budget=0.01, stream="stream-0"))  # the same rank, on a new connection
            assert late.hear(Control) == told
        wait_until(lambda: "rank-lost" in events()["kind"].tolist())  # it has not said goodbye
    assert events()["kind"].tolist() == ["budget", "rank-lost"]
    assert "The agent added 33.33% to the step time of rank 0" in events()["text"].iloc[0]


def test_all_ranks_are_told_of_an_alert(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        boxes = [outbox(service.address, rank, 2, keeps_back=rank == 0) for rank in range(2)]
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
    events = open_run(tmp_path / "demo").events().query("kind == 'closer-look'")
    [alerts] = told[0]

    assert told[1] == [alerts]
    assert (alerts.send_ring, alerts.detail_steps) == (True, 8)
    assert {tuple(one.ranks) for one in alerts.alerts if one.rule == "nonfinite"} == {(1,)}
    assert len(events) == 1


def test_streams_that_share_a_connection_are_answered_each(tmp_path: Path) -> None:
    with serving(tmp_path) as service, Peer(service.address) as peer:
        for member in (5, 0):
            peer.say(*wrap(member, [encode(hello(member, 6))]))
        peer.say(*wrap(9, [encode(Goodbye(last=-1))]))
        peer.say(encode(Via(member=1 << 30)), hello(2, 6))
        answers = [unwrap(peer.socket.recv_multipart()) for _ in range(4)]
        malformed = service.statistics().malformed
    said = {member: decode(part, "collector") for member, [part] in answers}

    assert isinstance(said[5], Welcome)
    assert isinstance(said[0], Welcome)
    assert (said[9].code, said[None].code) == ("stream", "malformed")
    assert malformed == 1


def test_rules_remember_after_a_restart_what_was_usual_and_tell_nothing_twice(
    tmp_path: Path,
) -> None:
    def train(stream: str, steps: Sequence[int], value: float) -> None:
        with serving(tmp_path) as service:
            box = outbox(service.address, stream=stream)
            for step in steps:
                send(box, [step], value * (1 + step % 3 / 10))
            assert close_all([box]) == [True]

    train("before", range(16), 1.0)
    train("after", range(16, 19), 1000.0)
    train("later", range(19, 22), 1000.0)

    told = [(one.rule, one.first_step) for one in open_run(tmp_path / "demo").alert_log()]
    assert told == [("exploding-activation", 16), ("drift", 16)]
