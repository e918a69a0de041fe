"""Tables of the ranks and formats pages as HTML; a click on a row's name selects what it is of.

Pure functions; every name and sentence from a store is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import isnan
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..store.format_table import BREAKS, FITS, MAY_BREAK, NOT_KNOWN
from . import words
from .figures import colours
from .fitting import Fitting, when
from .markup import table
from .rank_map import NEAR_ONCE, WORTH, Agreement, AtStep, Outlier

if TYPE_CHECKING:
    from ..store import Alert, Comparison

WORDS = {BREAKS: "breaks", MAY_BREAK: "may break", FITS: "fits", NOT_KNOWN: "not known"}
CLASSES = {BREAKS: "breaks", MAY_BREAK: "may", FITS: "fits", NOT_KNOWN: "unknown"}


def name_of(site: str, *, step: int | None = None) -> str:
    """The name of a site as a button that selects it, and a step if there is one to go to."""
    kind, _, name = site.partition(":")
    at = "" if step is None else f' data-step="{step}"'
    # A long name breaks between its modules, and not within a word.
    breakable = escape(name).replace(".", ".<wbr>")
    return (
        f'<button class="pick" data-site="{escape(site)}"{at}>{breakable} '
        f"<i>{escape(kind.replace('_', ' '))}</i></button>"
    )


def at_step(rows: Sequence[AtStep], *, statistic: str, step: int) -> str:
    """The picture of ranks at one step, in numbers, folded."""
    cells = [
        (
            escape(
                f"rank {one.rank}" if one.name == f"rank {one.rank}" else f"{one.rank}, {one.name}"
            ),
            *(
                ("not observed", "", "")
                if one.nonfinite is None
                else (
                    words.number(one.value),
                    "no peer" if isnan(one.ratio) else words.ratio(one.ratio),
                    words.thousands(one.nonfinite),
                )
            ),
        )
        for one in rows
    ]
    heads = ("rank", statistic, "over the median of its peers", "not finite")
    shown = table(f"Step {step}", heads, cells) if cells else "Nothing was recorded at this step."
    return f"<details><summary>Step {step} in numbers</summary>{shown}</details>"


def outliers(rows: Sequence[Outlier], statistic: str, *, why_none: str) -> str:
    """Which ranks stand out, and where."""
    caption = f"Ranks that differ most from their peers, by {statistic}"
    if not rows:
        return nothing(caption, why_none)
    if any(isnan(one.score) for one in rows):
        caption += "; of fewer than four no score can tell which is odd, but a rank's own past may"
    cells = [
        (
            name_of(one.site, step=one.worst_step),
            _odd(one),
            _ratio(one, one.ratio),
            _score(one.score, WORTH),
            f"{_worst(one)} at step {one.worst_step}",
        )
        for one in rows
    ]
    heads = ("site", "rank", "usually", "score", "worst")
    return table(caption, heads, cells)


def _odd(one: Outlier) -> str:
    if not one.is_known:
        return "not known"
    return f"{one.rank}, by its own past" if one.has_left else str(one.rank)


def _ratio(one: Outlier, ratio: float) -> str:
    if one.is_known:
        return words.ratio(ratio)
    return f"{words.ratio(max(ratio, 1 / ratio)).removeprefix('× ')} apart"


def _worst(one: Outlier) -> str:
    if isnan(one.worst_score):
        return _ratio(one, one.worst_ratio)
    return f"score {_score(one.worst_score, NEAR_ONCE)}"


def _score(score: float, far: float) -> str:
    if isnan(score):
        return "–"
    text = words.number(score)
    return f"<b>{text}</b>" if abs(score) >= far else text


def divergences(rows: Sequence[Alert], *, judged: int, most: int) -> str:
    """What rules found of copies and sums."""
    caption = "Copies that differ, and sums over ranks that do not add up"
    if not rows:
        how = f"Checked in {words.count(judged, 'record')}, and none was found." if judged else ""
        return nothing(caption, how or "No rule checked any: one rank, or nothing is held twice.")
    cells = [
        (
            (name_of(one.site, step=one.first_step) if one.site else "the run")
            # Without the site, which stands above.
            + f'<span class="told">{escape(one.text.replace(f" of {one.site}", ""))}</span>',
            words.ranks(one.ranks) if one.ranks else "not known",
            f"from {one.first_step}, goes on"
            if one.last_step is None
            else words.steps(one.first_step, one.last_step).partition(" ")[2],
        )
        for one in rows[:most]
    ]
    more = f" (the first {most} of {len(rows)})" if len(rows) > most else ""
    return table(caption + more, ("site", "ranks", "steps"), cells)


def agreements(rows: Sequence[Agreement], *, step: int | None, addends: int) -> str:
    """Rank-local against reduced gradients."""
    caption = "Each rank's own gradients beside the reduced one"
    if not rows or step is None:
        return nothing(caption, "There are none at this step, or what they were scaled by.")
    cells = [
        (
            name_of(one.site, step=step),
            words.share(one.agreement),
            f"{words.number(one.largest)} × on rank {one.largest_rank}",
        )
        for one in rows
    ]
    told = (
        f"{caption}, step {step}: 100 % is where all {addends} say the same, "
        f"{words.share(addends**-0.5)} where they have nothing in common"
    )
    return table(told, ("parameter", "agreement", "largest of them"), cells)


def parted(found: Comparison, name: str = "") -> str:
    """Where two runs part, in sentences; `name` tells which is the other, where there are more."""
    mood = "sound" if found.numbers is None else "wrong"
    only = [
        f"Only {whose} run has {words.count(len(labels), 'site')}."
        for whose, labels in (("this", found.only_one), ("the other", found.only_other))
        if labels
    ]
    text = " ".join([found.text, *only])
    told = f"{words.shorten(name, 40)}: {text}" if name else text
    return f'<p class="state {mood}" role="status">{escape(told)}</p>'


def parted_sites(found: Comparison, *, most: int = 20) -> str:
    """The sites that part first."""
    caption = "Sites that part first"
    order = found.sites.dropna(subset=["numbers_step"]).sort_values("numbers_step", kind="stable")
    if not len(order):
        return nothing(caption, "None does.")
    rows = list[Sequence[str]]()
    names = ["numbers_step", "bits_step", "largest", "largest_step", "nonfinite_step"]
    columns = order.head(most)[names]
    for site, step, bits, largest, at, nonfinite in columns.itertuples(name=None):
        first = "not known" if pd.isna(bits) else str(bits)
        ratio = "" if pd.isna(largest) else f"{words.ratio(2.0 ** float(largest))} at step {at}"
        ratio = found.with_nonfinite(ratio, float(largest), nonfinite) or "none"
        where = name_of(str(site), step=int(step))
        rows.append((where, str(int(step)), first, ratio))
    more = f" ({most} of {words.thousands(len(order))})" if len(order) > most else ""
    return table(caption + more, ("site", "from step", "first bit", "largest ratio"), rows)


def nothing(caption: str, why: str) -> str:
    """In the place of a table that has no rows."""
    return f'<p class="summary"><b>{escape(caption)}.</b> {escape(why)}</p>'


def answer(found: Fitting, *, most: tuple[float, float]) -> str:
    """By format how many sites would break, as bars and numbers."""
    total = max(found.table.sizes["site"], 1)
    rows = list[Sequence[str]]()
    for name in found.formats:
        counts = found.counts(name)
        bar = "".join(
            f'<i class="{CLASSES[verdict]}" style="width:{100 * counts[verdict] / total:.1f}%"></i>'
            for verdict in (BREAKS, MAY_BREAK, NOT_KNOWN, FITS)
            if counts[verdict]
        )
        numbers = [
            words.thousands(counts[verdict]) if counts[verdict] else "–"
            for verdict in (BREAKS, MAY_BREAK, FITS, NOT_KNOWN)
        ]
        rows.append((escape(name), f'<span class="bar">{bar}</span>', *numbers))
    overflow, underflow = (words.share(share) for share in most)
    caption = (
        f"Of {words.count(found.table.sizes['site'], 'site')}, {when(found)}: a tensor fits where "
        f"at most {overflow} overflows and {underflow} becomes zero"
    )
    heads = ("format", "", *WORDS.values())
    return table(caption, heads, rows, kind="answer")


def fitting(found: Fitting, *, first: int, rows: int, chosen: str) -> str:
    """Some rows of the table of sites and formats, from `first` on."""
    some = found.order[first : first + rows]
    labels = found.table["site"].values
    table = found.table
    # Rows are read one by one: of plain arrays that is a hundred times as fast.
    columns = {str(name): table[name].values[some] for name in table if table[name].ndim == 2}
    nonfinite = table["nonfinite"].values[some]
    body = "".join(
        _fitting_row(
            {name: values[row] for name, values in columns.items()},
            label,
            found,
            is_chosen=label == chosen,
            is_bad=bool(nonfinite[row]),
        )
        for row, label in enumerate(map(str, labels[some]))
    )
    # A name may break after its family: many formats stand side by side.
    heads = "".join(
        f'<th scope="col">{escape(name).replace("_", "_<wbr>")}</th>' for name in found.formats
    )
    total = len(found.order)
    caption = (
        f"Sites {first + 1}–{first + len(some)} of {words.thousands(total)}, what breaks first. "
        "↑ overflows, ↓ becomes zero; ≈ is an estimate, whose bounds the mouse shows; ?: not known"
    )
    return (
        f'<table class="fitting"><caption>{escape(caption)}</caption><thead><tr>'
        f'<th scope="col">site</th>{heads}</tr></thead><tbody>{body}</tbody></table>'
    )


# `Any`: the columns of a table have several types.
def _fitting_row(
    columns: Mapping[str, Any], label: str, found: Fitting, *, is_chosen: bool, is_bad: bool
) -> str:
    marks = ' class="chosen" aria-selected="true"' if is_chosen else ""
    bad = ' <span class="bad">NaN or infinity</span>' if is_bad else ""
    cells = "".join(
        _fitting_cell({name: values[place] for name, values in columns.items()}, found.stretches)
        for place in range(len(found.formats))
    )
    return f'<tr{marks}><th scope="row">{name_of(label)}{bad}</th>{cells}</tr>'


def _fitting_cell(cell: Mapping[str, Any], stretches: int) -> str:
    verdict = str(cell["verdict"])
    told = "".join(
        _loss(mark, *(float(cell[question + end]) for end in ("", "_low", "_high")))
        for mark, question in (("↑", "overflow"), ("↓", "underflow"))
    )
    scale = f'<span class="times">×{words.power(cell["shift"])}</span>' if cell["shift"] else ""
    text = told or ("?" if verdict == NOT_KNOWN else "fits")
    # Most cells lose nothing: each step of a live run sends them all.
    title = f' title="{escape(_title(cell, stretches))}"' if told else ""
    return f'<td class="{CLASSES[verdict]}"{title}>{text}{scale}</td>'


def _loss(mark: str, value: float, low: float, high: float) -> str:
    """What is lost, in short; nothing where nothing is."""
    if not high > 0:  # nor of NaN
        return ""
    return f"<span>{mark} {'' if low == high else '≈'}{words.share(value)}</span> "


def _title(cell: Mapping[str, Any], stretches: int) -> str:
    if str(cell["verdict"]) == NOT_KNOWN:
        return "No histogram, or of blocks no counts."
    parts = [WORDS[str(cell["verdict"])]]
    for question, what in (
        ("overflow", "overflow"),
        ("underflow", "to zero"),
        ("subnormal", "subnormal"),
    ):
        low, high = float(cell[f"{question}_low"]), float(cell[f"{question}_high"])
        share = words.share(low) if low == high else f"{words.share(low)} to {words.share(high)}"
        at = "" if not high or stretches else f" (step {int(cell[f'{question}_step'])})"
        parts.append(f"{what} {share}{at}")
    return "; ".join(parts)


def ratio_legend(
    limits: colours.Limits,
    *,
    middle: str = "the median",
    alone: str = "no peer",
    crosses: bool = False,
    beyond: bool = False,
) -> str:
    """The ramp of ratios with its ends, and what the other colours mean.

    Args:
        limits: of log2 of the ratio.
        middle: what a ratio of 1 means.
        alone: what an observed cell without a ratio means.
        crosses: whether alerts stand on the picture.
        beyond: whether the ends stand for what is further, too.
    """
    stops = ",".join(limits.palette[:: len(limits.palette) // 16])
    reach, more = words.number(2.0**limits.high), " and more" if beyond else ""
    ends = f"÷{reach}{more}", middle, f"×{reach}{more}"
    marks = "".join(f"<span>{escape(one)}</span>" for one in ends)
    keys = "".join(
        f'<span class="key"><i class="{name}"></i>{text}</span>'
        for name, text in (("bad", "non-finite"), ("alone", alone), ("none", "not observed"))
    )
    if crosses:
        keys += '<span class="key"><b>×—</b>copies differ, or a sum does not add up</span>'
    return (
        '<div class="legend"><span class="ramp">'
        f'<i style="background:linear-gradient(90deg,{stops})"></i>'
        f'<span class="marks">{marks}</span></span>{keys}</div>'
    )
