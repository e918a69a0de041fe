"""Measuring tensors on an accelerator: plain torch operations into preallocated buffers.

Nothing is read back in forward or backward. All columns of a step lie in one flat buffer on the
device; at the step's end one asynchronous copy takes it to a pinned host buffer of a small ring, and
the agent's thread asks an event whether it has arrived. The arithmetic is that of `sketch.table`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ...sketch.elements import BLOCK, WITHIN
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
    SketchTable,
)
from ..steptable import StepTable
from .local import dtype_name

CHUNK = 1 << 22
"""Elements that are summarised at a time, to bound the temporaries: about 100 bytes an element."""
RING = 3
"""Host buffers that may be on their way."""
WORDS = len(COUNTS) + len(MOMENTS) + 1 + BINS
"""Eight-byte words of one row."""

_ROW = dict[str, torch.Tensor]


@dataclass(slots=True)
class Copy:
    """One step on its way to the host."""

    host: torch.Tensor
    ready: torch.cuda.Event | None
    rows: list[int]


class DeviceMeter:
    """Summarises tensors of one device; without a device of its own (the CPU) it serves as fallback."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._words = torch.zeros(0, dtype=torch.int64, device=device)
        self._capacity = 0
        self._touched: set[int] = set()
        self._hosts: list[torch.Tensor] = []
        self._within = torch.as_tensor(WITHIN.astype(np.int64), device=device)
        self._dropped = 0
        self.stale = 0

    def add(self, step: StepTable, row: int, tensor: torch.Tensor) -> None:
        """Queue the operations that merge `tensor` into its row on the device."""
        del step  # there is one buffer, and it belongs to the open step
        self._reserve(row + 1)
        flat = tensor.reshape(-1)
        for start in range(0, flat.numel(), CHUNK):
            leaf = _sketch(flat[start : start + CHUNK], start, self._within)
            self._merge(row, leaf)
        self._touched.add(row)

    def flush(self) -> None:
        """Nothing waits: every operation is queued on the producing stream."""

    barrier = settle = close = flush

    def send_home(self) -> Copy | None:
        """Start the step's one copy to the host and empty the device's buffer for the next step."""
        if not self._touched:
            return None
        host = self._host_buffer()
        if host is None:
            self._dropped += 1
        else:
            host.copy_(self._words, non_blocking=True)
        rows, self._touched = sorted(self._touched), set()
        self._clear()
        if host is None:
            return None
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
        return Copy(host, event, rows)

    def arrived(self, copy: Copy) -> bool:
        """Whether the copy can be read; asks, never waits."""
        return copy.ready is None or copy.ready.query()

    def receive(self, copy: Copy, step: StepTable) -> None:
        """Merge an arrived copy into the step's table and give its buffer back."""
        words = copy.host.numpy().reshape(-1)
        rows = np.array(copy.rows, np.intp)
        table = _table(words).take(rows)
        step.reserve(int(rows[-1]) + 1)
        step.table.merge_at(rows, table)
        step.present[rows] = True
        self._hosts.append(copy.host)

    @property
    def dropped(self) -> int:
        """Steps that were lost because all host buffers were on their way."""
        return self._dropped

    def _reserve(self, rows: int) -> None:
        if rows <= self._capacity:
            return
        old, old_rows = self._words, self._capacity
        self._capacity = max(rows, 2 * old_rows, 64)
        self._words = torch.zeros(self._capacity * WORDS, dtype=torch.int64, device=self._device)
        self._clear()
        if old_rows:
            for new, kept in zip(self._columns(), _columns(old, old_rows), strict=True):
                new[:old_rows] = kept
        pin = self._device.type == "cuda"
        self._hosts = [
            torch.empty(self._capacity * WORDS, dtype=torch.int64, pin_memory=pin) for _ in range(RING)
        ]

    def _host_buffer(self) -> torch.Tensor | None:
        return self._hosts.pop() if self._hosts else None

    def _columns(self) -> tuple[torch.Tensor, ...]:
        return _columns(self._words, self._capacity)

    def _clear(self) -> None:
        _, moments, _, _ = self._columns()
        self._words.zero_()
        moments[:, [MIN, ABS_MIN]] = torch.inf
        moments[:, MAX] = -torch.inf

    def _merge(self, row: int, leaf: _ROW) -> None:
        counts, moments, checksum, histogram = (column[row] for column in self._columns())
        moments.copy_(_merge_moments(_finite(counts), moments, _finite(leaf["counts"]), leaf["moments"]))
        counts += leaf["counts"]
        checksum += leaf["checksum"]
        histogram += leaf["histogram"]


def _columns(words: torch.Tensor, rows: int) -> tuple[torch.Tensor, ...]:
    """counts, moments, checksum and histogram of `rows` rows, as views of one flat buffer."""
    ends = np.cumsum([0, len(COUNTS), len(MOMENTS), 1, BINS]) * rows
    counts, moments, checksum, histogram = (
        words[begin:end] for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    )
    return (
        counts.view(rows, -1),
        moments.view(torch.float64).view(rows, -1),
        checksum,
        histogram.view(rows, -1),
    )


def _table(words: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> SketchTable:
    counts, moments, checksum, histogram = _columns(torch.from_numpy(words), len(words) // WORDS)
    return SketchTable(
        counts.numpy(), moments.numpy(), checksum.numpy().view(np.uint64), histogram.numpy()
    )


def _finite(counts: torch.Tensor) -> torch.Tensor:
    return (counts[COUNT] - counts[NAN] - counts[POS_INF] - counts[NEG_INF]).double()


def _sketch(x: torch.Tensor, start: int, within: torch.Tensor) -> _ROW:
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


def _merge_moments(
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
    """int64 [length]: `sketch.elements.element_hash`, on the device; `start` is a multiple of BLOCK."""
    blocks = torch.arange(start // BLOCK, (start + length - 1) // BLOCK + 1, device=within.device)
    z = blocks - 7046029254386353131  # 0x9E3779B97F4A7C15 as int64
    z = (z ^ _shift_right(z, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    z = (z ^ _shift_right(z, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    key = _shift_right(z ^ _shift_right(z, 31), 32)
    return (key[:, None] ^ within).reshape(-1)[:length]


def _shift_right(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
