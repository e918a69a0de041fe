"""What one series of a step comes to over micro-batches, on its device, in float64.

The law is that of `sketch.matrices`, by which ranks are merged.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import torch

from ....sketch.matrices import Merge
from .rows import chunks, rows_of

BLOCKS = 4
"""Columns of blocks into which a matrix is cut, so that little below its diagonal is computed."""
LEAST_BLOCK = 64
"""Features of a block at least."""


class Accumulator(Protocol):
    """Takes what is computed of each micro-batch."""

    @property
    def weight(self) -> float:
        """Samples so far; known without a look at the device."""
        ...

    def add(self, computed: torch.Tensor, weight: float) -> None:
        """Take what was computed of so many samples."""
        ...

    def values(self) -> torch.Tensor:
        """float64 [n], as `sketch.matrices.length_of` says."""
        ...


class Values:
    """Values of micro-batches, merged as a series says."""

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._so_far: torch.Tensor | None = None
        self.weight = 0.0

    def add(self, computed: torch.Tensor, weight: float) -> None:
        """Take a number or a vector."""
        arrived, before = computed.to(torch.float64, copy=True).reshape(-1), self._so_far
        whole = self.weight + weight
        if before is None:
            self._so_far = arrived
        elif self._merge == "sum":
            before += arrived
        elif self._merge == "mean":
            before += (arrived - before) * (weight / whole if whole else 0.5)
        elif self._merge == "minimum":
            self._so_far = torch.minimum(before, arrived)
        else:
            self._so_far = torch.maximum(before, arrived)
        self.weight = whole

    def values(self) -> torch.Tensor:
        """float64 [size]."""
        if self._so_far is None:
            return torch.empty(0, dtype=torch.float64)
        return self._so_far


class Gram:
    """The sum of x x^T over rows."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.weight = 0.0
        self._matrix = torch.zeros(size, size, dtype=torch.float64, device=device)

    def add(self, computed: torch.Tensor, weight: float) -> None:
        """Take [..., features]."""
        for rows in chunks(computed):
            _add_products(self._matrix, rows)
        self.weight += weight

    def values(self) -> torch.Tensor:
        """float64: the upper triangle row by row."""
        return _triangle(self._matrix)


class Covariance:
    """Means, and the sum of (x - mean)(x - mean)^T over rows; Chan, Golub and LeVeque (1979)."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.weight = 0.0
        self._mean = torch.zeros(size, dtype=torch.float64, device=device)
        self._matrix = torch.zeros(size, size, dtype=torch.float64, device=device)

    def add(self, computed: torch.Tensor, weight: float) -> None:
        """Take [..., features]; each row is a sample."""
        for rows in chunks(computed):
            self._add_rows(rows)

    def values(self) -> torch.Tensor:
        """float64: the means, then the upper triangle row by row."""
        return torch.cat([self._mean, _triangle(self._matrix)])

    def _add_rows(self, rows: torch.Tensor) -> None:
        count = rows_of(rows)
        if not count:
            return
        mean = rows.mean(0)
        rows -= mean
        _add_products(self._matrix, rows)
        whole = self.weight + count
        apart = mean - self._mean
        if self.weight:
            self._matrix.addr_(apart, apart, alpha=self.weight * count / whole)
        self._mean += apart * (count / whole)
        self.weight = whole


def _add_products(matrix: torch.Tensor, rows: torch.Tensor) -> None:
    """Add x^T x to the upper triangle, and to some of what lies below it."""
    features = rows.shape[1]
    width = max(LEAST_BLOCK, -(-features // BLOCKS))
    for first in range(0, features, width):
        last = min(first + width, features)
        matrix[:last, first:last].addmm_(rows[:, :last].T, rows[:, first:last])


def _triangle(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.reshape(-1).index_select(0, _places(matrix.shape[0], matrix.device))


@lru_cache(maxsize=16)
def _places(size: int, device: torch.device) -> torch.Tensor:
    """Where an upper triangle lies in a matrix, row by row."""
    rows, columns = torch.triu_indices(size, size, device=device)
    return rows * size + columns
