"""By what gradients were multiplied: the loss scale, and the mean and clipping of a reduction."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..sketch.conservation import GRADIENT_SCALE as GRADIENT
from ..sketch.conservation import LOSS_SCALE as LOSS
from ..sketch.conservation import NO_FACTOR, common_factor, residual
from ..sketch.derive import DEGREE, MAIN
from ..sketch.distribution import SPREAD
from ..sketch.errors import SettingError
from ..sketch.table import BINS, COUNT, OVER, PROJECTION, UNDER, UNSEEN, Floats
from .reader import Reader
from .record import SiteInfo, addend_pairs
from .selection import COMPLETE, PARTIAL, UNMATCHED, Chosen, Indices

L2, NONFINITE, MAX = MAIN.index("l2"), MAIN.index("nonfinite"), SPREAD.index("max")


def without_scale(
    reader: Reader, found: NDArray[Any], statistic: str, chosen: Chosen, places: Indices
) -> NDArray[Any]:
    """[steps, sites] of a statistic, or [steps, ranks] of one site, without the loss scale.

    Raises:
        SettingError: the run kept no loss scale.
    """
    divisor = divisors(reader, chosen, places) ** DEGREE.get(statistic, 0)
    return (found / divisor).astype(found.dtype)


def main_without_scale(
    reader: Reader, found: NDArray[np.float32], chosen: Chosen, places: Indices
) -> NDArray[np.float32]:
    """float32 [steps, sites, main statistics] without the loss scale.

    Raises:
        SettingError: the run kept no loss scale.
    """
    degrees = np.array([DEGREE.get(name, 0) for name in MAIN])
    return (found / divisors(reader, chosen, places)[..., None] ** degrees).astype(np.float32)


def exponents_without_scale(
    reader: Reader,
    counts: NDArray[np.int64],
    histograms: NDArray[np.int64],
    chosen: Chosen,
    places: Indices,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Counts and histograms, int64 [steps, sites, …], without the loss scale.

    To divide by 2^n moves each bin by n, exactly; what leaves the bins is in under or over, and
    what was in these stays there. Where no loss scale was told nothing is known.

    Raises:
        SettingError: the run kept no loss scale, or one of them is no power of two.
    """
    scales = divisors(reader, chosen, places)
    mantissa, exponent = np.frexp(scales)
    known = np.isfinite(scales)
    if (wrong := np.argwhere(known & (mantissa != 0.5))).size:
        step, site = wrong[0]
        raise SettingError(
            f"The loss scale of step {chosen.steps[step]} is {scales[step, site]:g}: bins are "
            "powers of two, so histograms can be divided by a power of two alone. Choose other "
            "`steps`, leave `unscaled` out, or ask `scalar`."
        )
    counts, histograms = counts.copy(), histograms.copy()
    counts[~known], histograms[~known] = -1, 0
    for step, site in np.argwhere(known & (scales != 1)).tolist():
        by = int(exponent[step, site]) - 1
        moved, lost = _moved(histograms[step, site], by)
        histograms[step, site] = moved
        if counts[step, site, COUNT] >= 0:
            counts[step, site, UNDER if by > 0 else OVER] += lost
    return counts, histograms


def _moved(histogram: NDArray[np.int64], by: int) -> tuple[NDArray[np.int64], int]:
    """A histogram that many bins further down, and how many elements left it."""
    moved, by = np.zeros_like(histogram), int(np.clip(by, -BINS, BINS))
    if by >= 0:
        moved[: BINS - by] = histogram[by:]
    else:
        moved[-by:] = histogram[:by]
    return moved, int(histogram.sum() - moved.sum())


def divisors(reader: Reader, chosen: Chosen, places: Indices) -> Floats:
    """float64 [steps, sites]: by what the loss scale multiplied each tensor; NaN: not told.

    Raises:
        SettingError: the run kept no loss scale.
    """
    scales = {LOSS: told(reader, LOSS, chosen), GRADIENT: gradient_scale(reader, chosen)}
    if len(chosen) and np.isnan(scales[LOSS]).all():
        raise SettingError(
            "The run kept no loss scale: pass the GradScaler as observe(…, scaler=scaler), or tell "
            "your own with each step, as scope.step(loss_scale=1024)."
        )
    divisor = np.ones((len(chosen), len(places)))
    for column, site in enumerate(reader.sites(places)):
        name = scale_of(site)
        if name:
            divisor[:, column] = scales[name]
    return divisor


