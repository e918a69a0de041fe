"""Whether a reduction kept what went into it: a check of sums alone, without any communication.

A projection Σ ±x is linear. So that of a reduced gradient must be the sum of those of the ranks'
own gradients, times a factor that all gradients of a step share: 1 / ranks where they are averaged,
times what gradients were clipped by, over the loss scale.
"""

from __future__ import annotations

import numpy as np

from .table import Floats

LOSS_SCALE, GRADIENT_SCALE = "loss_scale", "gradient_scale"
"""Training statistics: by what backward's gradients are multiplied; and those of parameters, where
a fused optimizer divides by it itself."""
LEAST = 3
"""Of fewer tensors a common factor cannot be told from a wrong one."""
NO_FACTOR = 0.05
"""Where half of all reductions are off by so much, they are none: to round to fp8 is less, and of
ten tensors that were not reduced half are off by twice as much."""
LEAST_PROJECTION = 0.05
"""Of the addends' size: from a smaller projection a tensor's own factor is not known."""


def common_factor(reduced: Floats, added: Floats, scale: Floats) -> float:
    """The factor from sums of addends to reduced tensors that most tensors share.

    The median of the ratios, each weighted by how exactly it is known, up to 1: plain sums may be
    many times their size. NaN for fewer than `LEAST`.

    Args:
        reduced: float64 [tensors]: projection of the reduced tensor.
        added: float64 [tensors]: sum of the projections of its addends.
        scale: float64 [tensors]: sum of the norms of all addends.
    """
    with np.errstate(all="ignore"):
        ratio, weight = reduced / added, np.abs(added) / scale
    known = np.isfinite(ratio) & (weight > 0) & np.isfinite(weight)
    if np.count_nonzero(known) < LEAST:
        return float("nan")
    ratio, weight = ratio[known], np.minimum(weight[known], 1)
    order = np.argsort(ratio)
    reached = np.cumsum(weight[order])
    return float(ratio[order][np.searchsorted(reached, reached[-1] / 2)])


def residual(reduced: Floats, added: Floats, scale: Floats, factor: float, share: Floats) -> Floats:
    """float64 [tensors]: how far each is from the sum of its addends, in units of their size.

    A correct reduction leaves its rounding: some units in the last place of the dtype that it is
    done in. One that is missing, done twice, or of other numbers leaves about 1.

    Args:
        reduced, added, scale: as of `common_factor`.
        factor: the common one.
        share: float64 [tensors]: of the most addends that a tensor has, over those that this one
            has. Experts have fewer, and are averaged over these, or over as many as the others.
    """
    with np.errstate(all="ignore"):
        off = [
            np.where(scale > 0, np.abs(reduced - f * added) / (np.abs(f) * scale), np.inf)
            for f in (factor, factor * share)
        ]
    least = np.fmin(*off)
    return np.where((scale == 0) & (reduced == 0), 0.0, least)


def own_factor_residual(
    reduced: Floats, added: Floats, total: Floats, total_added: Floats, scale: Floats
) -> Floats:
    """float64 [tensors]: how far each is from a multiple of its addends' sum, whatever multiple.

    Two linear numbers of a tensor, its projection and its plain sum, have the same factor if it is
    one; so has what was clipped by group of parameters.

    Args:
        reduced, added, scale: as of `residual`.
        total, total_added: float64 [tensors]: plain sums of the reduced tensor and of its addends.
    """
    with np.errstate(all="ignore"):
        own = reduced / added
        # The factor is as exact as the projection is large.
        known = 1 + np.abs(total_added / added)
        off = np.abs(total - own * total_added) / (np.abs(own) * scale * known)
        # The projection must be large enough to tell the factor.
        return np.where(np.abs(added) > LEAST_PROJECTION * scale, off, np.nan)
