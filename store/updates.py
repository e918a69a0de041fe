"""What each step changes of each weight, beside the weight and its learning rate."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..sketch.derive import MAIN
from ..sketch.errors import SettingError
from ..sketch.table import Floats
from .reader import Reader
from .scales import told
from .selection import Chosen, Indices

RATE, RATE_OF_OPTAX = "lr", "learning_rate"
"""Training statistics: the learning rate of the first parameter group, and of those that have no
other, that of group n being told as `lr.n`; and what `optax.inject_hyperparams` calls it."""
COLUMNS = ["step", "site", "weight", "update", "ratio", "unchanged", "lr", "trust_ratio"]
L2, ZERO, NONFINITE = (MAIN.index(name) for name in ("l2", "zero_share", "nonfinite"))


def updates_frame(reader: Reader, chosen: Chosen, places: Indices) -> pd.DataFrame:
    """One row a parameter and step, see `Run.updates`.

    Raises:
        SettingError: the run has no updates.
    """
    pairs = update_pairs(reader)
    if not pairs:
        raise SettingError(
            "The run has no `update` beside a `weight`: they are recorded on request, as by "
            "observe(…, schedules={'update': 10})."
        )
    wanted = set(places.tolist())
    pairs = [pair for pair in pairs if wanted & {*pair}]
    if not pairs or not len(chosen):
        return pd.DataFrame(columns=COLUMNS)
    changes, weights = np.array(pairs, np.int64).T
    update, unchanged, bad, weight = (
        found.astype(np.float64)
        for found in reader.read_all(
            [
                ("scalars", chosen.records, (changes, L2)),
                ("scalars", chosen.records, (changes, ZERO)),
                ("scalars", chosen.records, (changes, NONFINITE)),
                ("scalars", chosen.records, (weights, L2)),
            ]
        )
    )
    rates = learning_rates(reader, chosen, changes)
    with np.errstate(all="ignore"):
        frame = pd.DataFrame(
            {
                "step": np.repeat(chosen.steps, len(pairs)),
                "site": reader.labels(changes) * len(chosen),
                "weight": weight.ravel(),
                "update": update.ravel(),
                "ratio": (update / weight).ravel(),
                "unchanged": unchanged.ravel(),
                "lr": rates.ravel(),
                "trust_ratio": (rates * weight / update).ravel(),
            }
        )
    observed = ~np.isnan(update) | (bad > 0)
    return frame.loc[observed.ravel()].reset_index(drop=True)


def learning_rates(reader: Reader, chosen: Chosen, places: Indices) -> Floats:
    """float64 [steps, sites]: the learning rate of each parameter's group; NaN where untold."""
    groups = [site.group for site in reader.sites(places)]
    first = told(reader, RATE, chosen)
    first = np.where(np.isnan(first), told(reader, RATE_OF_OPTAX, chosen), first)
    of_group = {
        group: told(reader, f"{RATE}.{group}", chosen) if group else first for group in set(groups)
    }
    rates = [np.where(np.isnan(of_group[group]), first, of_group[group]) for group in groups]
    return np.stack(rates, axis=1)


def knows_rates(reader: Reader) -> bool:
    """Whether some learning rate was told."""
    return any(
        name in (RATE, RATE_OF_OPTAX) or name.startswith(f"{RATE}.")
        for name in reader.meta.training
    )


def update_pairs(reader: Reader) -> list[tuple[int, int]]:
    """The places of each update and its weight."""
    sites = reader.meta.sites
    weights = {site.name: place for place, site in enumerate(sites) if site.kind == "weight"}
    return [
        (place, weights[site.name])
        for place, site in enumerate(sites)
        if site.kind == "update" and site.name in weights
    ]
