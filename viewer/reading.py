"""What is read off at a step that the mouse is over: training and the selected site, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..sketch.distribution import SPREAD
from . import words
from .columns import span_of
from .grid import run_view
from .series import Lines, thin

if TYPE_CHECKING:
    from ..store.query import Run

Floats = NDArray[np.float64]

MOST_RANKS = 4
"""Of more ranks the extremes are read, and the rank to look at."""
MOST_STEPS = 4096
"""Of more visible steps those are read that have an extreme among their neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """A number that can be read at each step."""

    label: str
    values: Floats
    """float64 [steps]: NaN where there is none, infinite where it is not finite."""
    missing: str = ""
    """What is said where there is no number; nothing: then it is left out."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Readings:
    """All that can be read, at the recorded steps that are visible."""

    steps: NDArray[np.int64]
    """int64 [steps], ascending."""
    of: list[Reading]

    def thinned(self) -> Readings:
        """At no more than about `MOST_STEPS`, without the loss of an extreme."""
        keep = thin(self.steps, [one.values for one in self.of], MOST_STEPS)
        of = [
            Reading(label=one.label, values=one.values[keep], missing=one.missing)
            for one in self.of
        ]
        return Readings(steps=self.steps[keep], of=of)


def of_training(lines: Lines, steps: NDArray[np.int64]) -> list[Reading]:
    """A training statistic at these steps, by rank as far as it is drawn so."""
    named = {lines.label(rank): _told(lines, rank) for rank in sorted(lines.values)}
    if len(named) > MOST_RANKS:
        worst = [] if lines.worst is None else [lines.label(lines.worst)]
        extremes = {"least": lines.low, "greatest": _told(lines, None)}
        named = extremes | {name: named[name] for name in worst if name in named}
    elif len(named) == 1:
        named = {"": next(iter(named.values()))}
    return [
        Reading(
            label=f"{'' if place else lines.name} {name}".strip(),
            values=_at(lines.steps, values, steps),
            missing="no number",
        )
        for place, (name, values) in enumerate(named.items())
    ]


def of_site(
    run: Run, statistic: str, *, site: str, view: str, steps: NDArray[np.int64]
) -> list[Reading]:
    """A statistic of a site at these steps, and how many of its elements are not finite.

    Raises:
        SettingError: there is no such statistic, site or view.
    """
    span, asked = span_of(steps), run_view(view)
    values = run.scalar(statistic, sites=[site], steps=span, view=asked)
    counts = run.scalar(
        "nonfinite", sites=[site], steps=span, view="merged" if asked in SPREAD else asked
    )
    bad = _at(counts["step"].values, counts.values[:, 0], steps)
    label = f"{statistic} of {words.site_name(site)}"
    if view != "merged":
        label += f", {words.view_name(view)}"
    return [
        Reading(
            label=label,
            values=_at(values["step"].values, values.values[:, 0], steps),
            missing="no number",
        ),
        Reading(label="elements not finite", values=np.where(bad > 0, bad, np.nan)),
    ]


def _told(lines: Lines, rank: int | None) -> Floats:
    """The values of a rank, or None: the greatest of all; infinite where they are not finite."""
    values = np.array(lines.high if rank is None else lines.values[rank], np.float64)
    bad = [step for step, of in lines.bad if rank is None or of == rank]
    values[np.isin(lines.steps, bad)] = np.inf
    return values


def _at(known: NDArray[np.int64], values: NDArray[np.floating], steps: NDArray[np.int64]) -> Floats:
    """float64 [steps]: the values at these steps, NaN where there is none."""
    if not len(known):
        return np.full(len(steps), np.nan)
    place = np.minimum(np.searchsorted(known, steps), len(known) - 1)
    return np.where(known[place] == steps, values[place].astype(np.float64), np.nan)
