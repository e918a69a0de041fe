"""Incidents: alerts that have one cause, told as one. Pure; the same live and from the store.

Whatever goes wrong goes wrong in many tensors: an overflow makes a thousand alerts. Those that
begin soon after one another belong together, and while an error goes on, so does all that follows.
The one that says most of the cause speaks for them: in `CAUSES` causes come before consequences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .record import Alert, SiteInfo
from .selection import execution_order

Identity = tuple[int, str, str, int]
"""Attempt, rule, site and first step: which alert it is."""

COPIES, SUMS = "replica-divergence", "conservation"
CAUSES = (
    COPIES,
    SUMS,
    "missing-rank",
    "rank-outlier",
    "poor-initialisation",
    "optimizer-poisoned",
    "update-ratio",
    "overflow",
    "lost-updates",
    "weights-not-updating",
    "nonfinite",
    "dead-activation",
    "constant-activation",
    "saturated-activation",
    "zero-gradient",
    "exploding-activation",
    "exploding-gradient",
    "underflow",
    "vanishing-gradient",
    "drift",
    "loss-nonfinite",
    "skipped-updates",
    "loss-spike",
    "agent-losses",
    "agent-overhead",
)
"""Rules by how much they say of the cause; those that are not named come last. What explodes makes
gradients underflow, as a normalisation divides by it, and never the other way round."""
OF_RANKS = (COPIES, SUMS, "missing-rank", "rank-outlier")
"""What these find follows from nothing but themselves: numbers go bad on all ranks alike."""
COUNTED = (COPIES, SUMS, "missing-rank", "nonfinite", "loss-nonfinite")
"""What these find was counted, not inferred from what is usual: their steps are exact."""
UNDERFLOW = "underflow"
TOO_LARGE = (
    "overflow",
    "nonfinite",
    "exploding-activation",
    "exploding-gradient",
    "loss-nonfinite",
)
"""What these find does not come of gradients that are too small."""
WITHIN = 8
"""Records after its latest alert in which an incident takes up others."""
AGAIN = 64
"""And so many, or steps since it ended, where the same rule finds it again on the same ranks."""
COMPARING = (
    "rank-outlier",
    "update-ratio",
    "exploding-activation",
    "exploding-gradient",
    "vanishing-gradient",
    "drift",
    "loss-spike",
)
"""What these find they find by comparing with what was usual, which takes them some records."""
LAG, AT_ONCE = 6, 2
"""Records by which these, and others that infer, may be later than what they are the cause of."""
SEVERITIES = ("error", "warning", "notice")
"""The worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Alerts that belong together."""

    number: int
    """In the order in which they began, from 0."""
    attempt: int
    cause: Alert
    """The alert that says most of the cause."""
    alerts: Sequence[Alert] = field(repr=False)
    """All of them, in the order in which they began."""
    first_step: int
    last_step: int | None
    """The last in which something was wrong; None while it goes on."""

    @property
    def severity(self) -> str:
        """The worst of any alert."""
        return min((one.severity for one in self.alerts), key=severity_of)

    @property
    def escalation(self) -> Alert | None:
        """The first of the worst alerts, where it began later and the cause is less severe."""
        worst = min(self.alerts, key=lambda one: severity_of(one.severity))
        is_worse = severity_of(worst.severity) < severity_of(self.cause.severity)
        return worst if is_worse and worst.first_step > self.first_step else None

    @property
    def severity_at_first(self) -> str:
        """The worst of any alert, until it became worse."""
        return self.cause.severity if self.escalation else self.severity

    @property
    def text(self) -> str:
        """What was found, in sentences: of the cause, and what it has become."""
        worse = self.escalation
        return self.cause.text if worse is None else f"{self.cause.text} {escalated(worse)}"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those to blame, as far as they are known; see `undetermined`."""
        return self._blaming.ranks

    @property
    def undetermined(self) -> bool:
        """Whether some of `ranks` are to blame, and nobody can know which."""
        return self._blaming.undetermined

    @property
    def _blaming(self) -> Alert:
        return self.cause if self.cause.ranks else self.escalation or self.cause

    @property
    def sites(self) -> int:
        """In how many sites something was wrong."""
        return len({one.site for one in self.alerts if one.site})


