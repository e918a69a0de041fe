"""The resend window: bounded, in order, honest about what it lost."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rankscope.agent.window import FORSAKEN, OVERFLOW, Entry, Window
from rankscope.wire import FrameHeader, Gap


def entry(sequence: int, size: int = 10, schema: bytes = b"a", *, alarming: bool = False) -> Entry:
    header = FrameHeader(
        sequence=sequence,
        schema=schema,
        step=sequence * 2,
        time_ns=0,
        rows=0,
        bins=0,
        bin_dtype="u1",
        crc32=0,
        alarming=alarming,
    )
    return Entry(sequence=sequence, packed=(header, b""), size_bytes=size)


def fill(window: Window, count: int, size: int = 10, first: int = 0) -> None:
    for sequence in range(first, first + count):
        window.push(entry(sequence, size))


def send_all(window: Window, frames: int = 100, size_bytes: int = 10**6) -> list[int]:
    sent = []
    while (found := window.next(frames, size_bytes)) is not None:
        window.advance()
        sent.append(found.sequence)
    return sent


def test_entries_are_sent_in_order_and_once() -> None:
    window = Window(10**6, 100)
    fill(window, 3)

    assert send_all(window) == [0, 1, 2]
    assert send_all(window) == []
    assert window.is_under_way


def test_what_was_not_sent_is_thinned_and_each_loss_is_told_by_the_frame_behind_it() -> None:
    window = Window(10**6, 32)
    fill(window, 256)
    held = [one.sequence for one in window.entries()]
    lost = [window.entries()[0].sequence]
    lost += [behind - before - 1 for before, behind in pairwise(held)]

    assert send_all(window) == held
    assert held[-1] == 255, "the newest stays"
    assert max(lost) < 40, "a hole of 224 steps it would be"
    assert [sum(gap.frames for gap in one.gaps) for one in window.entries()] == lost
    assert {gap.cause for one in window.entries() for gap in one.gaps} == {OVERFLOW}
    assert (window.dropped_frames, window.dropped_bytes) == (224, 2240)
    assert window.size_bytes == 320
    assert window.take_gaps() == ()


def test_all_ranks_thin_alike() -> None:
    one, other = Window(10**6, 32), Window(10**6, 32)
    fill(one, 200)
    fill(other, 201)
    steps = [{entry.step for entry in window.entries()} for window in (one, other)]

    assert len(steps[0] & steps[1]) >= 30, "the newest of one may be of little worth to the other"


def test_steps_that_matter_stay_the_longest() -> None:
    window = Window(10**6, 8)
    alarms = {3, 40, 41, 90}
    for sequence in range(200):
        window.push(entry(sequence, alarming=sequence in alarms))

    assert alarms < {held.sequence for held in window.entries()}
    for sequence in range(200, 220):
        window.push(entry(sequence, alarming=True))
    held = [held.sequence for held in window.entries()]
    assert held == list(range(212, 220)), "of those that matter the oldest go"


def test_beyond_its_bytes_frames_fall_out() -> None:
    window = Window(35, 100)
    fill(window, 5)

    assert len(send_all(window)) == 3
    assert window.dropped_bytes == 20


def test_one_entry_is_kept_whatever_its_size() -> None:
    window = Window(5, 100)
    fill(window, 2)

    assert send_all(window) == [1]


def test_a_gap_told_by_a_frame_that_is_lost_itself_is_told_again() -> None:
    window = Window(10**6, 2)
    fill(window, 4)
    assert send_all(window) == [0, 3]
    fill(window, 2, first=4)
    window.restart(received=-1, committed=-1)

    assert (len(window), window.in_doubt, window.dropped_frames) == (2, 0, 4)
    assert send_all(window) == [4, 5]
    assert window.entries()[0].gaps == (
        Gap(first_step=0, last_step=0, frames=1, cause=FORSAKEN),
        Gap(first_step=2, last_step=4, frames=2, cause=OVERFLOW),
        Gap(first_step=6, last_step=6, frames=1, cause=FORSAKEN),
    )


def test_what_falls_out_after_it_was_sent_is_no_loss_while_the_collector_lives() -> None:
    window = Window(10**6, 2)
    fill(window, 2)
    send_all(window)
    window.acknowledge(received=1, committed=-1)
    fill(window, 2, first=2)

    assert (len(window), window.in_doubt, window.dropped_frames) == (2, 2, 0)
    assert window.restart(received=1, committed=0) == 1  # a connection that broke, no more
    assert (window.in_doubt, window.dropped_frames) == (1, 0)
    assert window.acknowledge(received=3, committed=3) == 3
    assert (len(window), window.in_doubt, window.dropped_frames) == (0, 0, 0)
    assert window.take_gaps() == ()


def test_what_is_in_doubt_and_was_refused_is_lost() -> None:
    window = Window(10**6, 2)
    fill(window, 2)
    send_all(window)
    fill(window, 1, first=2)
    window.rewind(b"a")

    assert (window.in_doubt, window.dropped_frames) == (0, 1)
    assert send_all(window) == [1, 2]


def test_what_is_in_doubt_still_takes_credit() -> None:
    window = Window(10**6, 2)
    fill(window, 2)
    send_all(window)
    fill(window, 2, first=2)

    assert send_all(window, frames=3) == [2]
    window.acknowledge(received=1, committed=-1)
    assert send_all(window, frames=3) == [3]


def test_what_the_collector_has_is_not_sent_again_on_a_new_connection() -> None:
    window = Window(10**6, 100)
    fill(window, 5)
    send_all(window)

    assert window.restart(received=3, committed=1) == 2
    assert not window.is_under_way
    assert send_all(window) == [4]


def test_only_a_durable_acknowledgement_frees() -> None:
    window = Window(10**6, 100)
    fill(window, 4)
    send_all(window)

    assert window.acknowledge(received=3, committed=1) == 2
    assert len(window) == 2
    assert not window.is_under_way


def test_credit_bounds_frames_and_bytes_under_way() -> None:
    window = Window(10**6, 100)
    fill(window, 10)

    assert send_all(window, frames=3) == [0, 1, 2]
    window.acknowledge(received=0, committed=-1)
    assert send_all(window, frames=3) == [3]
    assert send_all(window, size_bytes=45) == [4]


def test_a_frame_above_the_credit_goes_alone() -> None:
    window = Window(10**6, 100)
    fill(window, 2, size=1000)

    assert send_all(window, size_bytes=10) == [0]


def test_a_new_connection_gets_all_that_is_not_durable() -> None:
    window = Window(10**6, 100)
    fill(window, 5)
    send_all(window)

    assert window.restart(received=1, committed=1) == 2
    assert send_all(window) == [2, 3, 4]


def test_a_refused_schema_takes_its_frames_back() -> None:
    window = Window(10**6, 100)
    for sequence, schema in enumerate([b"a", b"a", b"b", b"b"]):
        window.push(entry(sequence, schema=schema))
    send_all(window)
    window.acknowledge(received=0, committed=-1)
    window.rewind(b"b")

    assert send_all(window) == [2, 3]
    assert window.schemas() == {b"a", b"b"}


def test_gaps_are_bounded() -> None:
    window = Window(10**6, 100)
    for step in range(1000):
        window.lose(step, 1, f"cause {step}")
    gaps = window.take_gaps()

    assert len(gaps) == 256
    assert sum(gap.frames for gap in gaps) == 1000


@given(st.lists(st.tuples(st.sampled_from("psshrcw"), st.integers(0, 30)), max_size=80))
def test_whatever_happens_each_frame_is_pending_dropped_or_acknowledged(
    events: list[tuple[str, int]],
) -> None:
    """Against a collector that has all that was sent, up to `received`, and loses it at times."""
    window, pushed, acknowledged, received, committed = Window(55, 8), 0, 0, -1, -1
    told: dict[int, tuple[Gap, ...]] = {}
    for what, number in events:
        if what == "p":
            window.push(entry(pushed, size=number, alarming=number % 5 == 0))
            pushed += 1
        elif what == "s" and (found := window.next(4, 60)) is not None:
            window.advance()
            assert found.sequence > received, "nothing is sent that is there"
            jumped = found.sequence - received - 1
            assert sum(gap.frames for gap in found.gaps) >= jumped, "no loss is unexplained"
            received = found.sequence
            told[received] = found.gaps
        elif what == "h":
            acknowledged += window.acknowledge(received, committed)
        elif what == "c":
            committed = max(committed, min(number, received))
            acknowledged += window.acknowledge(received, committed)
        elif what == "r":  # the connection broke
            acknowledged += window.restart(received, committed)
        elif what == "w":  # the collector ended
            told = {sequence: gaps for sequence, gaps in told.items() if sequence <= committed}
            received = committed
            acknowledged += window.restart(received, committed)
        assert pushed == len(window) + window.in_doubt + window.dropped_frames + acknowledged
        assert window.size_bytes == sum(held.size_bytes for held in window.entries())
        assert 0 <= window.unsent <= len(window)
        assert len(window) <= 8
        held = [one.sequence for one in window.entries()]
        assert held == sorted(set(held))
    last = window.take_gaps()
    gaps = [gap for some in (*told.values(), last) for gap in some]
    unsent = {gap for held in window.entries() if held.sequence not in told for gap in held.gaps}
    assert sum(gap.frames for gap in [*gaps, *unsent]) == window.dropped_frames
