"""What each rank's own gradients have in common: how long their mean is beside themselves."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..sketch.derive import MAIN
from ..sketch.distribution import SPREAD
from .reader import Reader
from .record import addend_pairs
from .scales import addends_of, reductions_frame
from .selection import Chosen, Indices

L2 = MAIN.index("l2")
COLUMNS = [
    "step",
    "site",
    "local",
    "reduced",
    "ranks",
    "agreement",
    "largest",
    "largest_rank",
]
MOST, WHOSE = SPREAD.index("max"), SPREAD.index("argmax")


def agreement_frame(reader: Reader, chosen: Chosen, places: Indices) -> pd.DataFrame:
    """One row a parameter and step, see `Run.gradient_agreement`.

    Raises:
        SettingError: the run has no gradients from before their reduction.
    """
    wanted = set(places.tolist())
    pairs = [
        pair for pair in addend_pairs(reader.meta.sites, "weight_gradient") if wanted & {*pair}
    ]
    steps = reductions_frame(reader, chosen)  # tells where there are none
    addends, reduced = np.array(pairs, np.int64).reshape(-1, 2).T
    if not len(addends) or not len(chosen):
        return pd.DataFrame(columns=COLUMNS)
    own, after, largest, whose = reader.read_all(
        [
            ("ranks", chosen.records, (slice(None), addends, L2)),
            ("scalars", chosen.records, (reduced, L2)),
            ("spread", chosen.records, (addends, L2, MOST)),
            ("spread", chosen.records, (addends, L2, WHOSE)),
        ]
    )
    ranks = np.array(
        [[addends_of(reader, int(one), attempt) for one in addends] for attempt in chosen.attempts]
    )
    with np.errstate(all="ignore"):
        squares = own.astype(np.float64) ** 2
        local = np.sqrt(np.nansum(squares, axis=1) / ranks)
        local[(~np.isnan(squares)).sum(axis=1) != ranks] = np.nan  # of some it is not known
        factor = steps["factor"].to_numpy(np.float64)[:, None]
        share = after.astype(np.float64) / (factor * ranks) / local
    return pd.DataFrame(
        {
            "step": np.repeat(chosen.steps, len(pairs)),
            "site": [reader.label(int(one)) for one in addends] * len(chosen),
            "local": local.ravel(),
            "reduced": after.ravel(),
            "ranks": ranks.ravel(),
            "agreement": share.ravel(),
            "largest": (largest / local).ravel(),
            "largest_rank": whose.ravel(),
        }
    )