@dataclass(slots=True)
class _Growing:
    """An incident in the making."""

    alerts: list[Alert] = field(default_factory=list[Alert])
    newest: int = 0
    """Record in which its latest alert was told."""
    until: dict[tuple[str, tuple[int, ...]], float] = field(
        default_factory=dict[tuple[str, tuple[int, ...]], float]
    )
    """By rule and ranks the last step in which that was found."""
    error_until: float = -math.inf
    """The last step in which an error was found."""

    def add(self, alert: Alert) -> None:
        last = math.inf if alert.last_step is None else alert.last_step
        key = alert.rule, alert.ranks
        self.alerts.append(alert)
        self.newest = max(self.newest, alert.record)
        self.until[key] = max(self.until.get(key, -math.inf), last)
        if alert.severity == "error":
            self.error_until = max(self.error_until, last)

    def explains(self, alert: Alert) -> bool:
        """Whether an alert that begins later has the same cause."""
        if alert.attempt != self.alerts[0].attempt:
            return False
        # What users have bounds or rules of their own for says nothing of a cause.
        if alert.rule in CAUSES and not any(rule in CAUSES for rule, _ in self.until):
            return False
        if alert.rule in TOO_LARGE and all(rule == UNDERFLOW for rule, _ in self.until):
            return alert.record - self.alerts[0].record <= _lag(alert.rule)  # it is the cause
        away, key = alert.record - self.newest, (alert.rule, alert.ranks)
        since = alert.first_step - self.until.get(key, -math.inf)
        if since < AGAIN or (key in self.until and away <= AGAIN):
            return True
        is_near = away <= WITHIN
        if alert.rule in OF_RANKS:
            return is_near and any(rule in OF_RANKS for rule, _ in self.until)
        return is_near or self.error_until > alert.first_step


class IncidentLog:
    """Incidents of an attempt while its alerts come in: what is new is told, and what is over.

    Args:
        alerts: what was told already, by a collector before.
        sites: of the run, in the order of their index.
    """

    def __init__(self, alerts: Iterable[Alert], sites: Sequence[SiteInfo]) -> None:
        self._alerts = by_identity(alerts)
        self._order = order_of(sites)
        found = ranked(group(self._alerts.values(), self._order))
        self._told = {_first(one): _state(one) for one in found}

    def add(self, alerts: Sequence[Alert], sites: Sequence[SiteInfo]) -> list[Incident]:
        """The incidents that begin with these alerts, have another cause, are worse, or are over.

        Args:
            alerts: as they began or ended, each in its turn.
            sites: of the run, in the order of their index.
        """
        if not alerts:
            return []
        self._alerts |= by_identity(alerts)
        if len(sites) != len(self._order):  # they are never fewer than they were
            self._order = order_of(sites)
        # All are grouped again: an alert that has ended may have been what explained others.
        found = ranked(group(self._alerts.values(), self._order))
        news = [one for one in found if self._told.get(_first(one)) != _state(one)]
        self._told = {_first(one): _state(one) for one in found}
        return news


def _first(incident: Incident) -> Identity:
    return identity_of(incident.alerts[0])


def _state(incident: Incident) -> tuple[str, str, str, bool]:
    cause, is_over = incident.cause, incident.last_step is not None
    return cause.rule, cause.site, incident.severity, is_over


def escalated(worse: Alert) -> str:
    """That an incident has become worse, in a sentence."""
    begins = f"{worse.severity.capitalize()} from step {worse.first_step} on"
    return f"{begins}, {worse.rule}: {worse.text}"


def identity_of(alert: Alert) -> Identity:
    """Which alert it is; an entry that says that it has ended is of the same."""
    return alert.attempt, alert.rule, alert.site, alert.first_step


