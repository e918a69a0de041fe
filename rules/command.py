"""`rankscope why` and `rankscope rules`: what went wrong, and what is watched for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from math import ceil
from textwrap import fill

import click

from ..sketch.jsontext import json_text
from ..store.ending import attempt_words
from ..store.incidents import Incident
from ..store.query import open_run
from .again import judge_again
from .book import rule_book
from .evidence import Exponents
from .exact import EXACT
from .explain import Finding, Why, counted
from .explain import why as why_of

WIDTH = 100
INDENT = "   "
BARS = "·▁▂▃▄▅▆▇█"
MOST_BARS = 48
"""Powers of two that are shown, the largest."""
MOST_OF_RUN = 4
"""Sentences on the run as a whole that are shown of an incident."""


@click.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def why(run: str, as_json: bool) -> None:
    """Say what went wrong in RUN (a folder or a URL), worst first, or what was found right.

    Ends with 1 if there is an incident that is an error, else with 0.
    """
    found = why_of(open_run(run))
    click.echo(json_text(asdict(found)) if as_json else "\n".join(lines_of(found)))
    if any(one.severity == "error" for one in found.findings):
        raise SystemExit(1)


@click.group()
def rules() -> None:
    """The rules of the watch."""


@rules.command("list")
@click.option("--rules", "file", metavar="FILE", help="Settings; otherwise those of --config.")
def list_rules(file: str | None) -> None:
    """List all rules: what each means, and what to try."""
    book = rule_book(file)
    for rule in (*EXACT, *book.rules, *(bound.rule for bound in book.bounds)):
        click.echo(f"{rule.name} ({rule.severity})")
        click.echo(_indented(f"{rule.meaning} {rule.advice}"))


@rules.command("test")
@click.argument("run")
@click.option("--rules", "file", metavar="FILE", help="Settings; otherwise those of --config.")
def test_rules(run: str, file: str | None) -> None:
    """Replay rules over RUN (a folder or a URL), and show what would have been told, and when.

    Of copies and sums, which need the numbers of single ranks, it shows what was told.
    """
    book, stored = rule_book(file), open_run(run)
    incidents, judged = judge_again(stored, book)
    for one in incidents:
        click.echo(_line_of(one))
    alerts = counted(sum(len(one.alerts) for one in incidents), "alert")
    of_rules = f"{len(judged)} of {len(book.rules) + len(book.bounds)}"
    told = f"{counted(len(incidents), 'incident')} of {alerts}"
    click.echo(f"{told}; {of_rules} rules could judge something.")


def lines_of(found: Why) -> Iterator[str]:
    """What is known of a run's health, for a terminal."""
    steps = "no step" if found.first_step is None else _steps(found.first_step, found.last_step)
    records = counted(found.records, "record")
    yield _wrapped(f"Run {found.run}: {records}, {steps}, {found.ending.text}.")
    match found.state:
        case "healthy" if found.ending.is_bad:
            yield "No rule found anything in what was recorded, but the job did not end well."
        case "healthy" if found.ending.earlier:
            told = attempt_words([one.attempt for one in found.ending.earlier])
            yield f"No rule found anything in what was recorded, but {told} did not end well."
        case "healthy" if found.stall:
            yield "No rule found anything in what was recorded, but the job does not move."
        case "healthy":
            yield "Healthy, as far as it was observed: no rule found anything."
        case "not observed":
            yield "Not observed: no rule could judge any tensor."
        case "incidents":
            count = len(found.findings) + found.left_out
            order = "the latest attempt's and " if found.attempts > 1 else "what goes on and is "
            yield f"{counted(count, 'incident')}, {order}worst first:"
    for number, one in enumerate(found.findings, 1):
        yield ""
        yield from _finding_lines(number, one, several=found.attempts > 1)
    if found.left_out:
        yield f"… and {found.left_out} more."
    yield ""
    if found.stall:
        yield _wrapped(f"Stalled, and nothing was recorded since: {found.stall}")
    checked = ", ".join(f"{rule} ({count})" for rule, count in found.checked.items())
    yield _wrapped(f"Checked, with the number of records: {checked or 'nothing'}.")
    for text in found.not_observed:
        yield _wrapped(f"Not observed: {text}")


