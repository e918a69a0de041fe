"""What an overloaded collector asks for: pure, times are arguments."""

from __future__ import annotations

from rankscope.collector.overload import CALM_S, PATIENCE_S, Overload
from rankscope.wire.messages import MAX_STRETCH


def stretches(overload: Overload, held: int, begin: float, seconds: float) -> list[int]:
    """What it says while memory is as it is, of 100 bytes, a look a second."""
    found: list[int] = []
    for second in range(int(seconds) + 1):
        if overload.look(held, 100, begin + second):
            found.append(overload.stretch)
    return found


def test_a_peak_changes_nothing() -> None:
    assert stretches(Overload(), 101, 0.0, PATIENCE_S - 1) == []


def test_full_memory_asks_for_less_and_less() -> None:
    assert stretches(Overload(), 101, 0.0, 3 * PATIENCE_S) == [2, 4, 8]


def test_it_has_an_end() -> None:
    assert stretches(Overload(), 101, 0.0, 20 * PATIENCE_S)[-1] == MAX_STRETCH


def test_agents_may_measure_more_again_once_there_was_room_for_long() -> None:
    overload = Overload()
    stretches(overload, 101, 0.0, 2 * PATIENCE_S)

    assert stretches(overload, 49, 11.0, CALM_S - 1) == []
    assert stretches(overload, 99, 71.0, 1000.0) == [], "neither full nor calm"
    assert stretches(overload, 49, 1100.0, 2 * CALM_S + 5) == [2, 1]
    assert stretches(overload, 49, 1300.0, 1000.0) == []
