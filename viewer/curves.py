"""A statistic of several sites, or of one in several runs, over steps, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..sketch.distribution import SPREAD
from . import words
from .series import turns_of

if TYPE_CHECKING:
    from ..store.query import Run
    from ..store.views import View


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curves:
    """Lines over the same steps."""

    statistic: str
    names: list[str]
    """What each line is of, in words."""
    steps: NDArray[np.int64]
    """int64 [steps], ascending."""
    values: NDArray[np.float64]
    """float64 [steps, lines]: NaN where there is no number."""
    bad: list[NDArray[np.int64]]
    """By line, int64: the steps in which something was not finite."""
    turns: list[tuple[int, int]] = field(default_factory=list)
    """(step, attempt) where the records of another attempt than before begin."""


def load_curves(
    run: Run,
    statistic: str,
    *,
    sites: Sequence[str],
    steps: slice | None = None,
    view: View = "merged",
) -> Curves:
    """A statistic of these sites over steps.

    Raises:
        SettingError: there is no such statistic, site or view.
    """
    found = run.scalar(statistic, sites=list(sites), steps=steps, view=view)
    whose = "merged" if view in SPREAD else view
    wrong = run.scalar("nonfinite", sites=list(sites), steps=steps, view=whose)
    values = np.asarray(found.transpose("step", "site").values, np.float64)
    counts = np.asarray(wrong.transpose("step", "site").values, np.float64)
    bad_steps = np.asarray(wrong["step"].values, np.int64)
    return Curves(
        statistic=statistic,
        names=[words.site_name(site) for site in sites],
        steps=np.asarray(found["step"].values, np.int64),
        values=np.where(np.isfinite(values), values, np.nan),
        bad=[bad_steps[counts[:, column] > 0] for column in range(len(sites))],
        turns=turns_of(found["step"].values, found["attempt"].values),
    )