def by_identity(alerts: Iterable[Alert]) -> dict[Identity, Alert]:
    """Of several entries of one alert the latest counts."""
    return {identity_of(one): one for one in alerts}


def _lag(rule: str) -> int:
    return 0 if rule in COUNTED else LAG if rule in COMPARING else AT_ONCE


def severity_of(severity: str) -> int:
    """0 for the worst."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def weight_of(rule: str) -> int:
    """0 for the rule that says most of a cause."""
    return CAUSES.index(rule) if rule in CAUSES else len(CAUSES)


def group(alerts: Iterable[Alert], order: Mapping[str, int]) -> list[Incident]:
    """The incidents that alerts make up, in the order in which they began.

    Args:
        alerts: as they are now, each once.
        order: by label the place of each site in the order of execution.
    """
    told = sorted(
        alerts,
        key=lambda one: (
            one.attempt,
            one.record,
            weight_of(one.rule),
            one.first_step,
            one.rule,
            order.get(one.site, -1),
            one.site,
        ),
    )
    growing = list[_Growing]()
    for alert in told:
        home = next((one for one in reversed(growing) if one.explains(alert)), None)
        if home is None:
            home = _Growing()
            growing.append(home)
        home.add(alert)
    return [_incident(number, one.alerts, order) for number, one in enumerate(growing)]


def incidents_of(alerts: Iterable[Alert], sites: Sequence[SiteInfo]) -> list[Incident]:
    """The incidents of a run: those that go on first, then the worst, then the earliest.

    Args:
        sites: of the run, in the order of their index.
    """
    told = list(alerts)
    return ranked(group(told, order_of(sites))) if told else []


def order_of(sites: Sequence[SiteInfo]) -> dict[str, int]:
    """By label the place of each site in the order of execution.

    Args:
        sites: of the run, in the order of their index.
    """
    return {sites[place].label: number for number, place in enumerate(execution_order(sites))}


def ranked(incidents: Iterable[Incident]) -> list[Incident]:
    """Those that go on first, then the worst, then the earliest."""
    return sorted(
        incidents,
        key=lambda one: (one.last_step is not None, severity_of(one.severity), one.number),
    )


def _cause(early: Sequence[Alert]) -> str:
    """The rule that says most of the cause.

    Where copies differ and nobody can know which is odd, a reduction that went wrong in the same
    step is why: gradients that no rank reduced are each rank's own.
    """
    rule = min(early, key=lambda one: (weight_of(one.rule), one.first_step, one.rule)).rule
    if rule != COPIES:
        return rule
    odd = [one for one in early if one.rule == COPIES]
    begin = min(one.first_step for one in odd)
    sums = any(one.rule == SUMS and one.first_step <= begin for one in early)
    return SUMS if sums and all(one.undetermined for one in odd) else rule


def _incident(number: int, alerts: Sequence[Alert], order: Mapping[str, int]) -> Incident:
    first = min(one.record for one in alerts)
    early = [one for one in alerts if one.record - first <= _lag(one.rule)]
    rule = _cause(early)
    alike = [one for one in early if one.rule == rule]
    # Since when, those that compare only infer: what they told together began together.
    began = [one.record if rule in COMPARING else one.first_step for one in alike]
    until = min(began) + (0 if rule in COUNTED else AT_ONCE)
    at_once = [one for one, when in zip(alike, began, strict=True) if when <= until]
    cause = min(at_once, key=lambda one: (order.get(one.site, -1), one.first_step))
    begin = min(one.first_step for one in ([cause] if rule in COMPARING else at_once))
    goes_on = any(one.last_step is None for one in alerts)
    return Incident(
        number=number,
        attempt=cause.attempt,
        cause=cause,
        alerts=tuple(alerts),
        first_step=begin,
        last_step=None if goes_on else max(one.last_step or 0 for one in alerts),
    )
