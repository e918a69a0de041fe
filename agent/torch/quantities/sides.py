"""Over which side of a matrix its Gram matrix is taken."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch

from .quantity import Quantity
from .rows import rows_of


class Side(NamedTuple):
    """A matrix [..., features], turned so that the Gram matrix of its rows is the smaller."""

    matrix: torch.Tensor
    is_turned: bool
    """Whether its samples have become its features."""


def of_samples(quantity: Quantity, matrix: torch.Tensor) -> Side:
    """Over the features, which ranks add up, as long as they are within the limit.

    Raises:
        ValueError: both sides are beyond it.
    """
    features, rows = matrix.shape[-1], rows_of(matrix)
    if features <= quantity.limit:
        return Side(matrix, is_turned=False)
    if quantity.either_side and rows <= quantity.limit:
        return Side(matrix.reshape(rows, features).T, is_turned=True)
    raise _too_large(quantity, rows, features)


def of_weight(quantity: Quantity, matrix: torch.Tensor, cuts: Collection[int | None]) -> Side:
    """Over that side for which the pieces of a weight add up; of a whole one over the smaller.

    Args:
        cuts: the axes along which the weight is cut.

    Raises:
        ValueError: that side is beyond the limit.
    """
    rows, columns = rows_of(matrix), matrix.shape[-1]
    is_whole = not cuts
    turned = quantity.either_side and (rows < columns if is_whole else 0 not in cuts)
    if (rows if turned else columns) > quantity.limit:
        raise _too_large(quantity, rows, columns)
    return Side(matrix.reshape(rows, columns).T if turned else matrix, is_turned=turned)


def _too_large(quantity: Quantity, rows: int, columns: int) -> ValueError:
    return ValueError(
        f"a matrix of {rows} x {columns} is beyond its limit of {quantity.limit}; write "
        f"{quantity.name}(limit=…) for more"
    )
