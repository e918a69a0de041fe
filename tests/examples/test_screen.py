"""What the demo says: the steps' numbers are those of the run."""

from __future__ import annotations

import pytest

from rankscope.examples.job import Progress, finite
from rankscope.examples.screen import Screen, describe


def progress(step: int, loss: float, *, updated: bool = True) -> Progress:
    return Progress(step=step, steps=40, loss=finite(loss), updated=updated)


def test_a_loss_is_told_with_three_digits() -> None:
    assert describe(progress(0, 2.34567)) == "loss 2.346"


def test_a_skipped_update_is_told() -> None:
    text = describe(progress(0, float("nan"), updated=False))

    assert text == "loss NaN, update skipped: a gradient is not finite"


def test_without_a_terminal_what_goes_on_and_every_tenth_step_is_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Screen() as screen:
        screen.doing("Starting")
        for step in range(40):
            screen.show(progress(step, 2.0))

    expected = [f"Step {step}: loss 2.000" for step in (0, 10, 20, 30)]
    assert capsys.readouterr().out.splitlines() == ["Starting …", *expected]
