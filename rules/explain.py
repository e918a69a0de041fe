"""Why a run went wrong, in one object: for a terminal, a page, and programs.

It follows from what is stored alone. What was not observed is part of it: a run of which nothing
was judged is never called healthy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from ..sketch.labels import more_words, rank_words
from ..sketch.mesh_axes import MODEL_AXES
from ..store.ending import Ending
from ..store.incidents import COUNTED, OF_RANKS, Incident, escalated, incidents_of
from ..store.query import Run
from ..store.record import Alert
from .book import known_rules
from .evidence import Evidence, evidence_of, is_apart, leap_before
from .exact import COPIES, SUMS
from .ranks import FEWEST, OUTLIER
from .rule import Rule

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
    """The worst of any of its alerts."""
    what: str
    """A sentence: what was found, with its numbers."""
    rule: str
    escalation: str
    """A sentence: what is worse than that, and from which step on; empty for nothing."""
    escalated_step: int | None
    """That step."""
    meaning: str
    advice: str
    site: str
    kind: str
    module: str
    """Type of the module, where there is one."""
    ranks: Sequence[RankPlace]
    """Those to blame; empty where all are, or nobody can know."""
    undetermined: bool
    """Whether only some of these ranks are to blame, and nobody can know which."""
    attempt: int
    also: Sequence[int]
    """Other attempts in which the same rule found the same there."""
    first_step: int
    last_step: int | None
    """None while it goes on."""
    over: bool
    """Whether its attempt has ended: what has no last step went on until then."""
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
    of_run: Sequence[str]
    """What was told of the run as a whole in the same incident, in sentences."""
    stored: Evidence
    """What the store holds of the tensor: the steps before, and its exponents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """What is known of a run's health."""

    run: str
    state: State
    finished: bool
    ending: Ending
    """How the latest attempt goes, or how it ended."""
    attempts: int
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
    stall: str = ""
    """Where each rank stands, if no rank moved and nothing was recorded since: a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is asked of a run once, for all of its findings."""

    run: Run
    records: pd.DataFrame
    """Of all attempts."""
    gaps: pd.DataFrame
    sites: pd.DataFrame
    attempts: int
    ranks: int
    """In the latest attempt."""
    peers: int
    """How many of them hold the same part of the model."""
    agreeing: Collection[int]
    """Attempts in which copies were compared, and none was odd."""


def why(run: Run) -> Why:
    """What went wrong in a run, of the latest attempt first, or what was found right."""
    judged, known_attempts = run.judged(), run.attempts
    attempts = len(known_attempts)
    ranks, peers = _ranks_and_peers(known_attempts)
    told = run.incidents() if judged else [*_unjudged(run), *run.incidents()]
    sites = run.sites()
    looked_at = len(sites) > 0 and bool(judged)
    state: State = "incidents" if told else "healthy" if looked_at else "not observed"
    diverged = {one.attempt for one in told if COPIES.name in {alert.rule for alert in one.alerts}}
    known = _Known(
        run=run,
        records=run.records(all_attempts=True),
        gaps=run.gaps(),
        sites=sites,
        attempts=attempts,
        ranks=ranks,
        peers=peers,
        agreeing=set(range(attempts if judged.get(COPIES.name) else 0)) - diverged,
    )
    incidents, records = _once(told), known.records
    steps: list[int] = records["step"].tolist()
    return Why(
        run=run.name,
        state=state,
        finished=run.finished,
        ending=run.ending,
        attempts=attempts,
        records=len(records),
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        updated=records["time"].max().isoformat() if len(records) else "",
        findings=[_finding(known, *one) for one in incidents[:MOST_INCIDENTS]],
        left_out=max(len(incidents) - MOST_INCIDENTS, 0),
        checked=dict(sorted(judged.items())),
        not_observed=list(_not_observed(known, judged)),
        stall=_stall(known),
    )


