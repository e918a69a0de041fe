"""The agent's side of the wire, against a peer that says what the test wants."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import zmq
from msgspec.structs import replace

from rankscope.agent import Outbox
from rankscope.agent.outbox import TOO_LARGE
from rankscope.agent.window import FORSAKEN, OVERFLOW
from rankscope.sketch import AddressError, SettingError, SketchTable, sketch_array
from rankscope.wire import (
    PROTOCOL,
    Ack,
    Frame,
    FrameHeader,
    Gap,
    Goodbye,
    Hello,
    MeshAxis,
    Message,
    NeedSchema,
    Reject,
    Schema,
    Site,
    State,
    Welcome,
    decode,
    decode_frame,
    encode,
    pack_frame,
)

SITES = [Site(kind="tap", name="t")]
HELLO = Hello(
    protocol_min=PROTOCOL,
    protocol_max=PROTOCOL,
    run="r",
    launch="l",
    stream="s",
    rank=0,
    world_size=1,
    mesh=[MeshAxis(name="dp", size=1, coordinate=0)],
)
WELCOME = Welcome(protocol=PROTOCOL, attempt=0, committed=-1, credit_frames=4, credit_bytes=1 << 20)
TABLE = SketchTable.concatenate([sketch_array(np.arange(5.0))])


class FakeCollector:
    """A ROUTER that remembers who spoke last."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.port = 0
        self.peer = b""
        self.listen()

    def listen(self) -> None:
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(f"tcp://127.0.0.1:{self.port or '*'}")
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(self.address.rpartition(":")[2])

    def hear(self, box: Outbox, kind: type, timeout_s: float = 5.0) -> list[bytes]:
        """The parts of the next message, which is of this kind."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            box.poll(time.monotonic())
            if self.socket.poll(5):
                self.peer, *parts = self.socket.recv_multipart()
                message = decode(parts[0], "agent")
                assert isinstance(message, kind), message
                return parts
        raise AssertionError(f"no {kind.__name__} came")

    def sequences(self, box: Outbox, count: int) -> list[int]:
        headers = [decode(self.hear(box, FrameHeader)[0], "agent") for _ in range(count)]
        return [header.sequence for header in headers]

    def say(self, box: Outbox, message: Message) -> None:
        self.socket.send_multipart((self.peer, encode(message)))
        time.sleep(0.03)
        box.poll(time.monotonic())

    def is_silent(self, box: Outbox, seconds: float = 0.1) -> bool:
        box.poll(time.monotonic())
        return not self.socket.poll(int(seconds * 1000))

    def welcome(self, box: Outbox, message: Welcome = WELCOME) -> None:
        self.hear(box, Hello)
        self.say(box, message)


@pytest.fixture
def collector() -> Iterator[FakeCollector]:
    fake = FakeCollector()
    yield fake
    fake.context.destroy(linger=0)


@pytest.fixture
def box(collector: FakeCollector) -> Iterator[Outbox]:
    outbox = Outbox(collector.address, HELLO, window_frames=8)
    outbox.set_sites(SITES)
    yield outbox
    outbox.close(timeout_s=0)


def send(box: Outbox, count: int, first: int = 0) -> None:
    for step in range(first, first + count):
        box.send(
            pack_frame(
                Frame(
                    step=step,
                    time_ns=step,
                    sites=np.zeros(1, np.uint32),
                    table=TABLE,
                    training={"loss": 1.0},
                )
            )
        )


def test_a_schema_goes_before_the_first_frame_and_once(
    collector: FakeCollector, box: Outbox
) -> None:
    collector.welcome(box)
    send(box, 2)
    schema = decode(collector.hear(box, Schema)[0], "agent")
    header, blob = collector.hear(box, FrameHeader)
    frame = decode_frame(decode(header, "agent"), blob, schema)

    assert schema.sites == SITES
    assert frame.table == TABLE
    assert collector.sequences(box, 1) == [1]


def test_nothing_is_sent_before_the_welcome(collector: FakeCollector, box: Outbox) -> None:
    send(box, 2)
    collector.hear(box, Hello)

    assert collector.is_silent(box)
    assert not box.statistics().connected
    collector.say(box, WELCOME)
    collector.hear(box, Schema)
    assert collector.sequences(box, 2) == [0, 1]
    assert box.statistics().connected


def test_credit_is_respected(collector: FakeCollector, box: Outbox) -> None:
    collector.welcome(box)
    send(box, 6)
    collector.hear(box, Schema)

    assert collector.sequences(box, 4) == [0, 1, 2, 3]
    assert collector.is_silent(box)
    collector.say(box, Ack(received=0, committed=-1))
    assert collector.sequences(box, 1) == [4]
    assert collector.is_silent(box)
    assert box.statistics().pending_frames == 6


def test_only_a_durable_acknowledgement_empties_the_window(
    collector: FakeCollector, box: Outbox
) -> None:
    collector.welcome(box)
    send(box, 3)
    collector.hear(box, Schema)
    collector.sequences(box, 3)
    collector.say(box, Ack(received=2, committed=1))
    now = box.statistics()

    assert (now.sent, now.acknowledged, now.pending_frames) == (3, 2, 1)
    assert now.pending_bytes > 0


def test_beyond_the_window_frames_are_dropped_and_told(
    collector: FakeCollector, box: Outbox
) -> None:
    send(box, 12)
    assert box.statistics().dropped_frames == 4
    collector.welcome(box, replace(WELCOME, credit_frames=8))
    collector.hear(box, Schema)
    headers = [decode(collector.hear(box, FrameHeader)[0], "agent") for _ in range(8)]

    before = -1
    for header in headers:
        assert sum(gap.frames for gap in header.gaps) == header.sequence - before - 1
        assert {gap.cause for gap in header.gaps} <= {OVERFLOW}
        before = header.sequence
    assert before == 11, "the newest stays"


def test_what_was_received_is_no_loss_when_the_window_overflows(
    collector: FakeCollector, box: Outbox
) -> None:
    collector.welcome(box)
    send(box, 4)
    collector.hear(box, Schema)
    collector.sequences(box, 4)
    send(box, 6, first=4)  # beyond the credit, and two more than the window has room for
    now = box.statistics()

    assert (now.dropped_frames, now.pending_frames) == (0, 10)
    collector.say(box, Ack(received=3, committed=3))
    now = box.statistics()
    assert (now.dropped_frames, now.acknowledged, now.pending_frames) == (0, 4, 6)


def test_what_was_received_and_is_gone_with_the_collector_is_a_loss(
    collector: FakeCollector, box: Outbox
) -> None:
    collector.welcome(box)
    send(box, 4)
    collector.hear(box, Schema)
    collector.sequences(box, 4)
    collector.say(box, Ack(received=3, committed=0))
    send(box, 8, first=4)
    collector.socket.close()
    time.sleep(0.05)
    box.poll(time.monotonic())
    collector.listen()
    collector.welcome(box, replace(WELCOME, committed=0))
    collector.hear(box, Schema)
    header = decode(collector.hear(box, FrameHeader)[0], "agent")

    assert header.sequence == 4
    assert header.gaps == [Gap(first_step=1, last_step=3, frames=3, cause=FORSAKEN)]
    assert box.statistics().dropped_frames == 3


def test_goodbye_tells_what_no_frame_can_and_takes_a_number_for_it(
    collector: FakeCollector, box: Outbox
) -> None:
    collector.welcome(box)
    send(box, 1)
    collector.hear(box, Schema)
    collector.sequences(box, 1)
    gap = Gap(first_step=7, last_step=8, frames=2, cause="no room")
    box.note_gaps([gap])
    closing = threading.Thread(target=box.close, kwargs={"timeout_s": 5})
    closing.start()
    peer, *parts = collector.socket.recv_multipart()
    collector.socket.send_multipart((peer, encode(Ack(received=1, committed=1))))
    closing.join()

    assert decode(parts[0], "agent") == Goodbye(last=1, gaps=[gap])


def test_a_frame_that_is_too_large_for_the_wire_is_told_as_a_gap(
    collector: FakeCollector, box: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.welcome(box)
    monkeypatch.setattr("rankscope.agent.outbox.MAX_BLOB_BYTES", 10)
    send(box, 1)
    monkeypatch.undo()
    send(box, 1, first=1)
    collector.hear(box, Schema)
    header = decode(collector.hear(box, FrameHeader)[0], "agent")

    assert header.gaps == [Gap(first_step=0, last_step=0, frames=1, cause=TOO_LARGE)]
    assert box.statistics().dropped_frames == 1


def test_a_broken_connection_is_made_again_and_resumes(
    collector: FakeCollector, box: Outbox
) -> None:
    collector.welcome(box)
    send(box, 4)
    collector.hear(box, Schema)
    collector.sequences(box, 4)
    collector.say(box, Ack(received=3, committed=1))
    collector.socket.close()
    time.sleep(0.05)
    box.poll(time.monotonic())
    collector.listen()
    collector.welcome(box, WELCOME)
    collector.hear(box, Schema)

    assert collector.sequences(box, 2) == [2, 3]
    assert box.statistics().resent == 2
    assert box.statistics().sent == 4


def test_a_welcome_that_knows_more_frees_more(collector: FakeCollector, box: Outbox) -> None:
    send(box, 4)
    collector.hear(box, Hello)
    collector.say(
        box, Welcome(protocol=PROTOCOL, attempt=0, committed=2, credit_frames=4, credit_bytes=9)
    )
    collector.hear(box, Schema)

    assert collector.sequences(box, 1) == [3]
    assert box.statistics().acknowledged == 3


def test_a_schema_that_is_needed_is_sent_again_with_its_frames(
    collector: FakeCollector, box: Outbox
) -> None:
    collector.welcome(box)
    send(box, 3)
    schema = decode(collector.hear(box, Schema)[0], "agent")
    collector.sequences(box, 3)
    collector.say(box, NeedSchema(hash=schema.hash))

    assert decode(collector.hear(box, Schema)[0], "agent") == schema
    assert collector.sequences(box, 3) == [0, 1, 2]


def test_new_sites_are_a_new_schema(collector: FakeCollector, box: Outbox) -> None:
    collector.welcome(box)
    send(box, 1)
    box.set_sites([*SITES, Site(kind="tap", name="u")])
    send(box, 1, first=1)
    first = decode(collector.hear(box, Schema)[0], "agent")
    collector.sequences(box, 1)
    second = decode(collector.hear(box, Schema)[0], "agent")

    assert len(first.sites) == 1
    assert len(second.sites) == 2
    assert collector.sequences(box, 1) == [1]


def test_a_refusal_for_good_is_told_and_frames_are_still_counted(
    collector: FakeCollector, box: Outbox
) -> None:
    collector.hear(box, Hello)
    collector.say(box, Reject(code="run", reason="The store holds another run."))
    send(box, 10)

    assert collector.is_silent(box)
    now = box.statistics()
    assert now.rejected == "The store holds another run."
    assert (now.pending_frames, now.dropped_frames, now.sent) == (8, 2, 0)
    assert not box.close(timeout_s=5)


def test_a_refusal_for_now_is_asked_again(collector: FakeCollector, box: Outbox) -> None:
    collector.hear(box, Hello)
    collector.say(box, Reject(code="run", reason="Busy.", retry_s=0.1))
    assert box.statistics().rejected == "Busy."
    collector.welcome(box)

    assert box.statistics().rejected == ""
    assert box.statistics().connected


def test_garbage_from_the_other_side_is_a_broken_connection(
    collector: FakeCollector, box: Outbox
) -> None:
    collector.welcome(box)
    collector.socket.send_multipart((collector.peer, b"\xc1"))
    time.sleep(0.03)
    box.poll(time.monotonic())

    assert not box.statistics().connected
    collector.welcome(box)
    assert box.statistics().connected


def test_an_address_at_which_nobody_answers_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    box = Outbox("tcp://127.0.0.1:9", HELLO)
    for tenth in range(85):
        box.poll(100 + tenth / 10)
    assert caplog.messages == []
    box.poll(200.0)  # the thread was busy: nobody listened
    assert caplog.messages == []
    for tenth in range(200):
        box.poll(200 + tenth / 10)
    assert [text.partition(" for ")[0] for text in caplog.messages] == [
        "No collector has answered at tcp://127.0.0.1:9"
    ]
    assert f"One that this job has started itself logs to {HELLO.run}.log, " in caplog.text
    assert (box.statistics().address, box.statistics().answered) == ("tcp://127.0.0.1:9", False)
    box.close(timeout_s=0)


def test_a_silent_collector_is_given_up(collector: FakeCollector, box: Outbox) -> None:
    collector.welcome(box)
    send(box, 1)
    now = time.monotonic()
    box.poll(now + 29)
    assert box.statistics().connected
    box.poll(now + 31)
    assert not box.statistics().connected


def test_a_beat_is_sent_at_most_every_two_seconds(collector: FakeCollector, box: Outbox) -> None:
    collector.welcome(box)
    for now in (10.0, 10.5, 11.9, 12.1):
        box.beat(now, step=4, site="fc", tensors=3, health=lambda: {"drops": 1.0})
    state = decode(collector.hear(box, State)[0], "agent")

    assert (state.step, state.site, state.health) == (4, "fc", {"drops": 1.0})
    collector.hear(box, State)
    assert collector.is_silent(box)


def test_close_says_goodbye_and_waits_for_its_answer(collector: FakeCollector, box: Outbox) -> None:
    collector.welcome(box)
    send(box, 1)
    heard: list[object] = []

    def answer() -> None:
        peer = b""
        while not heard or not isinstance(heard[-1], Goodbye):
            peer, *parts = collector.socket.recv_multipart()
            heard.append(decode(parts[0], "agent"))
        collector.socket.send_multipart((peer, encode(Ack(received=0, committed=0))))

    thread = threading.Thread(target=answer)
    thread.start()
    assert box.close(timeout_s=5)
    thread.join()
    assert heard[-1] == Goodbye(last=0)


def test_what_a_collector_says_last_is_heard_though_it_has_ended(
    collector: FakeCollector, box: Outbox
) -> None:
    collector.welcome(box)
    send(box, 1)
    message, peer = None, b""
    while not isinstance(message, Goodbye):
        assert not box.take_leave(time.monotonic())
        if collector.socket.poll(5):
            peer, *parts = collector.socket.recv_multipart()
            message = decode(parts[0], "agent")
    collector.socket.send_multipart((peer, encode(Ack(received=0, committed=0))))
    collector.socket.close(linger=1000)
    time.sleep(0.3)  # the end of the connection has come, too

    assert box.take_leave(time.monotonic())
    assert box.statistics().acknowledged == 1
    assert box.close(timeout_s=5)


def test_close_waits_no_longer_than_it_may(collector: FakeCollector, box: Outbox) -> None:
    collector.welcome(box)
    send(box, 1)
    started = time.monotonic()

    assert not box.close(timeout_s=0.2)
    assert time.monotonic() - started < 1.0


def test_without_a_collector_nothing_blocks() -> None:
    box = Outbox("tcp://127.0.0.1:9", HELLO)
    box.set_sites(SITES)
    started = time.monotonic()
    for step in range(300):
        send(box, 1, first=step)
        box.poll(time.monotonic())
    spent = time.monotonic() - started

    assert spent < 3.0
    assert box.statistics().pending_frames == 256
    assert box.statistics().dropped_frames == 44
    assert not box.close(timeout_s=0.1)


def test_a_forked_child_says_nothing(collector: FakeCollector, box: Outbox) -> None:
    collector.welcome(box)
    child = os.fork()
    if child == 0:
        send(box, 5)
        box.poll(time.monotonic())
        closed = box.close(timeout_s=5)
        os._exit(int(closed or box.statistics().pending_frames > 0))
    assert os.waitpid(child, 0)[1] == 0
    assert collector.is_silent(box)
    send(box, 1)
    collector.hear(box, Schema)
    assert collector.sequences(box, 1) == [0]


@pytest.mark.parametrize("address", ["localhost:7600", "tcp://", "udp://a:1", "tcp://a:99999"])
def test_an_address_that_cannot_be_understood_is_refused_at_once(address: str) -> None:
    with pytest.raises(AddressError, match="An address looks like"):
        Outbox(address, HELLO)


@pytest.mark.parametrize("address", ["tcp://*:7600", "tcp://127.0.0.1:*"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(SettingError, match="has a host and a port"):
        Outbox(address, HELLO)


def test_a_window_without_room_is_refused() -> None:
    with pytest.raises(SettingError, match=r"must be positive, got 0 and 1\.$"):
        Outbox("tcp://127.0.0.1:1", HELLO, window_bytes=0, window_frames=1)
