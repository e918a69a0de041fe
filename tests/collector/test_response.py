"""What agents are asked to do when something is wrong: pure, times are arguments."""

from __future__ import annotations

from dataclasses import replace

from rankscope.collector.response import REST, Response
from rankscope.rules.book import Closer
from rankscope.store import Alert
from rankscope.wire import decode, encode
from rankscope.wire.messages import MAX_ALERTS, MAX_BLAMED, MAX_NAME

ALERT = Alert(
    rule="nonfinite",
    attempt=0,
    site="activation:a",
    ranks=(3,),
    first_step=40,
    last_step=None,
    value=1.0,
    threshold=0.0,
    text="It is not finite.",
    time_ns=0,
)


def response_of(closer: Closer) -> Response:
    """To agents of which one keeps something back."""
    response = Response(closer)
    response.is_of_use = True
    return response


def test_all_are_asked_for_the_same_few_steps_that_lie_ahead() -> None:
    response = response_of(Closer(steps=4))
    asked = response.add([ALERT], 40, may_detail=True)
    [told] = response.take()

    assert told.send_ring
    assert told.detail_steps == 4
    assert told.detail_from > 40
    assert [(one.rule, one.site, one.ranks) for one in told.alerts] == [
        ("nonfinite", "activation:a", [3])
    ]
    assert asked == (
        "For nonfinite at activation:a agents are asked to send the steps that they had kept back "
        f"and to sketch all sites in steps {told.detail_from} to {told.detail_from + 3}."
    )
    assert response.take() == []


def test_then_they_are_left_alone_for_a_while_and_told_all_the_same() -> None:
    response = response_of(Closer(steps=4))
    response.add([ALERT], 40, may_detail=True)
    [first] = response.take()
    last = first.detail_from + 4 * (1 + REST) - 1

    assert response.add([ALERT], last, may_detail=True) == ""
    [told] = response.take()
    assert (told.send_ring, told.detail_steps) == (False, 0)
    assert response.add([ALERT], last + 1, may_detail=True)


def test_less_than_the_severity_that_was_asked_for_is_told_alone() -> None:
    response = response_of(Closer())
    assert response.add([replace(ALERT, severity="warning")], 40, may_detail=True) == ""
    [told] = response.take()
    assert (told.send_ring, told.detail_steps) == (False, 0)

    eager = response_of(Closer(severity="notice"))
    assert eager.add([replace(ALERT, severity="warning")], 40, may_detail=True)


def test_a_job_with_a_budget_sends_what_it_has() -> None:
    response = response_of(Closer())
    asked = response.add([ALERT], 40, may_detail=False)
    [told] = response.take()

    assert (told.send_ring, told.detail_steps) == (True, 0)
    assert asked.endswith("agents are asked to send the steps that they had kept back.")
    quiet = response_of(Closer(ring=False, steps=0))
    assert quiet.add([ALERT], 40, may_detail=True) == ""


def test_whatever_a_rule_says_the_message_can_be_read() -> None:
    response = response_of(Closer())
    wild = replace(
        ALERT,
        severity="dreadful",
        site="s" * 5000,
        text="t" * 5000,
        ranks=tuple(range(1000)),
        value=float("nan"),
    )
    response.add([wild] * 100, 40, may_detail=True)
    [told] = response.take()
    read = decode(encode(told), "collector")

    assert type(read) is type(told)
    assert (len(told.alerts), told.more) == (MAX_ALERTS, 100 - MAX_ALERTS)
    assert told.alerts[0].severity == "notice"
    assert len(told.alerts[0].site) == len(told.alerts[0].text) == MAX_NAME
    assert len(told.alerts[0].ranks) == MAX_BLAMED


def test_who_sends_all_is_told_and_asked_for_nothing() -> None:
    response = Response(Closer())
    assert response.add([ALERT], 40, may_detail=True) == ""
    [told] = response.take()
    assert (told.send_ring, told.detail_steps) == (False, 0)


def test_nothing_is_said_when_nothing_began() -> None:
    response = response_of(Closer())
    assert response.add([], 40, may_detail=True) == ""
    assert response.take() == []
