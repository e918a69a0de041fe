"""What gradients have in common before their reduction: agreement of ranks, and the noise scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..sketch.conservation import LOSS_SCALE as LOSS
from ..sketch.derive import MAIN
from ..sketch.distribution import SPREAD
from ..sketch.errors import SettingError
from ..sketch.table import Floats
from .reader import Reader
from .record import addend_pairs
from .scales import addends_of, reductions_frame, told
from .selection import Chosen, Indices

L2, RMS = MAIN.index("l2"), MAIN.index("rms")
MOST, WHOSE = SPREAD.index("max"), SPREAD.index("argmax")
AGREEMENT = [
    "step",
    "site",
    "local",
    "reduced",
    "ranks",
    "micro_batches",
    "agreement",
    "largest",
    "largest_rank",
]
NOISE = ["gradient_square", "trace", "noise_scale", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Addends:
    """Gradients before their reduction, and after; NaN where not all ranks' are known."""

    places: Indices
    """int64 [parameters]: the sites of the ranks' own gradients."""
    ranks: Floats
    """float64 [steps, parameters]: how many ranks have one."""
    micro_batches: Floats
    """float64 [steps, 1]: of how many backwards each rank's are."""
    own: Floats
    """float64 [steps, parameters]: mean square of the norms of all addends."""
    reduced: Floats
    """float64 [steps, parameters]: norm of what the optimizer took."""
    mean: Floats
    """float64 [steps, parameters]: norm of the addends' mean."""


def addends(reader: Reader, chosen: Chosen, places: Indices) -> Addends:
    """Those of the parameters that have a site among `places`.

    Raises:
        SettingError: the run has no gradients from before their reduction.
    """
    wanted = set(places.tolist())
    factor = reductions_frame(reader, chosen)["factor"].to_numpy(np.float64)[:, None]
    every = addend_pairs(reader.meta.sites, "weight_gradient")
    pairs = np.array([pair for pair in every if wanted & {*pair}], np.int64).reshape(-1, 2)
    own, before, reduced, after = (
        found.astype(np.float64)
        for found in reader.read_all(
            [
                ("ranks", chosen.records, (slice(None), pairs[:, 0], L2)),
                ("ranks", chosen.records, (slice(None), pairs[:, 0], RMS)),
                ("scalars", chosen.records, (pairs[:, 1], L2)),
                ("scalars", chosen.records, (pairs[:, 1], RMS)),
            ]
        )
    )
    ranks = np.array(
        [
            [addends_of(reader, int(one), attempt) for one in pairs[:, 0]]
            for attempt in chosen.attempts
        ]
    ).reshape(len(chosen), len(pairs))
    with np.errstate(all="ignore"):
        # A norm over a root mean square is the root of the number of elements.
        times = np.fmax.reduce((own / before) ** 2, axis=1, initial=0) / (reduced / after) ** 2
        most = np.fmax.reduce(times, axis=1, initial=1, keepdims=True)
        micro_batches = np.rint(most, dtype=np.float64)
        squares = np.nansum(own**2, axis=1) / (ranks * micro_batches)
        squares[(~np.isnan(own)).sum(axis=1) != ranks] = np.nan
        mean = reduced / (factor * ranks * micro_batches)
    return Addends(
        places=pairs[:, 0],
        ranks=ranks,
        micro_batches=micro_batches,
        own=squares,
        reduced=reduced,
        mean=mean,
    )


def agreement_frame(reader: Reader, chosen: Chosen, places: Indices) -> pd.DataFrame:
    """One row a parameter and step, see `Run.gradient_agreement`.

    Raises:
        SettingError: the run has no gradients from before their reduction.
    """
    of = addends(reader, chosen, places)
    if not len(of.places) or not len(chosen):
        return pd.DataFrame(columns=AGREEMENT)
    largest, whose = reader.read_all(
        [
            ("spread", chosen.records, (of.places, L2, MOST)),
            ("spread", chosen.records, (of.places, L2, WHOSE)),
        ]
    )
    with np.errstate(all="ignore"):
        local = np.sqrt(of.own)
        agreement = of.mean / local
        beside = largest / np.sqrt(of.micro_batches) / local
    columns = {
        "step": np.repeat(chosen.steps, len(of.places)),
        "site": reader.labels(of.places) * len(chosen),
        "local": local.ravel(),
        "reduced": of.reduced.ravel(),
        "ranks": of.ranks.ravel(),
        "micro_batches": np.repeat(of.micro_batches, len(of.places)),
        "agreement": agreement.ravel(),
        "largest": beside.ravel(),
        "largest_rank": whose.ravel(),
    }
    return pd.DataFrame(columns, columns=AGREEMENT)


BATCH, HALF_LIFE = 1.0, 100.0
"""Samples of a micro-batch, and records after which one counts half, unless others are said."""


def noise_frame(
    reader: Reader, chosen: Chosen, places: Indices, *, batch: float, half_life: float
) -> pd.DataFrame:
    """One row a step, see `Run.noise_scale`.

    Raises:
        SettingError: an argument is no positive number; or the run has no gradients from before
            their reduction.
    """
    for name, value in (("batch", batch), ("half_life", half_life)):
        if not value > 0:
            raise SettingError(f"`{name}` must be a positive number, got {value}.")
    of = addends(reader, chosen, places)
    if not len(of.places):
        raise SettingError("No parameter of that name has gradients from before their reduction.")
    scale = np.nan_to_num(told(reader, LOSS, chosen), nan=1.0) ** 2
    count = (of.ranks * of.micro_batches)[:, 0]
    small, large = of.own.sum(axis=1) / scale, (of.mean**2).sum(axis=1) / scale
    with np.errstate(all="ignore"):
        alike = (of.ranks == of.ranks[:, :1]).all(axis=1)
        count = np.where(alike & (count > 1), count, np.nan)
        square = (count * large - small) / (count - 1)
        trace = batch * count * (small - large) / (count - 1)
    rows = np.column_stack([square, trace, _running_ratio(square, trace, half_life)])
    return pd.DataFrame(rows, index=pd.Index(chosen.steps, name="step"), columns=NOISE)


def _running_ratio(below: Floats, above: Floats, half_life: float) -> Floats:
    """float64 [n, 2]: the ratio of two means, up to each, and its standard error.

    Older ones weigh half as much every `half_life`; NaN counts for nothing. The error is that of a
    ratio estimator of independent pairs (Cochran, Sampling Techniques, 1977, 6.4), its weights
    those of the means.
    """
    keep = 0.5 ** (1 / half_life)
    found = np.full((len(below), 2), np.nan)
    sums, squares = np.zeros(3), np.zeros(4)
    for place, (x, y) in enumerate(zip(below.tolist(), above.tolist(), strict=True)):
        if math.isfinite(x) and math.isfinite(y):
            sums = keep * sums + (1.0, x, y)
            squares = keep**2 * squares + (1.0, x * x, x * y, y * y)
        weight, mean, _ = sums
        if weight and mean > 0:
            ratio = sums[2] / mean
            residual = squares[3] - 2 * ratio * squares[2] + ratio**2 * squares[1]
            independent = weight**2 / squares[0]
            spread = max(residual, 0.0) * independent / (independent - 1) if independent > 1 else 0
            found[place] = ratio, math.sqrt(spread) / mean if spread else math.nan
    return found
