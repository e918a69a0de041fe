"""Why a run went wrong, in one object: for a terminal, a page, and programs.

It follows from what is stored alone. What was not observed is part of it: a run of which nothing
was judged is never called healthy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from ..store.incidents import COUNTED, Incident, incidents_of
from ..store.query import Run
from ..store.record import Alert
from .builtin import BUILT_IN
from .evidence import Evidence, evidence_of
from .exact import EXACT

State = Literal["incidents", "healthy", "not observed"]
MOST_INCIDENTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """A rank, and where it runs."""

    rank: int
    host: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One incident in words."""

    severity: str
    what: str
    """A sentence: what was found, with its numbers."""
    rule: str
    meaning: str
    advice: str
    site: str
    kind: str
    module: str
    """Type of the module, where there is one."""
    ranks: Sequence[RankPlace]
    """Those to blame; empty where all are, or nobody can know."""
    attempt: int
    first_step: int
    last_step: int | None
    """None while it goes on."""
    origin: str
    """Where it began, if that can be told, in sentences."""
    confidence: Literal["certain", "likely", "possible"]
    reason: str
    """Why no more, and no less."""
    evidence: Mapping[str, float]
    """Numbers behind it, by name."""
    value: float
    threshold: float
    spread: str
    """How far it spread, in words."""
    others: Sequence[str]
    """Other rules that found something in the same incident."""
    stored: Evidence
    """What the store holds of the tensor: the steps before, and its exponents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """What is known of a run's health."""

    run: str
    state: State
    finished: bool
    records: int
    first_step: int | None
    last_step: int | None
    updated: str
    """Wall clock of the newest record, ISO 8601; empty if there is none."""
    findings: Sequence[Finding]
    left_out: int
    """How many more incidents there are."""
    checked: Mapping[str, int]
    """By rule, of how many records it could judge something."""
    not_observed: Sequence[str]
    """Sentences."""


def why(run: Run) -> Why:
    """What went wrong in a run, worst first, or what was checked and found right."""
    records, judged = run.records(all_attempts=True), run.judged()
    incidents = run.incidents() if judged else [*_unjudged(run), *run.incidents()]
    state: State = "incidents" if incidents else "healthy" if judged else "not observed"
    sites = run.sites()
    gaps = run.gaps()
    steps: list[int] = records["step"].tolist()
    updated = records["time"].max().isoformat() if len(records) else ""
    return Why(
        run=run.name,
        state=state,
        finished=run.finished,
        records=len(records),
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        updated=updated,
        findings=[_finding(run, one, sites, gaps, records) for one in incidents[:MOST_INCIDENTS]],
        left_out=max(len(incidents) - MOST_INCIDENTS, 0),
        checked=dict(sorted(judged.items())),
        not_observed=list(_not_observed(run, records, gaps, judged, set(sites["kind"]))),
    )


def _unjudged(run: Run) -> list[Incident]:
    """What the numbers alone tell of a run that no rule judged: where NaN or infinity began."""
    bad = run.first_bad()
    if bad is None:
        return []
    records = run.records()
    [place] = np.flatnonzero(records["step"] == bad.step)[:1]
    attempt, record = int(records["attempt"].iloc[place]), int(np.asarray(records.index)[place])
    counts = run.scalar("nonfinite", sites=[bad.site], steps=(bad.step, None), attempt=attempt)
    known = counts.isel(site=0).dropna("step")
    wrong = known.where(known > 0, drop=True)
    last, value = int(wrong["step"][-1]), float(wrong[0])
    alert = Alert(
        rule="nonfinite",
        attempt=attempt,
        site=bad.site,
        ranks=bad.ranks,
        first_step=bad.step,
        last_step=None if last == int(known["step"][-1]) else last,
        value=value,
        threshold=0.0,
        text=f"{bad.site} holds {value:,.0f} elements that are not finite.",
        time_ns=0,
        record=record,
    )
    return incidents_of([alert], run.site_infos)