def _ranks_and_peers(attempts: pd.DataFrame) -> tuple[int, int]:
    """Of the latest attempt; 0 if there is none."""
    if not len(attempts):
        return 0, 0
    ranks, mesh = int(attempts["world_size"].iloc[-1]), attempts["mesh"].iloc[-1]
    return ranks, ranks // math.prod(mesh.get(axis, 1) for axis in MODEL_AXES)


def _once(told: Iterable[Incident]) -> list[tuple[Incident, list[int]]]:
    """The latest attempt's first; what an earlier one had alike is told with it, by its number."""
    found = list[tuple[Incident, list[int]]]()
    for one in sorted(told, key=lambda one: -one.attempt):
        later = (also for other, also in found if _is_again(other, one))
        also = next(later, None)
        if also is None:
            found.append((one, []))
        elif one.attempt not in also:
            also.append(one.attempt)
    return found


def _is_again(later: Incident, earlier: Incident) -> bool:
    """Whether a later attempt had what an earlier one had."""
    causes = [(one.cause.rule, one.cause.site, one.ranks) for one in (later, earlier)]
    return later.attempt > earlier.attempt and causes[0] == causes[1]


def counted(number: int, noun: str) -> str:
    """A number of things, as "1 record" or "2 records"."""
    return f"{number} {noun}{'s' * (number != 1)}"


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


def _finding(known: _Known, incident: Incident, also: Sequence[int]) -> Finding:
    run, sites, cause = known.run, known.sites, incident.cause
    rule = known_rules().get(cause.rule)
    site = sites.loc[cause.site] if cause.site in sites.index else None
    stored = Evidence() if site is None else evidence_of(run, cause, known.records)
    confidence, reason = _confidence(incident, known.gaps)
    worse = incident.escalation
    many, where = counted(len(incident.alerts), "alert"), counted(incident.sites, "site")
    return Finding(
        severity=incident.severity,
        what=cause.text,
        rule=cause.rule,
        escalation="" if worse is None else escalated(worse),
        escalated_step=None if worse is None else worse.first_step,
        meaning="" if rule is None else rule.meaning,
        advice="" if rule is None else _advice(rule, known, incident, stored),
        site=cause.site,
        kind="" if site is None else str(site["kind"]),
        module="" if site is None else str(site["module"]),
        ranks=_places(run, incident),
        undetermined=incident.undetermined,
        attempt=incident.attempt,
        also=sorted(also),
        first_step=incident.first_step,
        last_step=incident.last_step,
        over=run.finished or incident.attempt < known.attempts - 1,
        origin=_origin(known, incident),
        confidence=confidence,
        reason=reason,
        evidence=cause.evidence,
        value=cause.value,
        threshold=cause.threshold,
        spread=f"{many} in {where}" if incident.sites else many,
        others=sorted({one.rule for one in incident.alerts} - {cause.rule}),
        of_run=[one.text for one in incident.alerts if not one.site and one is not cause],
        stored=stored,
    )


def _advice(rule: Rule, known: _Known, incident: Incident, stored: Evidence) -> str:
    """What to try; where one rank is off and holds what the others hold, to look at that."""
    of_ranks = rule.name in OF_RANKS or incident.attempt not in known.agreeing
    if of_ranks or not is_apart(stored):
        return rule.advice
    who = rank_words(incident.ranks)
    return f"Only {who} is off, and copies of weights agree. {OUTLIER.advice}"


def _origin(known: _Known, incident: Incident) -> str:
    """Where non-finite values began, in the words of `Run.first_bad`, and what led to it."""
    if "nonfinite" not in {one.rule for one in incident.alerts}:
        return ""
    steps = [one.first_step for one in incident.alerts if one.rule == "nonfinite"]
    found = known.run.first_bad(steps=slice(min(steps), None), attempt=incident.attempt)
    if found is None:
        return ""
    leap = leap_before(known.run, found.step, incident.attempt, known.records)
    return f"{found.text} {leap}".rstrip()


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
        if incident.undetermined:
            return "certain", "That they differ was counted. Which is wrong cannot be known."
        if incident.cause.rule == SUMS.name and incident.ranks:
            return "certain", "It was counted. Whose fault it is follows from the ranks' own sums."
        return "certain", "It was counted, not inferred."
    return "likely", "It is judged by a bound that most runs keep."


