"""Quantities that follow from sketches of several kinds: of updates, and the noise scale."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from ..sketch.errors import SettingError
from ..sketch.quantities import COMBINED, NOISE_SCALE
from .agreement import BATCH, HALF_LIFE, noise_frame
from .reader import Reader
from .record import addend_pairs
from .selection import Chosen, Indices, within
from .updates import knows_rates, update_pairs, updates_frame

ROOT = "(root)"
"""The whole model, as modules are named."""
UPDATES = "updates beside weights, as by observe(…, schedules={'update': 10})"
NEEDS = {
    "trust_ratio": f"{UPDATES}, and learning rates",
    NOISE_SCALE: (
        "gradients from before their reduction, which are recorded where several ranks train with "
        "different samples"
    ),
}
"""What a run must have, where it is not only `UPDATES`."""


def combined_of(
    reader: Reader, name: str, pattern: re.Pattern[str] | None = None
) -> dict[str, list[int]]:
    """What such a quantity is of, by its name, and the places of its sites.

    Empty where the run lacks what it follows from, or has a quantity of its own of that name.
    """
    if any(one.name == name for one in reader.meta.quantities):
        return {}
    sites = reader.meta.sites
    if name == NOISE_SCALE:
        addends = [place for place, _ in addend_pairs(sites, "weight_gradient")]
        return {ROOT: addends} if addends and (not pattern or pattern.search(ROOT)) else {}
    if name == "trust_ratio" and not knows_rates(reader):
        return {}
    return {
        sites[place].label.removeprefix("update:"): [place]
        for place, _ in update_pairs(reader)
        if pattern is None or pattern.search(sites[place].name)
    }


def combined_frame(
    reader: Reader,
    name: str,
    pattern: re.Pattern[str] | None,
    chosen: Chosen,
    attempt: int | None,
) -> pd.DataFrame:
    """step, attempt, of, part, index and value, in no order; NaN where it is not known.

    Args:
        attempt: the only one whose records are chosen; None for all.

    Raises:
        SettingError: the run lacks what it follows from, or not of that.
    """
    found = combined_of(reader, name, pattern)
    if not found:
        raise SettingError(_missing(reader, name, pattern))
    places = np.array([place for own in found.values() for place in own], np.int64)
    rows = (
        _noise_scale(reader, chosen, places, attempt)
        if name == NOISE_SCALE
        else updates_frame(reader, within(chosen, reader.facts(), sketched=True), places)
    )
    steps = rows["step"].to_numpy(np.int64)
    columns: dict[str, Any] = {
        "step": steps,
        "attempt": chosen.attempts[np.searchsorted(chosen.steps, steps)],
        "of": [str(site).removeprefix("update:") for site in rows["site"]],
        "part": "",
        "index": 0,
        "value": rows[COMBINED[name].column].to_numpy(np.float64),
    }
    return pd.DataFrame(columns)


def _noise_scale(
    reader: Reader, chosen: Chosen, places: Indices, attempt: int | None
) -> pd.DataFrame:
    """Of each of these steps, with the mean over all before it, whichever are asked for."""
    every = reader.choose(attempt=attempt, sketched=True)
    found = noise_frame(reader, every, places, batch=BATCH, half_life=HALF_LIFE).reset_index()
    return found[np.isin(every.records, chosen.records)].assign(site=ROOT)


def _missing(reader: Reader, name: str, pattern: re.Pattern[str] | None) -> str:
    there = list(combined_of(reader, name))
    if pattern is None or not there:
        return f"The run has no {name}: it needs {NEEDS.get(name, UPDATES)}."
    more = ", …" if len(there) > 8 else ""
    return (
        f"There is no {name} of {pattern.pattern!r}; it is there of {', '.join(there[:8])}{more}."
    )
