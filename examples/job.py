"""What the demo and its ranks agree on: how large the job is, and how they tell of progress."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The shape of a GPT and of its batches."""

    layers: int
    heads: int
    width: int
    context: int
    """Positions that it sees at once."""
    samples: int
    """Of one rank in one step."""
    symbols: int = 256
    """Text is read byte by byte."""


SIZES: Mapping[str, Size] = {
    "tiny": Size(layers=2, heads=2, width=32, context=32, samples=4),
    "small": Size(layers=6, heads=4, width=128, context=128, samples=4),
}


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """One step of training; the first rank writes it as a line of JSON."""

    step: int
    steps: int
    """How many there will be."""
    loss: float | None
    """Mean over the ranks; None where it is not finite."""
    updated: bool
    """Whether the weights were updated: not where a gradient is not finite."""


def finite(number: float) -> float | None:
    """The number, or None: JSON knows neither NaN nor infinity."""
    return number if math.isfinite(number) else None
