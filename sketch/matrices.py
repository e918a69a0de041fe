"""Second moments of several features at once: what two sets of samples come to together.

A covariance is one array of float64: the means of its features, then the upper triangle of
sum((x - mean)(x - mean)^T), row by row. A Gram matrix is the upper triangle of sum(x x^T) alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .table import Floats

Form = Literal["values", "covariance", "gram"]
"""What an array of a series holds."""
Merge = Literal["mean", "sum", "minimum", "maximum"]
"""How `values` of different samples become one."""

MAX_SIZE = 4096
"""Features of a matrix that travels, whose triangle takes 64 MiB then; or values of a series."""
MAX_QUANTITY_NAME = 128


class Weighted(NamedTuple):
    """An array of a series, and how many samples it is of."""

    weight: float
    array: Floats


def length_of(form: Form, size: int) -> int:
    """How many numbers an array of that form has."""
    triangle = size * (size + 1) // 2
    return {"values": size, "covariance": size + triangle, "gram": triangle}[form]


def merged(form: Form, merge: Merge, parts: Iterable[Weighted]) -> Weighted:
    """What different samples come to together, folded in the order given; at least one part.

    Covariances as Chan, Golub and LeVeque (1979), which loses nothing where means are far beyond
    the spread.
    """
    first, *others = parts
    whole = first
    for part in others:
        whole = _joined(form, merge, whole, part)
    return whole


def square(triangle: Floats, size: int) -> Floats:
    """float64 [size, size], symmetric, of its upper triangle row by row."""
    matrix = np.empty((size, size))
    rows, columns = _places(size)
    matrix[rows, columns] = triangle
    matrix[columns, rows] = triangle
    return matrix


def _joined(form: Form, merge: Merge, one: Weighted, other: Weighted) -> Weighted:
    weight = one.weight + other.weight
    if form == "covariance":
        return Weighted(weight, _joined_covariance(one, other))
    if form == "gram" or merge == "sum":
        return Weighted(weight, one.array + other.array)
    if merge == "mean":
        share = other.weight / weight if weight else 0.5
        return Weighted(weight, one.array + (other.array - one.array) * share)
    extreme = np.minimum if merge == "minimum" else np.maximum
    return Weighted(weight, extreme(one.array, other.array))


def _joined_covariance(one: Weighted, other: Weighted) -> Floats:
    weight = one.weight + other.weight
    if not weight:
        return one.array
    size = _features(len(one.array))
    apart = other.array[:size] - one.array[:size]
    rows, columns = _places(size)
    between = apart[rows] * apart[columns] * (one.weight * other.weight / weight)
    whole = one.array + other.array
    whole[:size] = one.array[:size] + apart * (other.weight / weight)
    whole[size:] += between
    return whole


def _features(length: int) -> int:
    """Of how many features a covariance of so many numbers is: size + size * (size + 1) / 2."""
    return round((np.sqrt(9 + 8 * length) - 3) / 2)


@lru_cache(maxsize=4)
def _places(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of an upper triangle, row by row."""
    return np.triu_indices(size)