def _finding_lines(number: int, one: Finding, *, several: bool) -> Iterator[str]:
    until = f"to {one.last_step}"
    if one.last_step is None:
        until = f"until the {'attempt' if several else 'run'} ended" if one.over else "and goes on"
    attempt = f"attempt {one.attempt}, " if several else ""
    rule = f", at first {one.rule}" if one.escalation else f" {one.rule}"
    yield f"{number}. {one.severity.upper()}{rule}, {attempt}step {one.first_step} {until}"
    yield _indented(one.what)
    if one.escalation:
        yield _indented(one.escalation)
    if one.also:
        yield _indented(f"So it was in {attempt_words(one.also)}, too.")
    if one.origin:
        yield _indented(one.origin)
    if one.ranks:
        named = [f"rank {at.rank} ({at.host or '?'}, {at.device or '?'})" for at in one.ranks[:8]]
        where = f"{', '.join(named)}{', …' if len(one.ranks) > 8 else ''}"
        unknown = f"On one or more of {where}; on which cannot be known."
        yield _indented(unknown if one.undetermined else f"On {where}.")
    others = f", also {', '.join(one.others)}" if one.others else ""
    yield _indented(f"Spread: {one.spread}{others}. Confidence: {one.confidence}. {one.reason}")
    if one.of_run:
        yield _indented(f"Of the run as a whole: {' '.join(one.of_run[:MOST_OF_RUN])}")
    yield from _stored_lines(one)
    yield _indented(f"{one.meaning} {one.advice}".strip())


def _stored_lines(one: Finding) -> Iterator[str]:
    stored = one.stored
    columns = {"step": [str(at.step) for at in stored.moments]}
    columns["rms"] = [_number(at.rms) for at in stored.moments]
    if any(at.peers_rms is not None for at in stored.moments):
        of_rank = f"rms, rank {one.ranks[0].rank}"
        columns[of_rank] = [_number(at.blamed_rms) for at in stored.moments]
        columns["its peers"] = [_number(at.peers_rms) for at in stored.moments]
    columns["largest"] = [_number(at.abs_max) for at in stored.moments]
    columns["not finite"] = [_number(at.nonfinite) for at in stored.moments]
    for row in zip(*([name, *cells] for name, cells in columns.items()), strict=True):
        if stored.moments:
            yield "   " + " ".join(f"{cell:>12}" for cell in row)
    if stored.exponents is not None:
        yield _indented(_bars(stored.exponents))


def _number(value: float | None) -> str:
    if value is None:
        return "no number"
    return f"{int(value):,}" if value.is_integer() and abs(value) < 1e9 else f"{value:.3g}"


def _bars(found: Exponents) -> str:
    """A histogram in one line: a bar for each power of two, from the smallest to the largest."""
    counts, apart = found.counts, []
    apart += [f"{found.zero:,} zero"] * (found.zero > 0)
    apart += [f"{found.nan:,} NaN"] * (found.nan > 0)
    apart += [f"{found.infinite:,} infinite"] * (found.infinite > 0)
    beside = f"; {', '.join(apart)}" if apart else ""
    what = f"{found.total:,} element{'s' * (found.total != 1)}"
    head = f"Its {what} in step {found.step}, by powers of two: "
    if not counts:
        return f"{head}none{beside}."
    low, high, most = min(counts), max(counts), max(counts.values())
    shown = range(max(low, high - MOST_BARS + 1), high + 1)
    heights = [counts.get(n, 0) * (len(BARS) - 1) / most for n in shown]
    bars = "".join(BARS[ceil(height)] for height in heights)
    end = f" 2^{high}" if len(shown) > 1 else ""
    return f"{head}2^{shown[0]} {bars}{end}{beside}."


def _wrapped(text: str, indent: str = "") -> str:
    """A text as lines that end between words; what lines it has of its own does not count."""
    return fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _indented(text: str) -> str:
    return _wrapped(text, INDENT)


def _line_of(incident: Incident) -> str:
    cause = incident.cause
    steps = _steps(incident.first_step, incident.last_step)
    head = f"{steps}: {incident.severity_at_first} {cause.rule}"
    return f"{head} ({counted(len(incident.alerts), 'alert')})\n{_indented(incident.text)}"


def _steps(first: int, last: int | None) -> str:
    """As "steps 0 to 8" or "step 0"; without a last one it goes on."""
    return f"step {first}" if first == last else f"steps {first} to {'…' if last is None else last}"
