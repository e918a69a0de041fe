"""A precision recipe: for each site a number format, its scale, and why. Pure.

The form is `rankscope.recipe/1`, see `docs/store.md`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import xarray as xr

from .format_table import BREAKS, FITS, MAY_BREAK, lacking

SCHEMA = "rankscope.recipe/1"
KEEP = "keep"
"""Stands for the dtype that the site has, where no format fits it."""
QUESTIONS = ("overflow", "underflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is chosen for one site."""

    site: str
    kind: str
    format: str
    shift: int
    reason: str


def recipe(table: xr.Dataset, *, run: str) -> dict[str, Any]:
    """The recipe that a table of formats gives: for each site the first format that fits.

    Sites whose names differ only in numbers, as those of the layers of a stack, share an entry
    where the same is chosen for all of them. Each site matches the pattern of one entry.

    Args:
        table: of `Run.format_table`; its formats in the order in which they are preferred.
        run: name of the run.
    """
    choices = choose(table)
    entries = [_entry(pattern, some) for pattern, some in _grouped(choices)]
    return {
        "schema": SCHEMA,
        "run": run,
        "steps": [table.attrs[end] for end in ("first_step", "last_step") if end in table.attrs],
        "formats": [str(name) for name in table["format"].values],
        "most": {one: float(table.attrs[f"most_{one}"]) for one in QUESTIONS},
        "sites": entries,
    }


def choose(table: xr.Dataset) -> list[Choice]:
    """For each site the first of the formats that fits, or what it has."""
    formats = [str(name) for name in table["format"].values]
    verdicts, shifts = table["verdict"].values, table["shift"].values
    without, nonfinite = lacking(table), table["nonfinite"].values
    kinds, dtypes = table["kind"].values, table["dtype"].values
    lost = {one: table[f"{one}_high"].values for one in QUESTIONS}
    found = list[Choice]()
    for row, site in enumerate(table["site"].values):
        fits = [column for column, said in enumerate(verdicts[row]) if said == FITS]
        if fits:
            column = fits[0]
            losses = {one: float(lost[one][row, column]) for one in QUESTIONS}
            chosen, shift, reason = formats[column], int(shifts[row, column]), _fits(losses)
        else:
            chosen, shift, reason = KEEP, 0, _keeps(formats, verdicts[row], str(dtypes[row]))
        if without[row]:
            reason = f"{without[row]} in these steps"
        if nonfinite[row]:
            reason += "; it has NaN or infinity"
        found.append(
            Choice(site=str(site), kind=str(kinds[row]), format=chosen, shift=shift, reason=reason)
        )
    return found


def _fits(losses: dict[str, float]) -> str:
    overflow, underflow = (losses[one] for one in QUESTIONS)
    if not overflow and not underflow:
        return "nothing overflows or becomes zero"
    return f"at most {overflow:.3g} overflows and {underflow:.3g} becomes zero"


def _keeps(formats: Sequence[str], verdicts: Sequence[str], dtype: str) -> str:
    words = {BREAKS: "breaks it", MAY_BREAK: "may break it"}
    said = ", ".join(
        f"{name} {words.get(verdict, 'is not known')}"
        for name, verdict in zip(formats, verdicts, strict=True)
    )
    return f"{said}; it has {dtype or 'a dtype that was not told'}"


def _grouped(choices: Sequence[Choice]) -> list[tuple[str, list[Choice]]]:
    """Sites with one pattern and one choice; where they differ each has a pattern of its own."""
    alike = dict[str, list[Choice]]()
    for one in choices:
        alike.setdefault(pattern_of(one.site), []).append(one)
    found = list[tuple[str, list[Choice]]]()
    for pattern, some in alike.items():
        if len({(one.format, one.shift) for one in some}) == 1:
            found.append((pattern, some))
        else:
            found += [(re.escape(one.site), [one]) for one in some]
    return found


def pattern_of(site: str) -> str:
    """A regular expression of all labels that differ from this one in numbers only."""
    return re.sub(r"[0-9]+", lambda _: r"[0-9]+", re.escape(site))


def _entry(pattern: str, some: Sequence[Choice]) -> dict[str, Any]:
    reasons = dict.fromkeys(one.reason for one in some)
    first, *others = reasons
    return {
        "pattern": pattern,
        "kind": some[0].kind,
        "sites": len(some),
        "format": some[0].format,
        "scale": some[0].shift,
        "reason": first if not others else f"{first}; and {len(others)} other reasons alike",
    }
