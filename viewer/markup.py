"""The page's texts as HTML. Pure functions; every name from a store is escaped."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..sketch.exact_counts import BlockExponents, exact_count_named
from ..sketch.formats import NumberFormat, number_format
from . import words
from .figures import colours
from .grid import RANK_VIEWS

if TYPE_CHECKING:
    import pandas as pd

    from ..store.ending import Ending
    from ..store.runs import RunSummary
    from .modules import Bracket, Level

ROW_PX, SIGN_PX, LETTER_PX = 11, 14, 6.0
"""Pixels that a sign needs in a row, and above a name; that a letter needs of a module's name."""
SMALLEST_PX = 6.0
"""Pixels of the letters of a sign in a thin row, above which it stands out a little."""

LOGO = (
    '<svg class="logo" viewBox="0 0 28 22" aria-hidden="true">'
    '<rect x="0" y="13" width="4" height="9"/><rect x="6" y="7" width="4" height="15"/>'
    '<rect x="12" y="0" width="4" height="22"/><rect x="18" y="5" width="4" height="17"/>'
    f'<rect x="24" y="10" width="4" height="12" fill="{colours.LIGHT.nonfinite}"/></svg>'
)


def kind_name(kind: str) -> str:
    """A kind in words."""
    return kind.replace("_", " ")


def header(run: str, *, folder: str, index: bool, theme: str = colours.LIGHT.name) -> str:
    """Which run this is, in which folder of runs, and where the list of them is if there is one."""
    mark = f'{LOGO}<span class="mark">rankscope</span>'
    home = (
        f'<a class="home" href="{_address(theme=theme)}" title="All runs">{mark}</a>'
        if index
        else f'<span class="home">{mark}</span>'
    )
    where = f'<span class="where">in {escape(folder)}</span>'
    return f'<header>{home}<span class="run">{escape(run)}{where}</span></header>'


def links(pages: Sequence[tuple[str, str, str]], *, shown: str, other: tuple[str, str]) -> str:
    """Links to the pages, and to the same in the other theme.

    Args:
        pages: name, title and address of each.
        shown: the name of the one that is visible.
        other: name of the other theme, and the address of the same in it.
    """
    told = "".join(
        f'<a href="{escape(address)}" data-page="{escape(name)}"'
        f"{' aria-current=page' if name == shown else ''}>{escape(title)}</a>"
        for name, title, address in pages
    )
    theme = f'<a class="theme" href="{escape(other[1])}">{escape(other[0])}</a>'
    return f'<span class="links"><nav aria-label="Pages">{told}</nav>{theme}</span>'


def chips(
    *,
    attempt: int,
    ending: Ending,
    finished: bool,
    waiting: int | None,
    step: int | None,
    age_s: float,
    late: bool,
    present: int,
    missing: Sequence[int],
) -> str:
    """How a run is doing, in one line.

    Args:
        attempt: its number; the first one needs no word.
        ending: how the latest attempt goes, or ended.
        finished: whether its writer ended it.
        waiting: how many records are newer than what is shown; None where that follows the run.
        step: the newest one.
        age_s: seconds since then.
        late: whether that is longer than is usual.
        present: how many ranks that has.
        missing: those that it lacks.
    """
    state = ("finished", "■ finished") if finished else ("live", "<i></i> live")
    if ending.is_bad:
        state = ("warn", f"▲ {escape(ending.text)}")
    if waiting is not None:
        newer = f", {words.count(waiting, 'newer record')}" if waiting else ""
        state = ("warn", f"❚❚ paused{newer}")
    whole = escape(ending.text)  # an error may be longer than the line
    told = [f'<span class="chip {state[0]}" title="{whole}">{state[1]}</span>']
    if attempt > 0:
        told.append(f'<span class="chip">attempt {attempt}</span>')
    told += [
        f'<span class="chip warn">▲ attempt {one.attempt}: {one.state}</span>'
        for one in ending.earlier
    ]
    if step is None:
        told.append('<span class="chip">no step recorded yet</span>')
    else:
        mood, mark = (" warn", "▲ late: ") if late else ("", "")
        age = f"step <b>{step}</b>, {words.age(age_s)}"
        told.append(f'<span class="chip{mood}">{mark}{age}</span>')
        total = present + len(missing)
        text = f"{present} of {words.count(total, 'rank')}"
        if missing:
            told.append(f'<span class="chip warn">▲ {text}; missing: {words.ranks(missing)}</span>')
        else:
            told.append(f'<span class="chip">{text}</span>')
    return f'<span class="chips">{"".join(told)}</span>'


def events(table: pd.DataFrame, *, now_s: float, most: int = 3) -> str:
    """The latest things that happened to the pipeline, the newest first."""
    if not len(table):
        return ""
    rows: list[str] = []
    # `Any`: a row is a namedtuple that pandas makes.
    latest: list[Any] = list(table.itertuples())[: -most - 1 : -1]
    for event in latest:
        time_s = event.time.timestamp()
        age = words.age(max(now_s - time_s, 0)) if time_s > 0 else ""
        where = f"step {event.step}" if event.step >= 0 else ""
        facts = " · ".join(part for part in (where, age) if part)
        rows.append(
            f"<li><b>{escape(str(event.kind))}</b> {escape(str(event.text))} "
            f'<span class="when">{facts}</span></li>'
        )
    more = f'<li class="when">and {len(table) - most} earlier</li>' if len(table) > most else ""
    return f'<ul class="events" aria-label="Recent events">{"".join(rows)}{more}</ul>'


