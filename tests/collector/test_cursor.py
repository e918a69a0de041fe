"""A stream's positions: nothing that is not durable is called durable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.cursor import Cursor


def test_a_new_stream_has_nothing() -> None:
    assert (Cursor().received, Cursor().committed) == (-1, -1)


def test_a_frame_that_is_jumped_over_is_counted_and_never_awaited() -> None:
    cursor = Cursor()

    assert cursor.receive(0, 10) == 0
    assert cursor.receive(4, 10) == 3
    cursor.release([0, 4])
    assert cursor.committed == 4


def test_a_frame_that_came_before_is_known() -> None:
    cursor = Cursor(received=7)

    assert cursor.receive(7, 1) is None
    assert cursor.receive(3, 1) is None
    assert cursor.committed == 7


@given(st.lists(st.integers(0, 30), unique=True, min_size=1), st.randoms())
def test_committed_never_passes_a_frame_that_is_not_durable(
    frames: list[int], order: object
) -> None:
    cursor, arrived = Cursor(), sorted(frames)
    for sequence in arrived:
        cursor.receive(sequence, 5)
    left = list(arrived)
    order.shuffle(frames)  # pyright: ignore[reportAttributeAccessIssue]
    for sequence in frames:
        expected = cursor.committed_after([sequence])
        cursor.release([sequence])
        left.remove(sequence)
        assert cursor.committed == expected
        assert cursor.committed == (left[0] - 1 if left else arrived[-1])
        assert cursor.waiting_bytes == 5 * len(left)
