"""The counts of `sketch.quantities` in plain torch operations, for any device.

As in the CPU's kernel |x| is looked at as the bits of a float64. Nothing here reads a value back to
the host, or waits for it; what is counted in a step lies in one flat buffer on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from ...sketch.quantities import (
    EDGE,
    FIRST_BLOCK_EXPONENT,
    INSIDE,
    LOST,
    NONZERO,
    SMALLEST_NORMAL,
    BlockExponents,
    CastCounts,
    FineExponents,
    Quantity,
)
from ...sketch.table import FIRST_EXPONENT
from ..reading import Counted
from ..steptable import StepTable

MANTISSA, BIAS = 52, 1023
"""Of float64: stored bits of the significand, and what the exponent's field adds."""
EXPONENT = 0x7FF << MANTISSA
CHUNK = 1 << 20
"""Elements that are counted at a time: their scratch takes some 50 MiB."""


@dataclass(slots=True)
class CountsHome:
    """What was counted in one step, on its way to the host."""

    host: torch.Tensor
    places: dict[int, tuple[int, tuple[int, ...]]]
    """By index of the quantity: where its counts begin, and their shape."""


class Counters:
    """What is counted of the step that is open, on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._words = torch.zeros(0, dtype=torch.int64, device=device)
        self._starts: dict[int, int] = {}
        self._touched: dict[int, tuple[int, ...]] = {}
        self._used = 0
        self._hosts: list[torch.Tensor] = []

    def add(self, counted: Counted, tensor: torch.Tensor, copies: int) -> None:
        """Queue the counts of a contiguous tensor."""
        for index, quantity in counted:
            size = math.prod(quantity.shape)
            start = self._place(index, size)
            counts = counts_of(quantity, tensor)
            self._words[start : start + size] += counts * copies if copies > 1 else counts
            self._touched[index] = quantity.shape

    def send_home(self) -> CountsHome | None:
        """Start the copy to the host, and empty the buffer for the next step."""
        if not self._touched:
            return None
        hosts = [host for host in self._hosts if len(host) == len(self._words)]
        host = hosts.pop() if hosts else self._new_host()
        self._hosts = hosts  # those that are too short by now are let go
        host.copy_(self._words, non_blocking=True)
        self._words.zero_()
        places = {index: (self._starts[index], shape) for index, shape in self._touched.items()}
        self._touched = {}
        return CountsHome(host, places)

    def receive(self, home: CountsHome, step: StepTable) -> None:
        """Add what has arrived to the step, and give its buffer back."""
        words = home.host.numpy()
        for index, (start, shape) in home.places.items():
            step.count(index, words[start : start + math.prod(shape)].reshape(shape))
        self._hosts.append(home.host)

    def forget(self) -> None:
        """Drop what was counted in this step and not sent home."""
        if self._touched:
            self._words.zero_()
            self._touched = {}

    def _place(self, index: int, size: int) -> int:
        if index not in self._starts:
            self._starts[index] = self._used
            self._used += size
        if self._used > len(self._words):
            with torch.inference_mode(False):  # else what is made there could be changed only there
                longer = torch.zeros(
                    max(self._used, 2 * len(self._words)), dtype=torch.int64, device=self._device
                )
                longer[: len(self._words)] = self._words
                self._words = longer
        return self._starts[index]

    def _new_host(self) -> torch.Tensor:
        pin = self._device.type == "cuda"
        with torch.inference_mode(False):
            return torch.empty(len(self._words), dtype=torch.int64, device="cpu", pin_memory=pin)


def counts_of(quantity: Quantity, tensor: torch.Tensor) -> torch.Tensor:
    """int64 [numbers]: what `quantity.count` counts of a contiguous tensor, flat."""
    total = torch.zeros(math.prod(quantity.shape), dtype=torch.int64, device=tensor.device)
    match quantity:
        case CastCounts():
            for part in _chunks(tensor):
                total += _casts(quantity, _magnitudes(part))
        case FineExponents():
            for part in _chunks(tensor):
                bits = _magnitudes(part).view(torch.int64)
                total += _filed(bits, bits > 0, FIRST_EXPONENT, quantity)
        case BlockExponents():
            for band in _bands(tensor, quantity.rows):
                total += _beside(_magnitudes(band), quantity)
    return total


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    return iter(tensor.reshape(-1).split(CHUNK))


def _bands(tensor: torch.Tensor, rows: int) -> Iterator[torch.Tensor]:
    """Matrices of whole rows of blocks, of no more elements than a chunk if one such row allows."""
    high, wide = (1, 1, *tensor.shape)[-2:]
    if not tensor.numel():
        return
    matrices = tensor.reshape(-1, high, wide)
    if high % rows == 0:  # so that no block would reach into the next matrix
        matrices = matrices.reshape(1, -1, wide)
    step = max(CHUNK // (rows * wide), 1) * rows
    for matrix in matrices:
        yield from matrix.split(step)


def _magnitudes(x: torch.Tensor) -> torch.Tensor:
    """float64: |x|, 0 where that is not finite; always a copy."""
    return torch.nan_to_num(x.double().abs(), 0.0, 0.0, 0.0)


def _casts(quantity: CastCounts, magnitude: torch.Tensor) -> torch.Tensor:
    over, zero, subnormal = quantity.thresholds
    some = magnitude > 0
    found = {
        LOST["overflow"]: magnitude >= over,
        LOST["underflow"]: some & (magnitude < zero),
        LOST["subnormal"]: some & (magnitude < subnormal),
        NONZERO: some,
    }
    return torch.stack([torch.count_nonzero(found[place]) for place in range(NONZERO + 1)])


def _beside(magnitude: torch.Tensor, quantity: BlockExponents) -> torch.Tensor:
    """The counts of a matrix beside the scales of its blocks."""
    magnitude = torch.where(magnitude < SMALLEST_NORMAL, 0.0, magnitude)
    rows, columns = quantity.rows, quantity.columns
    padded = pad(magnitude, (0, -magnitude.shape[1] % columns, 0, -magnitude.shape[0] % rows))
    blocks = padded.view(padded.shape[0] // rows, rows, -1, columns)
    scale = blocks.amax(dim=(1, 3), keepdim=True)
    if quantity.scale == "amax":
        bits = (blocks / scale).view(torch.int64)
    else:
        power = (scale.view(torch.int64) & EXPONENT) - (BIAS << MANTISSA)
        bits = blocks.view(torch.int64) - power
    return _filed(bits, blocks > 0, FIRST_BLOCK_EXPONENT, quantity)


def _filed(
    bits: torch.Tensor, some: torch.Tensor, first: int, quantity: FineExponents | BlockExponents
) -> torch.Tensor:
    """Count numbers, where there are some; `first` is the exponent of row 1."""
    parts, rows = 1 << quantity.bits, quantity.shape[0]
    rest = MANTISSA - quantity.bits
    place = (bits >> rest) - ((BIAS + first - 1) << quantity.bits)
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
