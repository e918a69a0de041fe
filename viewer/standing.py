"""Where alerts of one site stand on a map of its ranks: over which steps, on which rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from . import words

if TYPE_CHECKING:
    from ..store import Alert


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An alert on one row."""

    row: int
    first: int
    """The first step that it is of."""
    last: int
    """The last recorded one."""
    text: str


def standing(
    alerts: Sequence[Alert], *, site: str, ranks: Sequence[int], records: pd.DataFrame
) -> list[Standing]:
    """Those of a site, a mark for each of its ranks; for all ranks where it cannot be known which.

    Args:
        alerts: of any site.
        site: its label.
        ranks: those that have a row, from the first row on.
        records: as `Run.records` gives them: a step that was trained again is of its last attempt.
    """
    found = list[Standing]()
    steps, attempts = (records[name].to_numpy() for name in ("step", "attempt"))
    for alert in alerts:
        last = np.inf if alert.last_step is None else alert.last_step
        held = (attempts == alert.attempt) & (steps >= alert.first_step) & (steps <= last)
        if alert.site != site or not held.any():
            continue
        first, last = int(steps[held].min()), int(steps[held].max())
        found += [
            Standing(row=row, first=first, last=last, text=alert.text)
            for row, rank in enumerate(ranks)
            if rank in alert.ranks or not alert.ranks
        ]
    return found


def describe(marks: Sequence[Standing], *, ranks: Sequence[int]) -> str:
    """They in a sentence, for those who do not see them; empty for none."""
    if not marks:
        return ""
    where = words.rank_words(sorted({ranks[one.row] for one in marks}))
    when = words.steps(min(one.first for one in marks), max(one.last for one in marks))
    return f" ×: copies differ, or a sum does not add up, on {where}, {when}."
