"""Sums over ranks beside their addends: whether a reduction kept what went into it.

Two kinds of pairs: each parameter's gradients before and after their reduction, which share a
factor that is not known; and what a row-parallel layer returns beside what its ranks added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..merge.merging import Merged
from ..sketch.conservation import common_factor, own_factor_residual, residual
from ..sketch.derive import MAIN
from ..sketch.labels import OF_VALUES
from ..sketch.table import COUNT, PROJECTION, SUM, UNSEEN, Floats
from ..store.record import SiteInfo, addend_pairs

WHOLE = 1e-3
"""A tensor that is so near to twice the others, up to as many times as there are ranks, or to such
a part of them, was added up wrongly; other factors are clipping by group of parameters."""
ROUNDINGS = 16
"""So many units in the last place a reduction may be off."""
FEW_ROUNDINGS = 4
"""Sums of gradients in bfloat16 over a few ranks; over more, twice the root of their number. Clean
ones over 2 and 4 ranks are off by 1 at most (10 tensors, 200 steps, FSDP2 and DDP), and chance
makes them grow as the root. With 16 a missing rank of 4 would be excused in every third tensor."""
LEAST_TOLERANCE = 1e-12
"""What sums of numbers in float64 are off by, for these sums are in float64, too."""
SEVERAL = 1.02
"""Square of the sum of all addends' norms, over the sum of their squares: that is one rank's alone
at 1, and here another has a hundredth of it."""
L2, NONFINITE = MAIN.index("l2"), MAIN.index("nonfinite")

EPS: Mapping[str, float] = {
    name: float(ml_dtypes.finfo(dtype).eps)
    for name, dtype in (
        ("float64", np.float64),
        ("float32", np.float32),
        ("float16", np.float16),
        ("bfloat16", ml_dtypes.bfloat16),
    )
}
"""By dtype: a unit in the last place of 1; of sums in others nothing is concluded."""


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Which rows of a record are a reduced tensor and its addends."""

    of: NDArray[np.intp]
    """The sites of the record that they are of."""
    addends: NDArray[np.intp]
    """intp [pairs]: rows of the addends."""
    reduced: NDArray[np.intp]
    """intp [pairs]: rows of what they were reduced to."""
    column: NDArray[np.intp]
    """intp [pairs]: the moment to compare. The projection; or the sum, where what was reduced is
    sparse, or cut into pieces whose elements are numbered from 0 each."""
    share: Floats
    """float64 [pairs]: see `residual`."""
    tolerance: Floats
    """float64 [pairs]: what rounding explains, be the reduction done in the dtype of either."""
    reduction: Floats
    """float64 [pairs]: what it explains where that is done in the dtype of what is reduced. The
    addends are sketched as they are, so what they were rounded from does not matter."""
    ranks: int
    """The most addends that a tensor has."""
    kind: str
    """Of what was reduced."""

    @classmethod
    def find(cls, merged: Merged, site: Callable[[int], SiteInfo], kind: str) -> Self:
        """Those of a record whose reduced tensors are of that kind."""
        infos = [site(index) for index in merged.sites.tolist()]
        every = addend_pairs(infos, kind)
        checked = [pair for pair in every if all(infos[row].checked for row in pair)]
        addends, reduced = np.array(checked, np.intp).reshape(-1, 2).T
        number = merged.addends(addends)
        share = number.max(initial=1) / np.maximum(number, 1)
        numbered = [_is_numbered(infos[own], infos[whole]) for own, whole in checked]
        ranks = int(number.max(initial=1))
        few = ranks if kind == "weight_gradient" else None
        tolerance = [max(_tolerance(infos[row], few) for row in pair) for pair in checked]
        reduction = [_tolerance(infos[whole], few) for _, whole in checked]
        return cls(
            merged.sites,
            addends,
            reduced,
            np.where(numbered, PROJECTION, SUM).astype(np.intp),
            share.astype(np.float64),
            np.asarray(tolerance, np.float64),
            np.asarray(reduction, np.float64),
            ranks,
            kind,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Linear numbers of reduced tensors and of their addends; float64 [pairs] each."""

    reduced: Floats
    added: Floats
    scale: Floats
    """Sum of the norms of all addends: what their rounding grows with."""
    factor: float
    off: Floats
    """See `residual`; NaN where it cannot be known."""
    several: NDArray[np.bool_]
    """bool [pairs]: whether several ranks have addends to speak of; that of one is not rounded."""

    @classmethod
    def of_gradients(cls, merged: Merged, pairs: Pairs, tolerance: Floats) -> Self:
        """Reduced gradients are the sums of the ranks' own times a factor that they tell.

        Args:
            tolerance: float64 [pairs]: what rounding explains.
        """
        reduced, added, scale, known, several = _linear(merged, pairs)
        full = known & (pairs.share == 1)
        factor = common_factor(reduced[full], added[full], scale[full])
        off = residual(reduced, added, scale, factor, pairs.share)
        # What scales some parameters alone scales all their sums alike.
        total, total_added = (
            merged.table.moments[rows, SUM] for rows in (pairs.reduced, pairs.addends)
        )
        own = own_factor_residual(reduced, added, total, total_added, scale)
        own = np.where(pairs.column == SUM, np.nan, own)  # one number alone
        with np.errstate(all="ignore"):
            times = np.abs(reduced / added / factor)
            times = np.maximum(times, 1 / times)
            twice = (np.abs(times - np.round(times)) < WHOLE) & (times < pairs.ranks + WHOLE)
        by_group = ~twice & (off > tolerance) & (own <= tolerance)
        if (by_group & known).any():  # then the common factor says nothing about others
            off = np.where(twice, off, np.where(np.isnan(own), np.nan, np.fmin(off, own)))
        return cls(reduced, added, scale, factor, np.where(known, off, np.nan), several)

    @classmethod
    def of_activations(cls, merged: Merged, pairs: Pairs) -> Self:
        """What a layer returns is the sum of what its ranks had, as it is."""
        reduced, added, scale, known, several = _linear(merged, pairs)
        counts = merged.table.counts[:, COUNT]
        known &= counts[pairs.addends] == counts[pairs.reduced]  # of every micro-batch both
        off = residual(reduced, added, scale, 1.0, np.ones(len(scale)))
        return cls(reduced, added, scale, 1.0, np.where(known, off, np.nan), several)


def _linear(
    merged: Merged, pairs: Pairs
) -> tuple[Floats, Floats, Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """Of the reduced, of the addends, their scale.

    And bool [pairs]: where these can be trusted, and where several addends are of some size.
    """
    observed, sites = merged.observed, len(merged.sites)
    place, numbers = observed.plan.place, observed.numbers.astype(np.float64)
    with np.errstate(all="ignore"):
        norms = np.nan_to_num(numbers[:, L2], nan=0.0, posinf=np.inf) * observed.held()
    scale = np.bincount(place, norms, sites)[pairs.addends].astype(np.float64)
    squares = np.bincount(place, norms * norms, sites)[pairs.addends]
    with np.errstate(all="ignore"):
        several = scale * scale > SEVERAL * squares
    spoilt = np.bincount(place[numbers[:, NONFINITE] > 0], minlength=sites) > 0
    known = np.isfinite(scale)
    # Of copies one is counted, and where they differ the others were added up as well.
    known &= ~np.isin(merged.sites[pairs.addends], [one.site for one in merged.divergences])
    for rows in (pairs.addends, pairs.reduced):
        known &= _is_whole(merged, rows) & ~spoilt[rows]
    moments = merged.table.moments
    reduced, added = moments[pairs.reduced, pairs.column], moments[pairs.addends, pairs.column]
    return reduced, added, scale, known, several


def _is_numbered(own: SiteInfo, whole: SiteInfo) -> bool:
    """Whether elements of the reduced tensor are numbered as those of its addends."""
    if whole.slot == OF_VALUES:
        return False
    axes = [axis for axis, placed in own.placement.items() if placed == "partial"]
    cut = any(whole.placement.get(axis) == "shard" for axis in axes)
    return not cut or whole.kind == "weight_gradient"


def _tolerance(info: SiteInfo, ranks: int | None) -> float:
    """What is off by rounding where sums over so many ranks are made in the dtype of a tensor."""
    roundings = ROUNDINGS
    if info.dtype == "bfloat16" and ranks is not None:  # float16 has subnormals, and needs more
        roundings = min(max(FEW_ROUNDINGS, 2 * ranks**0.5), ROUNDINGS)
    return max(LEAST_TOLERANCE, roundings * EPS.get(info.dtype, float("inf")))


def _is_whole(merged: Merged, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which rows hold every element of their tensor."""
    counts = merged.table.counts[rows]
    glanced = merged.table.take(rows).is_glance()
    return (counts[:, COUNT] > 0) & (counts[:, UNSEEN] == 0) & ~glanced
