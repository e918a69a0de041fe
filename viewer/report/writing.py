"""One HTML file: texts, figures, and all the scripts that they need."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING
from uuid import uuid4

from ...sketch.errors import SettingError
from ...sketch.writing import writing
from .. import findings, markup, words
from ..figures.colours import THEMES
from ..offline import embedded, scripts
from ..views.themes import root_css
from .contents import Contents, Evidence, gather
from .figures import STATISTIC, Drawing, heatmaps

if TYPE_CHECKING:
    import pandas as pd

    from ...store.query import Run
    from ..figures.colours import Theme

CSS = Path(__file__).parents[1].joinpath("style.css").read_text(encoding="utf-8")
PAGE = Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
MOST_LINES = 20
"""Of gaps, and of events."""


def write_report(
    run: Run, path: str | Path, *, site: str = "", step: int | None = None, theme: str = "light"
) -> Path:
    """Write what is known of a run's health as one HTML file that opens offline.

    It holds what `rankscope why` says, each finding with its evidence: the heatmap of its kind, the
    exponents of the tensor in which it began against all formats, and its line on each rank; the
    training curves; and what was not observed. The file asks for nothing from elsewhere.

    Args:
        run: an open run.
        path: where to; a file that is there is replaced.
        site: show this tensor, whatever was found.
        step: at this step.
        theme: its colours, `light` or `dark`.

    Raises:
        SettingError: there is no such site or theme, the step was not recorded, or the file cannot
            be written.
    """
    path = Path(path)
    if theme not in THEMES:
        raise SettingError(f"`theme` must be one of {', '.join(THEMES)}, got {theme!r}.")
    text = render(run, site=site, step=step, theme=THEMES[theme], now=datetime.now(UTC))
    with writing(path):
        half = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            half.write_text(text, encoding="utf-8")
            os.replace(half, path)
        finally:
            half.unlink(missing_ok=True)
    return path


def render(run: Run, *, site: str, step: int | None, theme: Theme, now: datetime) -> str:
    """The report as HTML."""
    contents, drawing = gather(run, site=site, step=step), Drawing(run, theme=theme)
    sections = [
        *_findings(contents),
        *_training(drawing, contents),
        *_heatmaps(drawing, contents),
        *(part for number, one in enumerate(contents.evidence)
          for part in _evidence(drawing, one, number)),
        *_not_observed(run),
    ]  # fmt: skip
    script, places = embedded(drawing.figures)
    return PAGE.substitute(
        title=escape(f"{run.name} – rankscope report"),
        css=root_css(theme) + CSS,
        bokeh=scripts(drawing.figures.values()),
        header=_header(run, contents, now),
        body="\n".join(_placed(sections, places)),
        script=script,
    )


def _placed(sections: list[str], places: Mapping[str, str]) -> Iterator[str]:
    """The sections, with each figure put where its name stands alone."""
    for section in sections:
        yield places.get(section, section)


def _header(run: Run, contents: Contents, now: datetime) -> str:
    why, attempts = contents.why, run.attempts
    facts = [
        f"{why.ending.text}{'' if why.finished else ' when this was written'}",
        "" if why.first_step is None else words.steps(why.first_step, why.last_step or 0),
        words.count(len(attempts), "attempt"),
        words.count(int(attempts["world_size"].iloc[-1]), "rank") if len(attempts) else "",
        words.count(why.records, "record"),
    ]
    told = "".join(f'<span class="chip">{escape(fact)}</span>' for fact in facts if fact)
    home = f'<span class="home">{markup.LOGO}<span class="mark">rankscope</span></span>'
    made = f"Written {now:%Y-%m-%d %H:%M} UTC by rankscope {version('rankscope')} from {run.path}."
    return (
        f'<header>{home}<span class="run">{escape(run.name)}</span>'
        f'<span class="chips">{told}</span></header><p class="summary">{escape(made)}</p>'
    )


def _findings(contents: Contents) -> Iterator[str]:
    yield '<section class="card">'
    yield findings.state(contents.why, looked=contents.looked)
    for card in contents.cards:
        mood = card.severity if card.severity in ("error", "warning") else "notice"
        yield (
            f'<article class="finding {mood}"><h3>{escape(card.text)}</h3>{card.facts}'
            f"{card.moments}{card.advice}</article>"
        )
    yield findings.grounds(contents.why)
    yield "</section>"


def _training(drawing: Drawing, contents: Contents) -> Iterator[str]:
    blamed = next((card.ranks[0] for card in contents.cards if card.ranks), None)
    drawn = drawing.training(blamed)
    if drawn:
        yield f'<section class="card">{markup.title("Training")}'
        for name, told in drawn:
            yield name
            yield _summary(told)
        yield "</section>"


def _heatmaps(drawing: Drawing, contents: Contents) -> Iterator[str]:
    if not contents.looked:
        return
    for kind, (name, legend, told) in heatmaps(drawing, contents.kinds, contents.evidence):
        title = markup.title(f"{STATISTIC} of {markup.kind_name(kind)}s", "merged over ranks")
        yield f'<section class="card">{title}{legend}'
        yield name
        yield _summary(told)
        yield "</section>"


def _evidence(drawing: Drawing, one: Evidence, number: int) -> Iterator[str]:
    facts = drawing.run.sites().loc[one.site].to_dict()
    yield f'<section class="card evidence">{markup.selection(one.site, one.step, facts)}'
    yield "".join(f"<p>{escape(reason)}</p>" for reason in one.reasons)
    yield '<div class="pair"><div>'
    name, told, tables = drawing.exponents(one, number)
    if name:
        yield name
    yield f"{_summary(told)}</div><div>{tables}</div></div>"
    name, detail, told = drawing.ranks(one, number)
    yield markup.title(f"{STATISTIC} on each rank", detail, level=3)
    if name:
        yield name
    yield _summary(told)
    yield "</section>"


def _not_observed(run: Run) -> Iterator[str]:
    """Gaps and what happened to the pipeline."""
    gaps, events, records = run.gaps(), run.events(), run.records()
    yield f'<section class="card">{markup.title("What was not observed")}'
    if not len(gaps):
        yield _summary("No frame was lost.")
    else:
        lost: list[int] = gaps["frames"].tolist()
        yield _summary(f"{words.count(sum(lost), 'frame')} were lost.")
        yield _gap_table(gaps)
    partial: list[int] = records.loc[~records["complete"], "step"].tolist()
    if partial:
        every = words.thousands(len(records))
        yield _summary(
            f"{words.count(len(partial), 'record')} of {every} lack a rank, the first at step "
            f"{min(partial)}."
        )
    others = events.query("kind != 'gap'")
    if len(others):
        yield markup.title("Events", level=3)
        yield markup.events(others, now_s=others["time"].max().timestamp(), most=MOST_LINES)
    yield "</section>"


def _gap_table(gaps: pd.DataFrame) -> str:
    columns = [gaps[name].tolist() for name in ("rank", "first_step", "last_step", "frames")]
    rows = [
        f'<tr><th scope="row">{rank}</th><td>{first}–{last}</td><td>{frames}</td>'
        f"<td>{escape(str(cause))}</td></tr>"
        for rank, first, last, frames, cause in zip(*columns, gaps["cause"], strict=True)
    ]
    more = len(rows) - MOST_LINES
    note = _summary(f"and {words.count(more, 'more gap')}.") if more > 0 else ""
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("rank", "steps", "frames", "cause"))
    body = "".join(rows[:MOST_LINES])
    return f'<table class="gaps"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{note}'


def _summary(text: str) -> str:
    return f'<p class="summary">{escape(text)}</p>' if text else ""
