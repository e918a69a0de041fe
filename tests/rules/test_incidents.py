"""Alerts that have one cause are one incident, which the cause speaks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rankscope.rules import BUILT_IN
from rankscope.rules.exact import EXACT
from rankscope.store import Alert
from rankscope.store.incidents import CAUSES, IncidentLog, group, ranked

ORDER = {"a": 0, "b": 1, "c": 2}


def alert(rule: str, site: str = "a", record: int = 0, **facts: Any) -> Alert:
    fields: dict[str, Any] = {
        "rule": rule,
        "attempt": 0,
        "site": site,
        "ranks": (),
        "first_step": record,
        "last_step": None,
        "value": 1.0,
        "threshold": 0.0,
        "text": "",
        "time_ns": 0,
        "record": record,
    }
    return Alert(**(fields | facts))


def test_what_begins_together_is_one_and_the_first_executed_site_speaks_for_it() -> None:
    alerts = [alert("nonfinite", "c"), alert("loss-nonfinite", ""), alert("nonfinite", "b")]

    [one] = group(alerts, ORDER)

    assert (one.cause.rule, one.cause.site, one.sites) == ("nonfinite", "b", 2)
    assert (one.first_step, one.last_step, one.severity) == (0, None, "error")


def test_the_rule_that_says_most_of_the_cause_speaks_if_it_was_found_soon() -> None:
    [one] = group([alert("loss-spike", "", 10), alert("update-ratio", "b", 12)], ORDER)
    assert (one.cause.rule, one.first_step) == ("update-ratio", 12)

    [one] = group([alert("loss-spike", "", 10), alert("update-ratio", "b", 17)], ORDER)
    assert one.cause.rule == "loss-spike"


def test_every_rule_has_its_place_among_causes() -> None:
    assert {*CAUSES} == {rule.name for rule in (*BUILT_IN, *EXACT)}
    [one] = group([alert("weights-not-updating", "b"), alert("lost-updates", "c")], ORDER)
    assert one.cause.rule == "lost-updates"


def test_what_explodes_speaks_for_the_gradients_that_underflow_by_it() -> None:
    blown_up = [
        alert("exploding-activation", "b", 30, first_step=9, ranks=(1,)),
        alert("exploding-activation", "a", 30, first_step=28, ranks=(1,)),
    ]
    later = [alert("underflow", "c", 32, first_step=31), alert("nonfinite", "a", 33, ranks=(1,))]

    [one] = group([*blown_up, *later], ORDER)

    assert (one.cause.rule, one.cause.site, one.ranks) == ("exploding-activation", "a", (1,))
    assert one.first_step == 28


def test_gradients_that_underflow_explain_nothing_that_is_too_large() -> None:
    early = [alert("underflow", "c", 10, severity="warning")]

    found = group([*early, alert("nonfinite", "a", 14)], ORDER)
    assert [one.cause.rule for one in found] == ["underflow", "nonfinite"]
    [one] = group([*early, alert("exploding-activation", "a", 14)], ORDER)
    assert one.cause.rule == "exploding-activation"


def test_what_begins_later_is_another_unless_an_error_goes_on() -> None:
    early = alert("underflow", severity="warning")
    late = alert("dead-activation", "b", 100, severity="warning")
    assert len(group([early, late], ORDER)) == 2

    bad = alert("nonfinite", "a", 0)
    assert len(group([bad, late], ORDER)) == 1
    over = alert("nonfinite", "a", 0, last_step=20)
    assert len(group([over, late], ORDER)) == 2


def test_what_one_rank_does_follows_from_no_tensor_of_all() -> None:
    found = group([alert("nonfinite"), alert("rank-outlier", "b", 1, ranks=(3,))], ORDER)

    assert [one.cause.rule for one in found] == ["nonfinite", "rank-outlier"]
    [one] = group([alert("replica-divergence", ranks=(2,)), alert("nonfinite", "b", 2)], ORDER)
    assert (one.cause.rule, one.ranks) == ("replica-divergence", (2,))


def test_a_reduction_that_went_wrong_is_why_copies_differ_of_which_none_is_known_to_be_odd() -> (
    None
):
    whose_own = alert("replica-divergence", "a", value=1.0)
    sums = alert("conservation", "b", value=0.15)

    [one] = group([whose_own, sums], ORDER)
    assert (one.cause.rule, one.cause.site, one.first_step) == ("conservation", "b", 0)

    [one] = group([alert("replica-divergence", "a", value=0.25, ranks=(1,)), sums], ORDER)
    assert (one.cause.rule, one.ranks) == ("replica-divergence", (1,))
    [one] = group([whose_own, alert("conservation", "b", 1)], ORDER)
    assert one.cause.rule == "replica-divergence"


def test_the_same_found_again_on_the_same_ranks_is_the_same() -> None:
    first = alert("rank-outlier", "a", 0, ranks=(1,), last_step=5, severity="warning")
    again = alert("rank-outlier", "b", 40, ranks=(1,), severity="warning")
    other = alert("rank-outlier", "b", 40, ranks=(2,), severity="warning")

    assert len(group([first, again], ORDER)) == 1
    assert len(group([first, other], ORDER)) == 2


def test_what_becomes_worse_is_told_again_with_what_it_has_become() -> None:
    mild = alert("update-ratio", "b", 51, severity="warning", text="Steps are large.")
    bad = alert("nonfinite", "a", 57, ranks=(1,), text="It holds NaN.")
    log = IncidentLog([], [])

    [first] = log.add([mild], [])
    [again] = log.add([bad, alert("nonfinite", "b", 57)], [])
    more = log.add([alert("nonfinite", "c", 58)], [])

    assert (first.severity, first.escalation, first.ranks) == ("warning", None, ())
    assert (again.severity, again.cause, again.escalation) == ("error", mild, bad)
    assert again.ranks == (1,)
    assert again.text == "Steps are large. Error from step 57 on, nonfinite: It holds NaN."
    assert more == []


def test_what_was_as_bad_from_its_first_step_on_has_not_become_worse() -> None:
    mild = alert("rank-outlier", "b", 30, first_step=29, severity="warning", ranks=(3,))
    [one] = group([mild, alert("exploding-activation", "b", 31, first_step=28)], ORDER)

    assert one.cause == mild
    assert (one.escalation, one.severity, one.severity_at_first) == (None, "error", "error")


def test_own_rules_and_bounds_take_up_nothing_that_built_in_rules_find() -> None:
    own = alert("large-activation", "a", 40, severity="warning")
    found = alert("nonfinite", "a", 41)

    apart = group([own, found], ORDER)
    [together] = group([found, replace(own, record=42, first_step=42)], ORDER)

    assert [one.cause.rule for one in apart] == ["large-activation", "nonfinite"]
    assert together.cause == found


def test_what_goes_on_comes_first_and_then_the_worst() -> None:
    alerts = [
        alert("nonfinite", record=0, last_step=3),
        alert("underflow", record=100, severity="warning"),
        alert("overflow", record=200, severity="warning", last_step=201),
        alert("weights-not-updating", record=300, severity="notice"),
    ]

    order = [one.cause.rule for one in ranked(group(alerts, ORDER))]

    assert order == ["underflow", "weights-not-updating", "nonfinite", "overflow"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(CAUSES),
            st.sampled_from(sorted(ORDER)),
            st.integers(0, 300),
            st.sampled_from(["error", "warning"]),
        ),
        unique_by=lambda one: one[:3],
    ),
    st.randoms(),
)
def test_every_alert_is_in_one_incident_in_whatever_order_they_come(
    told: list[tuple[str, str, int, str]], random: Any
) -> None:
    alerts = [alert(rule, site, at, severity=how) for rule, site, at, how in told]
    shuffled = alerts[:]
    random.shuffle(shuffled)

    found = group(alerts, ORDER)

    assert sorted(map(id, alerts)) == sorted(id(one) for some in found for one in some.alerts)
    assert [(one.cause.rule, one.first_step) for one in found] == [
        (one.cause.rule, one.first_step) for one in group(shuffled, ORDER)
    ]
    assert all(one.cause in one.alerts for one in found)
