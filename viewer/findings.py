"""What is wrong, as the page tells it: a line, a card for each finding, and what that rests on.

Pure functions of what the rules say; every name from a store is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from ..store.ending import attempt_words
from . import markup, words

if TYPE_CHECKING:
    from ..rules import Finding, Why

MOST_RANKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One finding, and where it leads."""

    severity: str
    text: str
    """A sentence, as plain text."""
    facts: str
    """HTML: steps, site, ranks and the like."""
    moments: str
    """HTML: the tensor in the steps before, a row each; empty where it is of none."""
    advice: str
    """HTML: what it means and what to try, folded."""
    site: str
    """Label; empty where it is of no single site."""
    step: int
    """In which it began."""
    worse: int | None
    """In which it became worse."""
    ranks: tuple[int, ...]
    """Those to blame, as far as they are known; all that may be where it cannot be known."""
    now: bool
    """Whether it goes on, or did so lately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """From where on a run is called now."""

    attempt: int
    step: int
    newest: int = -1
    """The last step that was recorded; -1: how long ago something ended is not told."""

    def ago(self, attempt: int, last_step: int) -> str:
        """How long ago what was last found there ended, in words; empty if that is not told."""
        steps = self.newest - last_step
        told = attempt == self.attempt and self.newest >= 0 and steps > 0
        return f"ended {words.count(steps, 'step')} before the last" if told else ""

    def holds(self, attempt: int, last_step: int | None) -> bool:
        """Whether what was last found there is of now; None where it goes on."""
        return attempt == self.attempt and (last_step is None or last_step >= self.step)


def state(found: Why, *, looked: str) -> str:
    """In one line whether anything is wrong, so far as that is known.

    Args:
        found: what the rules say.
        looked: at how much, in words; empty for nothing.
    """
    match found.state:
        case "incidents":
            number = len(found.findings) + found.left_out
            told = words.count(number, "incident")
            first = "the latest attempt's and" if found.attempts > 1 else "what goes on and is"
            order = f", {first} worst first" if number > 1 else ""
            rest = f"; {found.left_out} of them not shown" if found.left_out else ""
            return _state("wrong", f"{told}{order}{rest}.")
        case "healthy" if found.ending.is_bad:
            told = f"no rule found anything{f' in {looked}' if looked else ''}"
            return _state("wrong", f"The job did not end well: {found.ending.text}; {told}.")
        case "healthy" if found.ending.earlier:
            before = attempt_words([one.attempt for one in found.ending.earlier])
            told = f"no rule found anything{f' in {looked}' if looked else ''}"
            ends = "; ".join(dict.fromkeys(one.text for one in found.ending.earlier))
            return _state("wrong", f"{before.capitalize()} did not end well: {ends}; {told}.")
        case "healthy" if found.stall:
            told = f"no rule found anything{f' in {looked}' if looked else ''}"
            return _state("wrong", f"The job does not move; {told}.")
        case "healthy":
            told = f"no rule found anything{f' in {looked}' if looked else ''}"
            return _state("sound", f"Healthy, as far as it was observed: {told}.")
        case "not observed" if not looked:
            return _state("unknown", "Nothing has been recorded yet.")
        case "not observed":
            told = f"No non-finite values in {looked}."
            return _state("unknown", f"Not observed: no rule could judge any tensor. {told}")


def _state(mood: str, text: str) -> str:
    return (
        '<section class="what"><h2>What is wrong</h2>'
        f'<p class="state {mood}" role="status">{escape(text)}</p></section>'
    )


def cards(found: Why, *, since: Since) -> list[Card]:
    """The findings, what goes on and is worst first; `since` is from where on it is called now."""
    return [_card(one, since, first=not number) for number, one in enumerate(found.findings)]


def _card(one: Finding, since: Since, *, first: bool) -> Card:
    return Card(
        severity=one.severity,
        text=f"{one.what} {one.escalation}".rstrip(),
        facts=_facts(one, since),
        moments=_moments(one, unfolded=first),
        advice=_advice(one),
        site=one.site,
        step=one.first_step,
        worse=one.escalated_step,
        ranks=tuple(at.rank for at in one.ranks),
        now=since.holds(one.attempt, one.last_step),
    )


def _facts(one: Finding, since: Since) -> str:
    site = f"{one.site} ({one.module})" if one.module else one.site
    also = f", also {', '.join(one.others)}" if one.others else ""
    rows = [
        ("attempt", _attempt(one) if since.attempt > 0 else ""),
        ("steps", _steps(one, since)),
        ("site", site),
        ("ranks", _places(one)),
        ("rule", one.rule),
        ("spread", one.spread + also),
        ("confidence", f"{one.confidence}. {one.reason}"),
        ("origin", one.origin),
    ]
    return _list(one.severity, rows)


def _attempt(one: Finding) -> str:
    also = f", also {attempt_words(one.also)}" if one.also else ""
    return f"{one.attempt}{also}"


def _steps(one: Finding, since: Since) -> str:
    if one.last_step is None:
        return f"from {one.first_step}, {'until it ended' if one.over else 'goes on'}"
    steps = words.steps(one.first_step, one.last_step).partition(" ")[2]
    return ", ".join(filter(None, (steps, since.ago(one.attempt, one.last_step))))


def _places(one: Finding) -> str:
    if not one.ranks:
        return "" if one.origin else "all, or it cannot be told"
    first = one.ranks[:MOST_RANKS]
    named = [f"rank {at.rank} ({at.host or '?'}, {at.device or '?'})" for at in first]
    more = len(one.ranks) - MOST_RANKS
    where = ", ".join(named) + (f" and {more} more" if more > 0 else "")
    return f"one or more of {where}; which cannot be known" if one.undetermined else where


def _list(severity: str, rows: Sequence[tuple[str, str]]) -> str:
    parts = "".join(
        f'<div class="{name}"><dt>{name}</dt><dd>{escape(text)}</dd></div>'
        for name, text in rows
        if text
    )
    return f'<dl class="facts"><div><dt>severity</dt><dd>{escape(severity)}</dd></div>{parts}</dl>'


def _advice(one: Finding) -> str:
    numbers = {"value": one.value, "at most": one.threshold, **one.evidence}
    told = ", ".join(f"{name} {words.count_or_number(value)}" for name, value in numbers.items())
    texts = [part for part in (one.meaning, one.advice, f"In numbers: {told}.") if part]
    body = "".join(f"<p>{escape(part)}</p>" for part in texts)
    return f"<details><summary>What it means, and what to try</summary>{body}</details>"


def _moments(one: Finding, *, unfolded: bool) -> str:
    """The tensor in the steps before, over all ranks, and on the blamed rank beside its peers."""
    moments = one.stored.moments
    if not moments:
        return ""
    heads = ["step", "rms"]
    columns = [[str(at.step) for at in moments], [_seen(at.rms) for at in moments]]
    if any(at.peers_rms is not None for at in moments):
        heads += [f"rms on rank {one.ranks[0].rank}", "median of its peers"]
        columns += [[_seen(at.blamed_rms) for at in moments]]
        columns += [[_seen(at.peers_rms) for at in moments]]
    heads += ["largest", "not finite"]
    columns += [[_seen(at.abs_max) for at in moments], [_seen(at.nonfinite) for at in moments]]
    rows = list(zip(*columns, strict=True))
    shown = markup.table(f"{one.site}, over all ranks", heads, rows, kind="rows moments")
    fold = "<details open>" if unfolded else "<details>"
    return f"{fold}<summary>The steps before, in numbers</summary>{shown}</details>"


def _seen(value: float | None) -> str:
    return "no number" if value is None else words.count_or_number(value)


def now_title(told: Sequence[Card], *, recent: str) -> str:
    """The heading of what is wrong now; where nothing is, what that says nothing about.

    Args:
        told: all findings.
        recent: the steps that are called recent, in words; empty where there are none.
    """
    if not told or not recent:
        return ""
    if any(one.now for one in told):
        return _list_title("Now", f"goes on, or was so in {recent}")
    return _list_title("Now", f"nothing: no rule found anything in {recent}")


def earlier_title(told: Sequence[Card]) -> str:
    """The heading of what was wrong before."""
    if not told or all(one.now for one in told):
        return ""
    return _list_title("Earlier in the run", "is over, or of an earlier attempt")


def _list_title(name: str, detail: str) -> str:
    return f'<h3>{name}<span class="detail">{escape(detail)}</span></h3>'


def grounds(found: Why) -> str:
    """What was checked, and what was not observed."""
    return f'<div class="grounds">{"".join(f"<p>{part}</p>" for part in _grounds(found))}</div>'


def _grounds(found: Why) -> Iterator[str]:
    if found.stall:
        yield f"<b>Stalled</b>, and nothing was recorded since: {escape(found.stall)}"
    if found.checked:
        rules = ", ".join(
            f'<span class="rule">{escape(rule)} ({words.thousands(number)})</span>'
            for rule, number in found.checked.items()
        )
        yield f"<b>Checked</b>, with the number of records: {rules}."
    for text in found.not_observed:
        yield f"<b>Not observed:</b> {escape(text)}"