def _finding(
    run: Run,
    incident: Incident,
    sites: pd.DataFrame,
    gaps: pd.DataFrame,
    records: pd.DataFrame,
) -> Finding:
    cause = incident.cause
    rule = next((one for one in (*EXACT, *BUILT_IN) if one.name == cause.rule), None)
    site = sites.loc[cause.site] if cause.site in sites.index else None
    origin = _origin(run, incident)
    confidence, reason = _confidence(incident, gaps)
    many = "1 alert" if len(incident.alerts) == 1 else f"{len(incident.alerts)} alerts"
    where = "1 site" if incident.sites == 1 else f"{incident.sites} sites"
    spread = f"{many} in {where}" if incident.sites else many
    return Finding(
        severity=incident.severity,
        what=cause.text,
        rule=cause.rule,
        meaning="" if rule is None else rule.meaning,
        advice="" if rule is None else rule.advice,
        site=cause.site,
        kind="" if site is None else str(site["kind"]),
        module="" if site is None else str(site["module"]),
        ranks=_places(run, incident),
        attempt=incident.attempt,
        first_step=incident.first_step,
        last_step=incident.last_step,
        origin=origin,
        confidence=confidence,
        reason=reason,
        evidence=cause.evidence,
        value=cause.value,
        threshold=cause.threshold,
        spread=spread,
        others=sorted({one.rule for one in incident.alerts} - {cause.rule}),
        stored=Evidence() if site is None else evidence_of(run, cause, records),
    )


def _origin(run: Run, incident: Incident) -> str:
    """Where non-finite values began, in the words of `Run.first_bad`."""
    if "nonfinite" not in {one.rule for one in incident.alerts}:
        return ""
    steps = [one.first_step for one in incident.alerts if one.rule == "nonfinite"]
    found = run.first_bad(steps=slice(min(steps), None), attempt=incident.attempt)
    return "" if found is None else found.text


def _places(run: Run, incident: Incident) -> list[RankPlace]:
    known = run.hosts(incident.attempt)
    places = known.reindex(list(incident.ranks))[["host", "device"]].fillna("")
    return [
        RankPlace(rank=rank, host=str(host), device=str(device))
        for rank, host, device in places.itertuples()
    ]


def _confidence(
    incident: Incident, gaps: pd.DataFrame
) -> tuple[Literal["certain", "likely", "possible"], str]:
    own = gaps[gaps["attempt"] == incident.attempt]
    first = incident.first_step
    lost = own[(own["first_step"] <= first) & (own["last_step"] >= first - 1)]
    if len(lost):
        return "possible", "Frames of the steps around it were lost, so it may have begun before."
    if incident.cause.rule in COUNTED:
        return "certain", "It was counted, not inferred."
    return "likely", "It is judged by a bound that most runs keep."


def _not_observed(
    run: Run,
    records: pd.DataFrame,
    gaps: pd.DataFrame,
    judged: Mapping[str, int],
    kinds: Collection[str],
) -> Iterator[str]:
    if not len(records):
        yield "No record was stored."
        return
    if not judged:
        yield "No rule could judge any record: an older collector stored them, or no site matched."
    if len(gaps):
        frames, ranks = sum(gaps["frames"].tolist()), len(set(gaps["rank"].tolist()))
        yield f"{frames} frame{'s' * (frames != 1)} of {ranks} rank{'s' * (ranks != 1)} were lost."
    incomplete = records["complete"].tolist().count(False)
    if incomplete:
        yield f"{incomplete} of {len(records)} records lack a rank."
    stride = float(np.median([*np.diff(np.unique(records["step"].to_numpy(np.int64))), 1]))
    if stride > 1:
        yield f"Steps were recorded about every {stride:.0f}."
    events = run.events()
    for kind in ("rule-failed", "imported"):
        for text in events.loc[events["kind"] == kind, "text"].drop_duplicates().head(5):
            yield str(text)
    for kind in ("weight", "weight_gradient", "activation"):
        if kind not in kinds:
            yield f"No {kind.replace('_', ' ')} was observed."