def _stall(known: _Known) -> str:
    """Not one that is over: a long validation is one, too."""
    events, records = known.run.events(), known.records
    if known.run.finished and not known.run.ending.is_bad:
        return ""
    newest = records[records["attempt"] == known.attempts - 1]["step"].max()
    told = events[(events["kind"] == "stalled") & (events["attempt"] == known.attempts - 1)]
    since: list[str] = told.loc[
        ~(told["step"] < newest), "text"
    ].tolist()  # no record: none is over
    return since[-1] if since else ""


def _why_unjudged(known: _Known) -> str:
    """As far as it follows from what is stored."""
    if bool(known.records["partial"].all()):
        return "no step was recorded to its end"
    if not len(known.sites):
        return "no tensor was observed"
    return "an older collector stored them, or no site matched"


def _without_majority(known: _Known) -> str:
    apart = "`run.rank_outliers` tells how far they are apart."
    if known.peers == known.ranks:
        return f"of {known.ranks} none has a majority to be unlike. {apart}"
    if known.peers > 1:
        alike = f"{known.peers} of {known.ranks} hold the same part of the model"
        return f"{alike}, and of {known.peers} none has a majority to be unlike. {apart}"
    return f"each of {known.ranks} holds a part of the model that no other has."


def _not_observed(known: _Known, judged: Mapping[str, int]) -> Iterator[str]:
    run, records, gaps = known.run, known.records, known.gaps
    if not len(records):
        yield "No record was stored."
        return
    if not judged:
        yield f"No rule could judge any record: {_why_unjudged(known)}."
    if len(gaps):
        frames, ranks = sum(gaps["frames"].tolist()), len(set(gaps["rank"].tolist()))
        were = "was" if frames == 1 else "were"
        yield f"{counted(frames, 'frame')} of {counted(ranks, 'rank')} {were} lost."
    incomplete = records["complete"].tolist().count(False)
    if incomplete:
        lack = "lacks" if incomplete == 1 else "lack"
        yield f"{incomplete} of {counted(len(records), 'record')} {lack} a rank."
    if known.ranks > 1 and known.peers < FEWEST:
        yield f"No rule compares the ranks: {_without_majority(known)}"
    stride = float(np.median([*np.diff(np.unique(records["step"].to_numpy(np.int64))), 1]))
    if stride > 1:
        yield f"Steps were recorded about every {stride:.0f}."
    events = run.events()
    kinds, texts = events["kind"].tolist(), events["text"].tolist()
    for told in ("rule-failed", "not-judged", "two-jobs", "imported"):
        own = (text for kind, text in zip(kinds, texts, strict=True) if kind == told)
        yield from list(dict.fromkeys(own))[:5]
    observed = set(known.sites["kind"].tolist())
    for kind in ("weight", "weight_gradient", "activation"):
        if kind not in observed:
            yield f"No {kind.replace('_', ' ')} was observed."
    without = _without_gradient(known.sites)
    if without:
        first, *others = without
        yield (
            f"No gradient of weight:{first}{more_words(others)} was observed: frozen, not asked "
            "for, or cut off from the loss, as by a `detach()`."
        )


def _without_gradient(sites: pd.DataFrame) -> list[str]:
    """Names of the weights of which no gradient was ever seen, where others had one."""
    known = list(zip(sites["kind"], sites["name"], strict=True))
    weights = dict.fromkeys(name for kind, name in known if kind == "weight")
    graded = {name for kind, name in known if kind == "weight_gradient"}
    return [one for one in weights if one not in graded] if graded else []
