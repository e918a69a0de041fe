"""Lists of sites as HTML: to open one, or to put it beside another; and of runs, as a legend.

Every name is escaped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

from . import words
from .choosing import Suggestion
from .figures import colours
from .figures.compared import Looks, colour_of
from .tables import name_of as button_of

DASHES = {"solid": "", "dashed": "5 3", "dotted": "1.5 2.5", "dashdot": "6 2.5 1.5 2.5"}
"""As SVG writes them."""


def found(labels: Sequence[str], total: int, *, text: str, beside: Collection[str]) -> str:
    """What a search found: the name opens it, the button after it puts it beside."""
    if not text.strip():
        return ""
    if not labels:
        return f'<p class="summary">No site has {escape(words.shorten(text, 60))} in its name.</p>'
    rows = "".join(f"<li>{button_of(one)} {_toggle(one, one in beside)}</li>" for one in labels)
    more = total - len(labels)
    rest = f'<li class="when">and {words.thousands(more)} more: write on</li>' if more else ""
    return f'<ul class="sites" aria-label="Sites that were found">{rows}{rest}</ul>'


def suggested(some: Sequence[Suggestion], *, beside: Collection[str]) -> str:
    """What is usually wished beside: each a button that puts it there, and takes it away."""
    if not some:
        return ""
    rows = "".join(
        f'<li><button class="chip" data-beside="{escape(one.site)}" title="{escape(one.site)}"'
        f' aria-pressed="{str(one.site in beside).lower()}">{escape(one.why)}'
        f"{_slot(one.site)}</button></li>"
        for one in some
    )
    return f'<ul class="sites near" aria-label="Often put beside it">{rows}</ul>'


def legend(site: str, others: Sequence[str], *, theme: colours.Theme) -> str:
    """Which line is which: a name opens the site, a button takes it away."""
    if not others:
        return ""
    rows = [f"{button_of(one)} {_toggle(one, True)}" for one in others]
    return _lines([escape(words.site_name(site)), *rows], theme=theme)


def runs(names: Sequence[str], *, theme: colours.Theme) -> str:
    """Which line is of which run, the first of that which is looked at."""
    return _lines([escape(words.shorten(name, 40)) for name in names], theme=theme)


def parts(rows: Sequence[tuple[str, str]], *, looks: Sequence[Looks]) -> str:
    """Which line is of which module or parameter: each selects its site where there is one.

    Args:
        rows: names, and labels of their sites or nothing.
        looks: of the lines, in the same order.
    """
    items = "".join(
        f"<li>{_line(colour, dash)}{_part(name, site)}</li>"
        for (colour, dash, _), (name, site) in zip(looks, rows, strict=False)
    )
    return f'<ul class="sites near" aria-label="Lines">{items}</ul>'


def _part(name: str, site: str) -> str:
    text = escape(words.shorten(name, 60))
    if not site:
        return text
    return f'<button class="pick" data-site="{escape(site)}">{text}</button>'


def _lines(rows: Sequence[str], *, theme: colours.Theme) -> str:
    """Each as HTML beside its line, the first in the colour of the bars."""
    beside = [(colour_of(place, theme), colours.DASHES[place]) for place in range(len(rows) - 1)]
    items = "".join(
        f"<li>{_line(*look)}{row}</li>"
        for look, row in zip([(colours.NORMAL, "solid"), *beside], rows, strict=True)
    )
    return f'<ul class="sites" aria-label="Lines">{items}</ul>'


def _toggle(site: str, is_beside: bool) -> str:
    label = "take away" if is_beside else "+ beside"
    told = f"{'Take away' if is_beside else 'Put beside'} {site}"
    return (
        f'<button class="add" data-beside="{escape(site)}" aria-label="{escape(told)}">'
        f"{label}</button>"
    )


def _slot(site: str) -> str:
    """What tells sites of one name and kind apart."""
    _, bracket, rest = site.rpartition("[")
    return escape(f" {rest.removesuffix(']')}") if bracket and site.endswith("]") else ""


def _line(colour: str, dash: str) -> str:
    return (
        '<svg width="26" height="8" aria-hidden="true"><line x1="0" y1="4" x2="26" y2="4" '
        f'stroke="{colour}" stroke-width="2.5" stroke-dasharray="{DASHES[dash]}"/></svg> '
    )
