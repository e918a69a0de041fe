"""The counts of `sketch.exact_counts` in plain torch operations, for any device.

As in the CPU's kernel |x| is looked at as the bits of a float64. Nothing here reads a value back to
the host, or waits for it; what is counted in a step lies in one flat buffer on the device.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from ...sketch.exact_counts import (
    EDGE,
    FIRST_BLOCK_EXPONENT,
    INSIDE,
    LOST,
    NONZERO,
    SMALLEST_NORMAL,
    BlockExponents,
    CastCounts,
    ExactCount,
    FineExponents,
)
from ...sketch.table import FIRST_EXPONENT
from ..sitebook import Counted
from ..steptable import StepTable

MANTISSA, BIAS = 52, 1023
"""Of float64: stored bits of the significand, and what the exponent's field adds."""
EXPONENT = 0x7FF << MANTISSA
CHUNK = 1 << 20
"""Elements that are counted at a time: their scratch takes some 50 MiB."""


@dataclass(frozen=True, slots=True)
class ToCount:
    """What is to be counted of a tensor."""

    tensor: torch.Tensor
    """As matrices in C order, whatever their strides: blocks lie along the last two axes."""
    copies: int
    """How often each of its elements stands in the tensor that was seen."""
    what: Counted

    @classmethod
    def of(cls, piece: torch.Tensor, what: Counted) -> ToCount:
        """Of a local tensor, without a copy; a batch of equal matrices is counted as one."""
        copies = 1
        for axis in range(piece.dim() - 2):
            if piece.stride(axis) == 0 and piece.size(axis) > 1:
                copies *= piece.size(axis)
                piece = piece.narrow(axis, 0, 1)
        return cls(piece, copies, what)


@dataclass(slots=True)
class CountsHome:
    """What was counted in one step, on its way to the host."""

    host: torch.Tensor
    places: dict[int, Place]
    """By index of the exact count."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the counts of an exact count lie, and of which row they are."""

    row: int
    start: int
    shape: tuple[int, ...]