def title(text: str, detail: str = "", *, level: int = 2) -> str:
    """The heading of a part of the page."""
    aside = f'<span class="detail">{escape(detail)}</span>' if detail else ""
    return f"<h{level}>{escape(text)}{aside}</h{level}>"


def summary(text: str) -> str:
    """A figure in a sentence, told to screen readers when it changes."""
    return f'<p class="summary" role="status" aria-live="polite">{escape(text)}</p>'


def problem(text: str) -> str:
    """What cannot be shown, and why."""
    return f'<p class="problem" role="alert">{escape(text)}</p>' if text else ""


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str = "rows"
) -> str:
    """Rows of cells that are HTML already; the first cell of each names the row."""
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    return (
        f'<table class="{kind}"><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def legend(
    limits: colours.Limits, *, logarithmic: bool, view: str = "merged", undefined: str = ""
) -> str:
    """The ramp with its ends, where anything is shaded, and what the other colours mean.

    Args:
        limits: of what is shaded.
        logarithmic: whether that is an exponent.
        view: as the address says it.
        undefined: what an observed cell without a number means; empty: it is not explained.
    """
    write = words.power if logarithmic else words.number
    if view in RANK_VIEWS:
        write = _rank
    middle = (limits.low + limits.high) / 2
    stops = ",".join(limits.palette[:: len(limits.palette) // 16])
    marks = "".join(f"<span>{write(at)}</span>" for at in (limits.low, middle, limits.high))
    keys = "".join(
        f'<span class="key"><i class="{name}"></i>{text}</span>'
        for name, text in (
            ("bad", "non-finite"),
            ("zero", "zero"),
            ("undefined", undefined),
            ("none", "not observed"),
        )
        if text
    )
    ramp = (
        f'<span class="ramp"><i style="background:linear-gradient(90deg,{stops})"></i>'
        f'<span class="marks">{marks}</span></span>'
    )
    return f'<div class="legend">{ramp if limits.shading else ""}{keys}</div>'


def _rank(value: float) -> str:
    return f"rank {max(round(value), 0)}"


def modules(brackets: Sequence[Bracket], *, rows: int, height: int) -> str:
    """The modules beside the rows of a heatmap, each a button that folds or unfolds it.

    Args:
        brackets: the modules.
        rows: how many rows there are.
        height: of the frame, in pixels.
    """
    if not brackets:
        return ""
    levels = max(one.level for one in brackets) + 1
    buttons = "".join(_bracket(one, levels, rows, height) for one in brackets)
    return (
        f'<div class="modules" role="group" aria-label="Modules" style="height:{height}px">'
        f"{buttons}</div>"
    )


def _bracket(bracket: Bracket, levels: int, rows: int, height: int) -> str:
    share = (bracket.stop - bracket.first) / rows
    tall = share * height
    left, top = bracket.level / levels, bracket.first / rows
    width = 1 - left if bracket.folded else 1 / levels
    above, _, word = bracket.path.rpartition(".")
    short = f"{above.rpartition('.')[2]}.{word}" if word.isdecimal() and above else word
    sign = "▸" if bracket.folded else "▾"
    names = [one for one in (short, word) if SIGN_PX + LETTER_PX * len(one) <= tall]
    text = escape(f"{sign} {names[0]}") if names and not bracket.folded else sign
    text = text if bracket.folded or tall >= ROW_PX else ""
    small = "" if tall >= ROW_PX else f";font-size:{max(SMALLEST_PX, tall):.3g}px"
    told = f"{bracket.path}: {words.count(bracket.sites, 'site')}"
    does = "unfold" if bracket.folded else "fold"
    place = ";".join(
        f"{side}:{100 * part:.5g}%"
        for side, part in (("left", left), ("top", top), ("width", width), ("height", share))
    )
    place += small
    # What is too thin to be read is passed over by the Tab key; + and − reach it.
    skipped = ' tabindex="-1"' if tall < ROW_PX else ""
    return (
        f'<button class="{does}" data-fold="{escape(bracket.path)}" style="{place}"{skipped} '
        f'aria-expanded="{str(not bracket.folded).lower()}" aria-label="{escape(told)}" '
        f'title="{escape(told)}. Click to {does}.">{text}</button>'
    )


def level(one: Level, what: str = "") -> str:
    """All modules folded to a depth, as a menu says it."""
    what = what or (f"{one.example}, …" if one.example else "all sites")
    return f"{words.shorten(what, 40)} ({words.count(one.rows, 'row')})"


def how_to_select(*, on_map: bool, keys: bool = True) -> str:
    """What to do where no cell is selected.

    Args:
        on_map: whether the heatmap of all sites is on this page.
        keys: whether the page listens to the keyboard.
    """
    if not on_map:
        return (
            '<div class="hint"><b>No tensor is chosen.</b> Open the Map and click a cell of its '
            "heatmap, or follow a link of Triage.</div>"
        )
    told = (
        "<br><kbd>←</kbd> <kbd>→</kbd> move by a step, <kbd>+</kbd> <kbd>−</kbd> unfold "
        "and fold modules, <kbd>Esc</kbd> clears."
    )
    return (
        '<div class="hint"><b>Click a cell of the heatmap</b> to see its numbers: which exponents '
        "they have, whether they fit a format, and which rank differs."
        f"{told if keys else ''}</div>"
    )


def selection(site: str, step: int | None, facts: Mapping[str, object] | None) -> str:
    """Which cell is selected, and facts about its site."""
    kind, _, name = site.partition(":")
    parts = [kind_name(kind), "" if step is None else f"step {step}"]
    if facts is not None:
        shape = facts.get("shape") or ()
        size = "×".join(str(n) for n in shape) if isinstance(shape, tuple | list) else str(shape)
        parts += [str(facts.get("dtype") or ""), size, str(facts.get("module") or "")]
    detail = " · ".join(escape(part) for part in parts if part)
    return f'<h2 class="site">{escape(name)}<span class="detail">{detail}</span></h2>'


def fit_table(fit: pd.DataFrame | None, *, target: NumberFormat, own: str) -> str:
    """Which parts of the tensor each format would lose."""
    if fit is None:
        return ""
    rows: list[str] = []
    for name, line in fit.to_dict("index").items():
        name = str(name)
        tag = ' <span class="own">own</span>' if name == own else ""
        verb = "clipped" if number_format(name).saturates else ""
        rows.append(_fit_row(name + tag, line, verb, chosen=name == target.name))
    return _fit_table("Share of the non-zero elements that would not fit", "if cast to", rows)


def block_tables(fit: pd.DataFrame | None) -> Iterator[str]:
    """The same where the elements of a block share a scale, a table for each kind of block."""
    if fit is None:
        return
    for name, lines in fit.groupby(level="exact_count", sort=False):
        exact_count = exact_count_named(str(name))
        if isinstance(exact_count, BlockExponents):
            to = "a power of two" if exact_count.scale == "power" else "its largest magnitude"
            caption = (
                f"If each block of {exact_count.rows} × {exact_count.columns} is scaled by {to}"
            )
            formats = lines.droplevel("exact_count").to_dict("index").items()
            rows = [_fit_row(str(name), line, "clipped") for name, line in formats]
            yield _fit_table(caption, "and cast to", rows)


def _fit_row(name: str, line: Mapping[Hashable, float], verb: str, *, chosen: bool = False) -> str:
    marks = ' class="chosen"' if chosen else ""
    cells = "".join(_cell(line, part) for part in ("overflow", "subnormal", "underflow"))
    return f'<tr{marks}><th scope="row">{name}</th>{cells}<td class="note">{verb}</td></tr>'


def _fit_table(caption: str, head: str, rows: Sequence[str]) -> str:
    return (
        f'<table class="fit"><caption>{caption}</caption><thead><tr>'
        f'<th scope="col">{head}</th><th scope="col">overflow</th><th scope="col">subnormal</th>'
        f'<th scope="col">to zero</th><th></th></tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _cell(line: Mapping[Hashable, float], part: str) -> str:
    value, low, high = (float(line[part + end]) for end in ("", "_low", "_high"))
    bounds = "exact" if low == high else f"between {words.share(low)} and {words.share(high)}"
    filled = f"--part:{min(max(value, 0.0), 1.0) * 100:.1f}%"
    some = " some" if value > 0 else ""
    return f'<td class="{part}{some}" style="{filled}" title="{bounds}">{words.share(value)}</td>'


def _address(*, theme: str, run: str = "") -> str:
    """Of a run, or the list of them, in the colours that are chosen."""
    parts = ([f"run={quote(run)}"] if run else []) + [f"theme={theme}"] * (
        theme != colours.LIGHT.name
    )
    return "?" + "&amp;".join(parts)


def index(
    runs: Sequence[RunSummary], *, path: str, now_s: float, theme: str = colours.LIGHT.name
) -> str:
    """The list of runs in a directory, as links."""
    if not runs:
        return (
            f'<div class="hint">There is no run in {escape(path)} yet. Reload when there is.</div>'
        )
    rows = "".join(_index_row(run, now_s, theme) for run in runs)
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("run", "state", "steps", "ranks"))
    return f'<table class="runs"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'


def _index_row(run: RunSummary, now_s: float, theme: str) -> str:
    address = _address(theme=theme, run=run.path.name)
    brief = run.ending.brief
    state = brief.replace("open", "live", 1) if run.ending.state == "open" else brief
    if run.updated is not None:
        state += f", {words.age(max(now_s - run.updated.timestamp(), 0))}"
    steps = "none yet" if run.last_step is None else f"{run.first_step}–{run.last_step}"
    name = f'<th scope="row"><a href="{address}">{escape(run.name)}</a></th>'
    return f"<tr>{name}<td>{escape(state)}</td><td>{steps}</td><td>{run.world_size}</td></tr>"
