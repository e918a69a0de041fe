"""Sketches in plain torch operations, for any device: the fallback of the engine.

The arithmetic is that of `sketch.reference` and `sketch.table`, in float64 on the device; nothing
here reads a value back to the host.
"""

from __future__ import annotations

import torch

from ...sketch.elements import BLOCK
from ...sketch.formats import dtype_named, smallest_normal
from ...sketch.table import (
    ABS_MIN,
    BINS,
    COUNT,
    COUNTS,
    FIRST_EXPONENT,
    L1,
    LAST_EXPONENT,
    M2,
    M3,
    M4,
    MAX,
    MIN,
    MOMENTS,
    NAN,
    NEG_INF,
    NEGATIVE,
    OVER,
    POS_INF,
    PROJECTION,
    S8,
    SUBNORMAL,
    SUM,
    UNDER,
    ZERO,
)
from .local import dtype_name

Row = dict[str, torch.Tensor]
"""The columns of one row: counts, moments, checksum, histogram."""


def finite_count(counts: torch.Tensor) -> torch.Tensor:
    """float64 scalar: how many elements of a row are finite."""
    return (counts[COUNT] - counts[NAN] - counts[POS_INF] - counts[NEG_INF]).double()


def sketch_chunk(x: torch.Tensor, start: int, within: torch.Tensor) -> Row:
    """The sketch of one chunk, as tensors on its device."""
    values = x.double()
    finite = values.isfinite()
    values = torch.where(finite, values, 0.0)
    magnitude = values.abs()
    nonzero = magnitude > 0
    # frexp of float64 is exact for every narrower dtype, whatever the flush mode of the device
    exponent = torch.frexp(magnitude)[1].long() - 1
    inside = (exponent >= FIRST_EXPONENT) & (exponent <= LAST_EXPONENT) & nonzero
    where = torch.where(inside, exponent - FIRST_EXPONENT, BINS)
    histogram = torch.zeros(BINS + 1, dtype=torch.int64, device=x.device)
    histogram.scatter_add_(0, where, torch.ones_like(where))
    keys = _keys(start, x.numel(), within)
    raw = x.double() if x.element_size() == 1 else x
    counted = {
        COUNT: torch.ones_like(finite),
        NAN: raw.isnan(),
        POS_INF: raw == torch.inf,
        NEG_INF: raw == -torch.inf,
        ZERO: finite & ~nonzero,
        NEGATIVE: values < 0,
        SUBNORMAL: nonzero & (magnitude < smallest_normal(dtype_named(dtype_name(x)))),
        UNDER: nonzero & (exponent < FIRST_EXPONENT),
        OVER: nonzero & (exponent > LAST_EXPONENT),
    }
    return {
        "counts": torch.stack([counted[i].sum() for i in range(len(COUNTS))]),
        "moments": _moments(values, magnitude, finite, nonzero, keys),
        "checksum": (_bits(x) * (keys | 1)).sum(),
        "histogram": histogram[:BINS],
    }


def _moments(
    values: torch.Tensor,
    magnitude: torch.Tensor,
    finite: torch.Tensor,
    nonzero: torch.Tensor,
    keys: torch.Tensor,
) -> torch.Tensor:
    n = finite.sum().clamp(min=1)
    total = values.sum()
    central = torch.where(finite, values - total / n, 0.0)
    square = central * central
    largest = magnitude.max()
    shift = -_scale_exponent(largest)
    half = shift // 2  # in two steps: float64's subnormals need more than one factor can hold
    scaled = values * torch.exp2(half.double()) * torch.exp2((shift - half).double())
    sums = {
        SUM: total,
        L1: magnitude.sum(),
        M2: square.sum(),
        M3: (square * central).sum(),
        M4: (square * square).sum(),
        S8: (scaled**8).sum(),
        PROJECTION: torch.where(keys >= 1 << 31, -values, values).sum(),
        MIN: torch.where(finite, values, torch.inf).min(),
        MAX: torch.where(finite, values, -torch.inf).max(),
        ABS_MIN: torch.where(nonzero, magnitude, torch.inf).min(),
    }
    return torch.stack([sums[i] for i in range(len(MOMENTS))])


def _scale_exponent(magnitude: torch.Tensor) -> torch.Tensor:
    """As `sketch.table.scale_exponent`."""
    return torch.where(magnitude > 0, torch.frexp(magnitude)[1] - 1, -1200)


def merge_moments(
    na: torch.Tensor, a: torch.Tensor, nb: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """The merge of `SketchTable` for one row, on the device."""
    n = (na + nb).clamp(min=1)
    d = b[SUM] / nb.clamp(min=1) - a[SUM] / na.clamp(min=1)
    d = torch.where((na > 0) & (nb > 0), d, 0.0)
    dn, weight = d / n, na * nb / n
    fourth = d * dn * dn * d * weight * (na * na - na * nb + nb * nb)
    fourth = fourth + 6 * dn * dn * (na * na * b[M2] + nb * nb * a[M2])
    third = d * dn * d * weight * (na - nb) + 3 * dn * (na * b[M2] - nb * a[M2])
    mine = _scale_exponent(torch.where(na > 0, torch.maximum(-a[MIN], a[MAX]), 0.0))
    theirs = _scale_exponent(torch.where(nb > 0, torch.maximum(-b[MIN], b[MAX]), 0.0))
    common = torch.maximum(mine, theirs)
    eighth = _shifted(a[S8], mine - common) + _shifted(b[S8], theirs - common)
    merged = {
        SUM: a[SUM] + b[SUM],
        L1: a[L1] + b[L1],
        M2: a[M2] + b[M2] + d * d * weight,
        M3: a[M3] + b[M3] + third,
        M4: a[M4] + b[M4] + fourth + 4 * dn * (na * b[M3] - nb * a[M3]),
        S8: eighth,
        PROJECTION: a[PROJECTION] + b[PROJECTION],
        MIN: torch.minimum(a[MIN], b[MIN]),
        MAX: torch.maximum(a[MAX], b[MAX]),
        ABS_MIN: torch.minimum(a[ABS_MIN], b[ABS_MIN]),
    }
    return torch.stack([merged[i] for i in range(len(MOMENTS))])


def _shifted(s8: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """s8 · 2^(8·exponents), for exponents <= 0 of any size."""
    return s8 * torch.exp2((8 * exponents).clamp(min=-1022).double())


def _bits(x: torch.Tensor) -> torch.Tensor:
    """The raw bits of each element, zero-extended to int64."""
    width = x.element_size()
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    bits = x.contiguous().view(integer).long()
    return bits if width == 8 else bits & ((1 << (8 * width)) - 1)


def _keys(start: int, length: int, within: torch.Tensor) -> torch.Tensor:
    """int64 [length]: `sketch.elements.element_hash` on the device; BLOCK divides `start`."""
    blocks = torch.arange(start // BLOCK, (start + length - 1) // BLOCK + 1, device=within.device)
    z = blocks - 7046029254386353131  # 0x9E3779B97F4A7C15 as int64
    z = (z ^ _shift_right(z, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    z = (z ^ _shift_right(z, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    key = _shift_right(z ^ _shift_right(z, 31), 32)
    return (key[:, None] ^ within).reshape(-1)[:length]


def _shift_right(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