def scale_of(site: SiteInfo) -> str:
    """The training statistic by which a site's tensor is multiplied; empty for none."""
    match site.kind:
        case (
            "activation_gradient"
            | "input_gradient"
            | "local_input_gradient"
            | "local_weight_gradient"
        ):
            return LOSS
        case "tap" if site.slot.startswith("gradient"):
            return LOSS
        case "weight_gradient":
            return GRADIENT
        case _:
            return ""


def told(reader: Reader, name: str, chosen: Chosen) -> Floats:
    """float64 [steps]: a training statistic of the first rank that told it; NaN where none did."""
    if name not in reader.meta.training or not len(chosen):
        return np.full(len(chosen), np.nan)
    place = reader.meta.training.index(name)
    by_rank = reader.read("training", chosen.records, slice(None), place)
    first = np.argmax(~np.isnan(by_rank), axis=1)
    return by_rank[np.arange(len(by_rank)), first]


def gradient_scale(reader: Reader, chosen: Chosen) -> Floats:
    """float64 [steps]: by what the gradients of parameters are multiplied still."""
    return np.nan_to_num(told(reader, GRADIENT, chosen), nan=1.0)


def reductions_frame(reader: Reader, chosen: Chosen) -> pd.DataFrame:
    """One row a step, see `Run.reductions`.

    Raises:
        SettingError: the run has no gradients from before their reduction.
    """
    pairs = addend_pairs(reader.meta.sites, "weight_gradient")
    addends, reduced = np.array(pairs, np.int64).reshape(-1, 2).T
    if not len(addends):
        raise SettingError(
            "The run has no `local_weight_gradient` beside a `weight_gradient`: they are recorded "
            "where several ranks train with different samples."
        )
    both, count = np.append(addends, reduced), len(addends)
    projections, unseen, size, bad = reader.read_all(
        [
            ("moments", chosen.records, (both, PROJECTION)),
            ("counts", chosen.records, (both, UNSEEN)),
            ("spread", chosen.records, (addends, L2, MAX)),
            ("spread", chosen.records, (both, NONFINITE, MAX)),
        ]
    )
    facts = reader.facts()[chosen.records]
    unfit = (bad > 0) | (unseen > 0)
    other = (facts[:, COMPLETE] == 0) | (facts[:, PARTIAL] != 0) | (facts[:, UNMATCHED] != 0)
    unfit |= other[:, None]
    size = np.where(unfit[:, :count] | unfit[:, count:], np.nan, size.astype(np.float64))
    added, made = projections[:, :count], projections[:, count:]
    ranks = np.array([addends_of(reader, int(addends[0]), attempt) for attempt in chosen.attempts])
    size *= np.nan_to_num(ranks, nan=1.0)[:, None]  # at most what all addends come to
    factor = np.array([_factor(*step) for step in zip(made, added, size, strict=True)])
    loss = told(reader, LOSS, chosen)
    scale = np.nan_to_num(loss, nan=1.0) / gradient_scale(reader, chosen)
    return pd.DataFrame(
        {"factor": factor, "ranks": ranks, "loss_scale": loss, "clip": factor * ranks * scale},
        index=pd.Index(chosen.steps, name="step"),
    )


def _factor(reduced: Floats, added: Floats, scale: Floats) -> float:
    """The common factor of a step's reductions; NaN where half of them are none."""
    factor = common_factor(reduced, added, scale)
    off = residual(reduced, added, scale, factor, np.ones(len(scale)))
    known = off[~np.isnan(off)]
    return factor if len(known) and np.median(known) <= NO_FACTOR else float("nan")


def addends_of(reader: Reader, place: int, attempt: int) -> float:
    """How many ranks have an addend of a site; NaN if the attempt's mesh has other axes."""
    mesh = reader.meta.attempts[attempt].mesh
    placement = reader.meta.site(place, attempt).placement
    axes = [axis for axis, word in placement.items() if word == "partial"]
    if not mesh.keys() >= set(axes):
        return float("nan")
    return float(math.prod(mesh[axis] for axis in axes))
