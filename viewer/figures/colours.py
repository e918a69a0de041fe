"""The colours, one meaning each. Okabe and Ito's set, safe for colour-blind readers.

Magenta is reserved for what is not finite, and no ramp comes near it. "Not observed" is a hatch and
never a colour of a ramp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

INK = "#17212b"
MUTED = "#566370"
RULE = "#e4e8ec"
SURFACE = "#ffffff"

NONFINITE = "#d6006c"
ZERO = "#eceef1"
UNDEFINED = "#b9a98a"
HATCH = "#c3cad1"

NORMAL = "#2f7fb5"
OVERFLOW = "#d55e00"
SUBNORMAL = "#e69f00"
FLUSHED = "#7a6a9b"
ASIDE = "#8793a0"

RANK = "#7f97ad"
WORST = "#d55e00"
CHOSEN = "#17212b"

RAMP_STOPS = ("#f3f8f4", "#cbe6de", "#8fcdcb", "#4aa8bd", "#2a7cab", "#22548c", "#14264f")
"""Light to dark: the low end is nearly the page, so that what is large stands out."""
DIVERGING_STOPS = ("#8c3f00", "#d98a3d", "#f4d9b0", "#f7f8f8", "#b4d3e6", "#4a8fbd", "#123c6b")


def blend(stops: Sequence[str], size: int = 256) -> list[str]:
    """`size` colours through the stops, evenly spaced."""
    points = np.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in stops], float)
    at = np.linspace(0, len(stops) - 1, size)
    mixed = [np.interp(at, np.arange(len(stops)), points[:, channel]) for channel in range(3)]
    return [
        "#{:02x}{:02x}{:02x}".format(*(round(v) for v in rgb)) for rgb in zip(*mixed, strict=True)
    ]


RAMP = blend(RAMP_STOPS)
DIVERGING = blend(DIVERGING_STOPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Between which values the ramp runs."""

    low: float
    high: float
    diverging: bool = False
    """Whether zero is in the middle."""
    ranks: bool = False
    """Whether the values are ranks, of which none may look like nothing."""

    @property
    def palette(self) -> list[str]:
        """The ramp that belongs to these limits."""
        if self.ranks:
            return RAMP[64:]
        return DIVERGING if self.diverging else RAMP


def limits(values: NDArray[np.floating], *, diverging: bool = False) -> Limits:
    """Where nearly all finite values lie, with room above for what stands out.

    By quantiles, so that one spike does not wash out the rest; it is painted as the ramp's end.
    """
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Limits(low=0.0, high=1.0, diverging=diverging)
    low, high = (float(v) for v in np.quantile(finite, [0.02, 0.98]))
    if diverging:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    else:
        high = min(high + 0.6 * (high - low), float(finite.max()))
    if high - low < 1e-12 * max(abs(high), abs(low), 1e-30):
        low, high = low - 0.5, high + 0.5
    return Limits(low=low, high=high, diverging=diverging)


def stick(previous: Limits | None, new: Limits) -> Limits:
    """The previous limits until the values have clearly outgrown them; they widen and never shrink.

    Colours that change their meaning at every step cannot be read.
    """
    if previous is None or previous.diverging != new.diverging:
        return new
    slack = 0.1 * (previous.high - previous.low)
    if new.low >= previous.low - slack and new.high <= previous.high + slack:
        return previous
    return Limits(
        low=min(previous.low, new.low),
        high=max(previous.high, new.high),
        diverging=new.diverging,
        ranks=new.ranks,
    )
