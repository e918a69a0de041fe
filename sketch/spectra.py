"""What is read off series: off the spectrum of a covariance or a Gram matrix, or off values."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from .matrices import Form, Weighted, square
from .table import Floats

Statistic = Literal[
    "values",
    "largest",
    "trace",
    "stable_rank",
    "effective_rank",
    "condition",
    "condition20",
    "condition50",
    "condition80",
    "spectrum",
    "cosine",
    "ratio",
    "share_at_most",
]
"""What is read off a series: its `values` themselves, something of them, or of a spectrum."""
OF_VALUES = frozenset({"values", "cosine", "ratio", "share_at_most"})
LEAST_VALUES = {"cosine": 3, "ratio": 2}
"""How many values these are read off."""
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)

NOT_FINITE = "it has values that are not finite"
"""A reason, as those below: what follows "… is not known: "."""
OF_ZERO = {
    "cosine": "one of its two vectors is zero",
    "ratio": "what it is divided by is zero",
    "covariance": "its spectrum is zero: all samples are alike",
    "gram": "its spectrum is zero: all elements are zero",
}
"""Why what is read off finite values, or off the spectrum of a matrix, is not known."""

DEPTHS = {"condition20": 0.2, "condition50": 0.5, "condition80": 0.8}
"""Beside which of the spectrum's numbers, as a share of them all, the largest is set."""


def spectrum(form: Form, size: int, part: Weighted) -> tuple[Floats, str]:
    """The spectrum of a matrix, largest first, and why it is not known, or nothing.

    Of a covariance the eigenvalues of the unbiased estimate (divided by n - 1); of a Gram matrix
    the singular values of what it was made of. Eigenvalues that are below the rounding of the
    largest, size * 2^-52 times that, are zero.

    Returns:
        float64 [size]; all NaN where there is a reason.
    """
    weight, array = part
    unknown = np.full(size, np.nan)
    if not np.isfinite(array).all():
        return unknown, NOT_FINITE
    if form == "covariance" and weight < 2:
        return unknown, f"a covariance needs two samples, and there is {weight:g}"
    triangle = array[size:] / (weight - 1) if form == "covariance" else array
    try:
        found = np.linalg.eigvalsh(square(triangle, size))[::-1]
    except np.linalg.LinAlgError as error:
        return unknown, f"the decomposition failed: {error}"
    found = np.where(found > size * np.finfo(np.float64).eps * found[0], found, 0.0)
    return (np.sqrt(found) if form == "gram" else found), ""


def width_of(statistic: Statistic, size: int) -> int:
    """How many numbers are read off a series of that size."""
    return size if statistic in ("values", "spectrum") else 1


def read_values(statistic: Statistic, values: Floats, bound: float) -> Floats:
    """float64 [1], or [size] for the `values` themselves.

    `cosine` is of two vectors by their products, v_0 / sqrt(v_1 v_2); `ratio` v_0 / v_1;
    `share_at_most` the share of values that are at most `bound`, NaN where one is NaN.
    """
    match statistic:
        case "cosine":
            return values[:1] / np.sqrt(values[1:2]) / np.sqrt(values[2:3])
        case "ratio":
            return values[:1] / values[1:2]
        case "share_at_most":
            share = np.mean(values <= bound, keepdims=True)
            return share if not np.isnan(values).any() else np.full(1, np.nan)
        case _:
            return values


def read(statistic: Statistic, found: Floats, form: Form) -> Floats:
    """float64 [1], or [size] for the whole `spectrum`.

    With s the spectrum: `largest` s_0; `trace` sum(s), of a Gram matrix sum(s^2); `stable_rank`
    the trace over s_0, of a Gram matrix over s_0^2 (Rudelson and Vershynin 2007);
    `effective_rank` exp(-sum(p log p)) with p = s / sum(s) (Roy and Vetterli 2007; RankMe, Garrido
    et al. 2023); `condition` s_0 over the last, `conditionP` over the one at P % of the spectrum.
    The condition is infinite where that is zero. All of it is NaN where s_0 is zero, but for the
    trace and s_0.
    """
    powers = found**2 if form == "gram" else found
    match statistic:
        case "spectrum":
            return found
        case "largest":
            return found[:1]
        case "trace":
            return powers.sum(keepdims=True)
        case _ if not found[0] > 0:
            return np.full(1, np.nan)
        case "stable_rank":
            return powers.sum(keepdims=True) / powers[0]
        case "effective_rank":
            share = found[found > 0] / found.sum()
            return np.exp(-(share * np.log(share)).sum(keepdims=True))
        case _:
            return _condition(statistic, found)


def why_unknown(statistic: Statistic, form: Form, array: Floats, read_off: Floats) -> str:
    """Why some of what was read off is NaN; nothing where none is.

    Args:
        array: the values, or a spectrum.
    """
    if not np.isnan(read_off).any():
        return ""
    if not np.isfinite(array).all():
        return NOT_FINITE
    return OF_ZERO.get(statistic if form == "values" else form, "")


def _condition(statistic: Statistic, found: Floats) -> Floats:
    depth = DEPTHS.get(statistic)
    place = len(found) - 1 if depth is None else int(depth * len(found))
    return found[:1] / found[place] if found[place] > 0 else np.full(1, np.inf)
