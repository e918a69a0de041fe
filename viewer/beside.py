"""Other sites beside one, as data: their exponents at its step, and lines of all over steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from . import words
from .curves import Curves
from .spectrum import ASIDE, ASIDE_NAMES, Spectrum, load_all_seen
from .twins import spectrum_table

if TYPE_CHECKING:
    from ..store.query import Run
    from ..store.views import View

MOST = 4
"""More lines than this beside one cannot be told apart."""
FULL = f"{MOST} sites stand beside already, and more could not be told apart: take one away first."


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which sites stand beside, of those that were asked for."""

    drawn: list[str]
    problem: str
    """Why others do not; empty where all do."""


def wanted(beside: Sequence[str], *, site: str, known: pd.Index) -> Wanted:
    """Those that there are, without the site itself, and no more than `MOST`."""
    asked = [one for one in dict.fromkeys(beside) if one != site]
    there = [one for one in asked if one in known]
    gone = [one for one in asked if one not in known]
    problem = ""
    if gone:
        problem = f"This run has no site {words.shorten(gone[0], 80)} to put beside."
    elif len(there) > MOST:
        problem = f"Of {len(there)} sites the first {MOST} are drawn: more cannot be told apart."
    return Wanted(drawn=there[:MOST], problem=problem)


def load_beside(
    run: Run, sites: Sequence[str], *, step: int | None, view: View
) -> dict[str, Spectrum | None]:
    """The exponents of each site at the step; None where it has no histogram there."""
    if step is None or not sites:
        return dict.fromkeys(sites)
    return load_all_seen(run, sites=sites, step=step, view=view)


def exponents_table(spectrum: Spectrum | None, others: dict[str, Spectrum | None]) -> pd.DataFrame:
    """Elements and shares of the site by exponent, then the shares of the others."""
    shares = {
        f"share of {words.site_name(site)}": spectrum_table(one)["share"]
        for site, one in others.items()
        if one is not None
    }
    if not shares:
        return spectrum_table(spectrum)
    held = [one for one in (spectrum, *others.values()) if one is not None]
    bins = sorted({e for one in held for e in one.exponents.tolist()})
    rows = pd.Index([*(f"2^{e} to 2^{e + 1}" for e in bins), *ASIDE_NAMES], name="|x|")
    own = spectrum_table(spectrum).reindex(rows)
    return own.assign(**{name: one.reindex(rows) for name, one in shares.items()}).fillna(0)


def describe(others: dict[str, Spectrum | None], *, step: int | None) -> str:
    """Their exponents in a sentence each, for those who do not see them."""
    return " ".join(_describe(site, one, step) for site, one in others.items())


def _describe(site: str, one: Spectrum | None, step: int | None) -> str:
    if one is None:
        return f"{words.site_name(site)}: no histogram at step {step}."
    text = f"{words.site_name(site)}: {words.count(one.total, 'element')}"
    if one.counts.size:
        low, high = int(one.exponents[0]), int(one.exponents[-1]) + 1
        text += f" between {words.power(low)} and {words.power(high)}"
        text += f", most near {words.power(int(one.exponents[one.counts.argmax()]))}"
    names = dict(zip(ASIDE, ASIDE_NAMES, strict=True))
    aside = [f"{words.share(n / one.total)} {names[name]}" for name, n in one.aside.items() if n]
    return f"{text}{'; aside: ' if aside else ''}{', '.join(aside)}."


def curves_table(curves: Curves | None) -> pd.DataFrame:
    """The statistic by step, a column a line."""
    if curves is None:
        return pd.DataFrame()
    index = pd.Index(curves.steps, name="step")
    return pd.DataFrame(curves.values, index=index, columns=curves.names)


def describe_curves(curves: Curves) -> str:
    """The lines in a sentence, for those who do not see them."""
    parts = list[str]()
    for place, name in enumerate(curves.names):
        known = np.flatnonzero(np.isfinite(curves.values[:, place]))
        if not known.size:
            parts.append(f"{name} has no number")
            continue
        first, last = (float(curves.values[at, place]) for at in known[[0, -1]])
        text = f"{name} {words.number(first)} to {words.number(last)}"
        if len(curves.bad[place]):
            bad, seen = curves.bad[place], curves.steps[known]
            text += f", not finite {words.span(int(bad.min()), int(bad.max()), int(seen.max()))}"
        parts.append(text)
    return f"{curves.statistic}, first to last: {'; '.join(parts)}."
