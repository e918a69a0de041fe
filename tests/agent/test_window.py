"""The resend window: bounded, in order, honest about what it lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rankscope.agent.window import OVERFLOW, Entry, Window
from rankscope.wire import Gap


def entry(window: Window, sequence: int, size: int = 10, schema: bytes = b"a") -> Entry:
    return Entry(
        sequence=sequence,
        step=sequence * 2,
        schema=schema,
        parts=(b"", bytes(size)),
        gaps=window.take_gaps(),
    )


def fill(window: Window, count: int, size: int = 10) -> None:
    for sequence in range(count):
        window.push(entry(window, sequence, size))


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


def test_beyond_its_frames_the_oldest_fall_out_and_are_told() -> None:
    window = Window(10**6, 3)
    fill(window, 6)

    assert send_all(window) == [3, 4, 5]
    assert (window.dropped_frames, window.dropped_bytes) == (3, 30)
    assert window.size_bytes == 30
    assert window.take_gaps() == (Gap(first_step=4, last_step=4, frames=1, cause=OVERFLOW),)


def test_beyond_its_bytes_the_oldest_fall_out() -> None:
    window = Window(35, 100)
    fill(window, 5)

    assert send_all(window) == [2, 3, 4]


def test_one_entry_is_kept_whatever_its_size() -> None:
    window = Window(5, 100)
    fill(window, 2)

    assert send_all(window) == [1]


def test_a_gap_told_by_a_frame_that_fell_out_is_told_again() -> None:
    window = Window(10**6, 2)
    fill(window, 20)
    last = entry(window, 20)

    gaps = [gap for held in [*window.entries(), last] for gap in held.gaps]
    assert sum(gap.frames for gap in gaps) == 18
    assert min(gap.first_step for gap in gaps) == 0
    assert max(gap.last_step for gap in gaps) == 34


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

    assert window.restart(committed=1) == 2
    assert send_all(window) == [2, 3, 4]


def test_a_refused_schema_takes_its_frames_back() -> None:
    window = Window(10**6, 100)
    for sequence, schema in enumerate([b"a", b"a", b"b", b"b"]):
        window.push(entry(window, sequence, schema=schema))
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


@given(st.lists(st.tuples(st.sampled_from("pshrc"), st.integers(0, 30)), max_size=60))
def test_whatever_happens_each_frame_is_pending_dropped_or_acknowledged(
    events: list[tuple[str, int]],
) -> None:
    window, pushed, acknowledged, sent = Window(55, 8), 0, 0, -1
    for what, number in events:
        if what == "p":
            window.push(entry(window, pushed, size=number))
            pushed += 1
        elif what == "s" and (found := window.next(4, 60)) is not None:
            window.advance()
            sent = max(sent, found.sequence)
        elif what in "hc":
            known = min(number, sent)
            acknowledged += window.acknowledge(known, known if what == "c" else -1)
        elif what == "r":
            acknowledged += window.restart(-1)
        assert pushed == len(window) + window.dropped_frames + acknowledged
        assert window.size_bytes == sum(held.size_bytes for held in window.entries())
        assert 0 <= window.unsent <= len(window)
        assert len(window) <= 8