class Counters:
    """What is counted of the step that is open, on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._words = torch.zeros(0, dtype=torch.int64, device=device)
        self._places: dict[int, Place] = {}
        self._touched: set[int] = set()
        self._used = 0
        self._hosts = deque[torch.Tensor]()

    def add(self, row: int, to_count: ToCount) -> None:
        """Queue the counts of a tensor."""
        tensor = to_count.tensor.contiguous()
        for index, exact_count in to_count.what:
            place = self._place(row, index, exact_count)
            counts = counts_of(exact_count, tensor)
            target = self._words[place.start : place.start + len(counts)]
            target += counts * to_count.copies if to_count.copies > 1 else counts
            self._touched.add(index)

    def send_home(self) -> CountsHome | None:
        """Start the copy to the host, and empty the buffer for the next step."""
        if not self._touched:
            return None
        host = None
        while self._hosts and (host is None or len(host) != len(self._words)):
            host = self._hosts.popleft()  # those that are too short by now are let go
        if host is None or len(host) != len(self._words):
            host = self._new_host()
        host.copy_(self._words, non_blocking=True)
        home = CountsHome(host, {index: self._places[index] for index in self._touched})
        self.forget()
        return home

    def receive(self, home: CountsHome, step: StepTable, rows: Collection[int]) -> None:
        """Add what has arrived of these rows to the step, and give its buffer back."""
        words = home.host.numpy()
        for index, place in home.places.items():
            if place.row in rows:
                numbers = words[place.start : place.start + math.prod(place.shape)]
                step.count(index, numbers.reshape(place.shape))
        self._hosts.append(home.host)

    def forget(self) -> None:
        """Empty the buffer for the next step."""
        if self._touched:
            self._words.zero_()
            self._touched = set()

    def _place(self, row: int, index: int, exact_count: ExactCount) -> Place:
        place = self._places.get(index)
        if place is None:
            place = self._places[index] = Place(row, self._used, exact_count.shape)
            self._used += math.prod(exact_count.shape)
        if self._used > len(self._words):
            self._lengthen()
        return place

    def _lengthen(self) -> None:
        old, length = self._words, max(self._used, 2 * len(self._words))
        with torch.inference_mode(False):  # else what is made there could be changed only there
            self._words = torch.zeros(length, dtype=torch.int64, device=self._device)
            self._words[: len(old)] = old
        if self._device.type == "cuda":  # it may have been made on another stream
            old.record_stream(torch.cuda.current_stream(self._device))

    def _new_host(self) -> torch.Tensor:
        pin = self._device.type == "cuda"
        with torch.inference_mode(False):
            return torch.empty(len(self._words), dtype=torch.int64, device="cpu", pin_memory=pin)


def counts_of(exact_count: ExactCount, tensor: torch.Tensor) -> torch.Tensor:
    """int64 [numbers]: what `exact_count.count` counts of a contiguous tensor, flat."""
    total = torch.zeros(math.prod(exact_count.shape), dtype=torch.int64, device=tensor.device)
    match exact_count:
        case CastCounts():
            for part in _chunks(tensor):
                total += _casts(exact_count, _magnitudes(part))
        case FineExponents():
            for part in _chunks(tensor):
                bits = _magnitudes(part).view(torch.int64)
                total += _filed(bits, bits > 0, FIRST_EXPONENT, exact_count)
        case BlockExponents():
            for band in _bands(tensor, exact_count.rows, exact_count.columns):
                total += _beside(_magnitudes(band), exact_count)
    return total


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    return iter(tensor.reshape(-1).split(CHUNK))


def _bands(tensor: torch.Tensor, rows: int, columns: int) -> Iterator[torch.Tensor]:
    """Batches of matrices of whole blocks, of about a chunk of elements each.

    Only at the end of a matrix blocks are smaller.
    """
    high, wide = (1, 1, *tensor.shape)[-2:]
    if not tensor.numel():
        return
    matrices = tensor.reshape(-1, high, wide)
    if high % rows == 0:  # so that no block would reach into the next matrix
        matrices = matrices.reshape(1, -1, wide)
    for stripe in matrices.split(max(CHUNK // (rows * columns), 1) * columns, dim=2):
        for band in stripe.split(max(CHUNK // (rows * stripe.shape[2]), 1) * rows, dim=1):
            yield from band.split(max(CHUNK // (band.shape[1] * band.shape[2]), 1))


def _magnitudes(x: torch.Tensor) -> torch.Tensor:
    """float64: |x|, 0 where that is not finite; always a copy."""
    return torch.nan_to_num(x.double().abs(), 0.0, 0.0, 0.0)


def _casts(exact_count: CastCounts, magnitude: torch.Tensor) -> torch.Tensor:
    over, zero, subnormal = exact_count.thresholds
    some = magnitude > 0
    found = {
        LOST["overflow"]: magnitude >= over,
        LOST["underflow"]: some & (magnitude < zero),
        LOST["subnormal"]: some & (magnitude < subnormal),
        NONZERO: some,
    }
    return torch.stack([torch.count_nonzero(found[place]) for place in range(NONZERO + 1)])


def _beside(magnitude: torch.Tensor, exact_count: BlockExponents) -> torch.Tensor:
    """The counts of a batch of matrices beside the scales of their blocks."""
    magnitude = torch.where(magnitude < SMALLEST_NORMAL, 0.0, magnitude)
    rows, columns = exact_count.rows, exact_count.columns
    padded = pad(magnitude, (0, -magnitude.shape[2] % columns, 0, -magnitude.shape[1] % rows))
    batch, high, wide = padded.shape
    blocks = padded.view(batch, high // rows, rows, wide // columns, columns)
    scale = blocks.amax(dim=(2, 4), keepdim=True)
    if exact_count.scale == "amax":
        bits = (blocks / scale).view(torch.int64)
    else:
        power = (scale.view(torch.int64) & EXPONENT) - (BIAS << MANTISSA)
        bits = blocks.view(torch.int64) - power
    return _filed(bits, blocks > 0, FIRST_BLOCK_EXPONENT, exact_count)


def _filed(
    bits: torch.Tensor, some: torch.Tensor, first: int, exact_count: FineExponents | BlockExponents
) -> torch.Tensor:
    """Count numbers, where there are some; `first` is the exponent of row 1."""
    parts, rows = 1 << exact_count.bits, exact_count.shape[0]
    rest = MANTISSA - exact_count.bits
    place = (bits >> rest) - ((BIAS + first - 1) << exact_count.bits)
    edge = torch.where(bits & ((1 << rest) - 1) == 0, EDGE, INSIDE)
    filed = 2 * place + edge
    filed = torch.where(place < parts, INSIDE, filed)
    last = 2 * (rows - 1) * parts + INSIDE
    filed = torch.where(place >= rows * parts, last, filed)
    nowhere = 2 * rows * parts
    filed = torch.where(some, filed, nowhere).reshape(-1)
    counted = torch.zeros(nowhere + 1, dtype=torch.int64, device=bits.device)
    one = torch.ones(1, dtype=torch.int64, device=bits.device)
    counted.index_add_(0, filed, one.expand(len(filed)))
    return counted[:nowhere]
