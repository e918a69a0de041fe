"""Log lines about peers: the first at once, then fewer and fewer."""

from __future__ import annotations

import logging

import pytest

from rankscope.wire.complaints import Complaints


def test_what_goes_on_is_told_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("rankscope"))
    told = list[int]()
    for second in range(0, 400, 5):
        before = len(caplog.records)
        complaints.say("upstream", "It is away.", float(second))
        told += [second] * (len(caplog.records) - before)

    assert told == [0, 10, 30, 70, 150, 310]
    assert caplog.messages[:3] == [
        "It is away.",
        "It is away. (1 more like this)",
        "It is away. (3 more like this)",
    ]


def test_what_comes_back_after_a_while_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("rankscope"))
    for second in (0, 5, 10, 15, 100, 111):
        complaints.say("upstream", "It is away.", float(second))
    assert len(caplog.records) == 4
    complaints.say("other", "Something else.", 111.0)
    assert caplog.messages[-1] == "Something else."
