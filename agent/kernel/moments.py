"""Moments of finite elements: of one chunk, and the merge of two, as `SketchTable` defines it."""

# The kernels take numba's typed values; their Python annotations would say nothing.
# An intrinsic's first parameter is numba's to give.
# pyright: basic, reportCallIssue=false

from __future__ import annotations

import math

import numpy as np

from ...sketch.table import ABS_MIN, L1, M2, M3, M4, MAX, MIN, PROJECTION, S8, SUM
from .compiling import LINE, compiled, reordered, sums_of_lines

NO_SMALLEST = np.int32(0x7FFFFFFF)
"""What stands for the smallest magnitude where all elements are zero."""
LOWEST, HIGHEST = -60, 120
"""Between magnitudes of these exponents eighth powers neither overflow nor vanish in float64."""


@compiled
def exponent(magnitude):
    """floor(log2) of a magnitude; -1200 for zero, as `sketch.table.scale_exponent`."""
    return math.frexp(magnitude)[1] - 1 if magnitude > 0.0 else -1200


@compiled
def float_of_key(key, word):
    """The float32 of an order-preserving key."""
    word.view(np.int32)[0] = key ^ ((key >> np.int32(31)) & np.int32(0x7FFFFFFF))
    return np.float64(word.view(np.float32)[0])


@reordered
def _plain_sum(values):
    total = 0.0
    for i in range(values.size):
        total += np.float64(values[i])
    return total


@reordered
def _few_sums(values, signs):
    """What `sums_of_lines` gives, of numbers that fill no line."""
    s1 = s2 = s3 = s4 = l1 = s8 = projection = 0.0
    for i in range(values.size):
        v = np.float64(values[i])
        projection += v * signs[i]
        l1 += abs(v)
        square = v * v
        s1 += v
        s2 += square
        s3 += square * v
        fourth = square * square
        s4 += fourth
        s8 += fourth * fourth
    return s1, s2, s3, s4, l1, s8, projection


@compiled
def _raw_sums(values, signs, ahead):
    """Σx, Σx², Σx³, Σx⁴, Σ|x|, Σx⁸, and Σ ±x with the signs: a tenth cheaper than about a pivot."""
    lines = values.size // LINE
    address, stride = ahead
    s = sums_of_lines(values.ctypes.data, signs.ctypes.data, lines, address, stride)
    if LINE * lines == values.size:
        return s
    t = _few_sums(values[LINE * lines :], signs[LINE * lines :])
    return (
        s[0] + t[0],
        s[1] + t[1],
        s[2] + t[2],
        s[3] + t[3],
        s[4] + t[4],
        s[5] + t[5],
        s[6] + t[6],
    )


@reordered
def _power_sums(values, signs, pivot, unit):
    """Σd, Σd², Σd³, Σd⁴ about the pivot, Σ|x|, Σ(x·unit)⁸, and Σ ±x with the signs."""
    s1 = s2 = s3 = s4 = l1 = s8 = projection = 0.0
    for i in range(values.size):
        v = np.float64(values[i])
        projection += v * signs[i]
        l1 += abs(v)
        d = v - pivot
        square = d * d
        s1 += d
        s2 += square
        s3 += square * d
        s4 += square * square
        u = v * unit
        u *= u
        u *= u
        s8 += u * u
    return s1, s2, s3, s4, l1, s8, projection


@compiled
def _from_sums(sums, n, pivot, moments):
    """The moments about the mean, of sums about a pivot."""
    s1, s2, s3, s4, moments[L1], moments[S8], moments[PROJECTION] = sums
    shift = s1 / n
    moments[SUM] = s1 + n * pivot
    moments[M2] = max(s2 - s1 * shift, 0.0)
    moments[M3] = s3 - 3 * shift * s2 + 2 * n * shift**3
    moments[M4] = max(s4 - 4 * shift * s3 + 6 * shift * shift * s2 - 3 * n * shift**4, 0.0)


@compiled
def chunk_moments(values, signs, extremes, before, n_before, ahead, word, moments):
    """The moments of one chunk of finite elements.

    Sums about zero are as good as those about the mean, to a few bits, where that is no larger than
    the standard deviation. Else the pivot is the mean of what came `before`, if that was as much,
    or that of the chunk itself.
    """
    n = values.size
    low, high, small = extremes
    moments[MIN], moments[MAX] = float_of_key(low, word), float_of_key(high, word)
    moments[ABS_MIN] = np.inf
    if small != NO_SMALLEST:
        moments[ABS_MIN] = float_of_key(np.int32(small + np.int32(1)), word)
    top = exponent(max(-moments[MIN], moments[MAX]))
    mean = before[SUM] / n_before if n_before else 0.0
    central = before[SUM] * mean <= before[M2]
    if central and (LOWEST <= top <= HIGHEST or small == NO_SMALLEST):
        sums = _raw_sums(values, signs, ahead)
        mean = sums[0] / n
        if 2 * sums[0] * mean <= sums[1]:
            _from_sums(sums, n, 0.0, moments)
            moments[S8] = math.ldexp(moments[S8], -8 * top) if top > -1200 else 0.0
            return
    elif n_before < n:
        mean = _plain_sum(values) / n
    unit = math.ldexp(1.0, -top) if top > -1200 else 1.0
    _from_sums(_power_sums(values, signs, mean, unit), n, mean, moments)


@compiled
def merge_moments(a, na, b, nb):
    """Merge the moments `b` of nb finite elements into `a` of na: the merge of `SketchTable`."""
    if nb == 0 and b[MAX] == -np.inf:
        return
    if na == 0 and a[MAX] == -np.inf:
        a[:] = b
        return
    d = b[SUM] / nb - a[SUM] / na if na and nb else 0.0
    n = np.float64(max(na + nb, 1))
    na, nb = np.float64(na), np.float64(nb)
    dn, weight = d / n, na * nb / n
    a[M4] += (
        b[M4]
        + d * dn * dn * d * weight * (na * na - na * nb + nb * nb)
        + 6 * dn * dn * (na * na * b[M2] + nb * nb * a[M2])
        + 4 * dn * (na * b[M3] - nb * a[M3])
    )
    a[M3] += b[M3] + d * dn * d * weight * (na - nb) + 3 * dn * (na * b[M2] - nb * a[M2])
    a[M2] += b[M2] + d * d * weight
    # A sentinel's extremes have no sums.
    mine, theirs = exponent(max(-a[MIN], a[MAX])), exponent(max(-b[MIN], b[MAX]))
    common = max(mine, theirs)
    a[S8] = math.ldexp(a[S8], 8 * (mine - common)) + math.ldexp(b[S8], 8 * (theirs - common))
    a[SUM] += b[SUM]
    a[L1] += b[L1]
    a[PROJECTION] += b[PROJECTION]
    a[MIN], a[MAX] = min(a[MIN], b[MIN]), max(a[MAX], b[MAX])
    a[ABS_MIN] = min(a[ABS_MIN], b[ABS_MIN])
