"""The gradient noise scale, from squared norms of gradients of independent batches.

McCandlish, Kaplan, Amodei et al. 2018, "An Empirical Model of Large-Batch Training", section 2.2
and appendix A.1: for the mean gradient over B samples, E|G_B|² = |G|² + tr(Σ) / B, with G the
expected gradient and Σ the covariance of that of one sample; B_simple = tr(Σ) / |G|².
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...sketch.errors import SettingError
from ...sketch.table import Floats
from .named import Group, Named

ROUNDS = 20
"""Times that the weights of a fit are made from its variances: it settles after some five."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """|G|², tr(Σ) and the batch size at which they balance, each with its standard error.

    An error is NaN where some batch size was measured once only. All are NaN where a gradient had
    an element that is not finite; `squares` tells at which sizes.
    """

    b_noise: float
    """tr(Σ) / |G|², in samples; NaN where |G|² came out as not positive: the batches were too few,
    or too small, to tell the gradient from its noise."""
    b_noise_error: float
    """Standard error, to first order in the errors of both."""
    g_2: float
    """|G|²: squared norm of the expected gradient. Without bias, so that it may be below 0."""
    g_2_error: float
    trace_sigma: float
    """tr(Σ): variance of the gradient of one sample, summed over all weights."""
    trace_sigma_error: float
    batch_sizes: tuple[int, ...]
    """In samples, ascending."""
    squares: tuple[float, ...]
    """By batch size: mean of |G_B|² over its batches."""
    squares_error: tuple[float, ...]
    """And the standard error of that mean."""
    batches: tuple[int, ...]
    """How many there were of each size."""


def norm_of(gradient: Named[Any], across: Group | None) -> float:
    """‖g‖ of all tensors together: NaN where an element is not finite, as nothing is known then."""
    (norm,) = gradient.sketches("whole", across=across).strict_norms().values()
    return norm


def measured(
    norm: Callable[[int], float],
    *,
    batch_size: int,
    reduction: Literal["mean", "sum"],
    sizes: Sequence[int],
    rounds: int,
) -> NoiseScale:
    """The noise scale from gradients that are drawn for it.

    Args:
        norm: ‖g‖ of the sum of the gradients of so many fresh calls of a closure, as of `norm_of`.
        batch_size: samples a call.
        reduction: whether a call's gradient is the mean over its samples, or their sum.
        sizes: of batches, in calls.
        rounds: how many batches there are of the largest size.

    Raises:
        SettingError: a number is not positive, or there are fewer than two sizes.
    """
    counts = _counts(sizes)
    if batch_size < 1 or rounds < 1 or reduction not in ("mean", "sum"):
        raise SettingError(
            "`batch_size` and `rounds` must be at least 1 and `reduction` 'mean' or 'sum'; got "
            f"{batch_size}, {rounds}, {reduction!r}."
        )
    samples_a_call = 1 if reduction == "mean" else batch_size
    squares: dict[int, list[float]] = {}
    for calls in counts:
        batches = rounds * max(round((counts[-1] / calls) ** 0.5), 1)
        squares[calls * batch_size] = [
            (norm(calls) / (calls * samples_a_call)) ** 2 for _ in range(batches)
        ]
    return noise_scale_of(squares)


def noise_scale_of(squares: Mapping[int, Sequence[float]]) -> NoiseScale:
    """From |G_B|² of batches that have no sample in common, by batch size in samples.

    Of two sizes it solves for both unknowns; of more it fits a line in 1 / B, each size weighted
    with the inverse of its mean's variance. The errors follow from how the squares of each size
    spread, whatever the weights.

    Raises:
        SettingError: there are fewer than two sizes, or a size without a batch.
    """
    sizes = sorted(squares)
    if len(sizes) < 2 or sizes[0] < 1 or not all(len(squares[size]) for size in sizes):
        raise SettingError(
            "A noise scale takes batches of at least two different sizes, of 1 sample or more; "
            f"got { ({size: len(squares[size]) for size in sizes}) } batches by size."
        )
    batch = np.array(sizes, np.float64)
    numbers = np.array([len(squares[size]) for size in sizes])
    means = np.array([np.mean(squares[size]) for size in sizes], np.float64)
    variances = np.array(
        [np.var(squares[size], ddof=1) if len(squares[size]) > 1 else np.nan for size in sizes],
        np.float64,
    )
    (g_2, trace), covariance = _line(batch, means, variances, numbers)
    errors = np.sqrt(np.diag(covariance))
    ratio = trace / g_2 if g_2 > 0 else np.nan
    slope = np.array([-ratio, 1.0]) / g_2
    with np.errstate(invalid="ignore"):
        ratio_error = np.sqrt(slope @ covariance @ slope)
        squares_error = np.sqrt(variances / numbers)
    return NoiseScale(
        b_noise=float(ratio),
        b_noise_error=float(ratio_error),
        g_2=float(g_2),
        g_2_error=float(errors[0]),
        trace_sigma=float(trace),
        trace_sigma_error=float(errors[1]),
        batch_sizes=tuple(sizes),
        squares=tuple(means.tolist()),
        squares_error=tuple(squares_error.tolist()),
        batches=tuple(numbers.tolist()),
    )


def _counts(sizes: Sequence[int]) -> list[int]:
    """The different numbers of calls, ascending."""
    # Users without a type checker may pass anything, as the largest size alone.
    given: Any = sizes
    given = tuple(given) if isinstance(given, Iterable) else given
    if isinstance(given, tuple) and all(isinstance(size, Integral) for size in given):
        counts = sorted(set(given))
        if len(counts) > 1 and counts[0] > 0:
            return counts
    raise SettingError(
        f"`sizes` must be two or more different numbers of calls, as (1, 32); got {given!r}."
    )


def _line(
    batch: Floats, means: Floats, variances: Floats, numbers: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Intercept and slope over 1 / batch, and their covariance, float64 [2] and [2, 2]."""
    design = np.stack([np.ones_like(batch), 1 / batch], axis=1)
    roots = np.sqrt(numbers / _smooth(batch, variances, numbers))
    solve = np.linalg.pinv(design * roots[:, None]) * roots
    return solve @ means, (solve * (variances / numbers)) @ solve.T


def _smooth(batch: Floats, variances: Floats, numbers: NDArray[np.int64]) -> Floats:
    """Variances of |G_B|² as a / B + c / B², the form that they have for normal gradients.

    A sample's own variance would give batches that came out small too much weight. Fitted with
    errors in proportion to the variances, as those of samples are; as they are where a fit is not
    positive.
    """
    if np.isnan(variances).any():
        return 1 / batch
    scaled = variances * batch
    fitted = scaled.copy()
    design = np.stack([np.ones_like(batch), 1 / batch], axis=1)
    for _ in range(ROUNDS):
        if not (fitted > 0).all():
            return np.where(variances > 0, variances, np.finfo(np.float64).tiny)
        roots = np.sqrt(numbers) / fitted
        fitted = design @ (np.linalg.pinv(design * roots[:, None]) @ (scaled * roots))
    return fitted / batch
