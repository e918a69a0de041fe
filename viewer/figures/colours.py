"""The colours, one meaning each, in a light and a dark theme.

Okabe and Ito's set, safe for colour-blind readers. Magenta is reserved for what is not finite, pale
yellow for exact zero, and no ramp comes near them. "Not observed" is a hatch and never a colour of
a ramp. What does not stand out from one of the two grounds has a colour for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

NORMAL = "#2f7fb5"
OVERFLOW = "#d55e00"
SUBNORMAL = "#e69f00"
FLUSHED = "#7a6a9b"
ASIDE = "#8793a0"

BESIDE = ("#2ba36b", "#b5651d", "#9c2ee6")
"""Of what stands beside, after the ink: apart from each other and from the bars for colour-blind
eyes (CIE76 14 at least, with Machado's matrices), 3:1 against both grounds."""
DASHES = ("solid", "dashed", "dotted", "dashdot")
MARKERS = ("circle", "square", "triangle", "inverted_triangle")

RANK = "#7f97ad"
WORST = "#d55e00"

RAMP_STOPS = ("#f3f8f4", "#cbe6de", "#8fcdcb", "#4aa8bd", "#2a7cab", "#22548c", "#14264f")
"""Light to dark: the low end is nearly the page, so that what is large stands out."""
DIVERGING_STOPS = ("#8c3f00", "#d98a3d", "#f4d9b0", "#f7f8f8", "#b4d3e6", "#4a8fbd", "#123c6b")
DARK_RAMP_STOPS = ("#17232c", "#1a3a50", "#1d5a7c", "#2a80a4", "#4fabb6", "#9ad4c5", "#eaf6ea")
"""Dark to light, for the same reason."""
DARK_DIVERGING_STOPS = (
    "#f0a35e", "#b8692a", "#5f3b1f", "#222a31", "#1f4a68", "#3f86b5", "#a9d3ef",
)  # fmt: skip


def blend(stops: Sequence[str], size: int = 256) -> list[str]:
    """`size` colours through the stops, evenly spaced."""
    points = np.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in stops], float)
    at = np.linspace(0, len(stops) - 1, size)
    mixed = [np.interp(at, np.arange(len(stops)), points[:, channel]) for channel in range(3)]
    return [
        "#{:02x}{:02x}{:02x}".format(*(round(v) for v in rgb)) for rgb in zip(*mixed, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """The colours that depend on the ground they stand on."""

    name: str
    surface: str
    ink: str
    muted: str
    """Of what is said aside; 4.5:1 against the surface, as the ink."""
    rule: str
    nonfinite: str
    zero: str
    undefined: str
    """Observed, but without a number."""
    missing: str
    """Below the hatch."""
    hatch: str
    ramp: list[str]
    diverging: list[str]


LIGHT = Theme(
    name="light",
    surface="#ffffff",
    ink="#17212b",
    muted="#566370",
    rule="#e4e8ec",
    nonfinite="#d6006c",
    zero="#f2dc8c",
    undefined="#bfb196",
    missing="#f4f5f7",
    hatch="#c3cad1",
    ramp=blend(RAMP_STOPS),
    diverging=blend(DIVERGING_STOPS),
)
DARK = Theme(
    name="dark",
    surface="#161c23",
    ink="#e6ebf0",
    muted="#9aa7b4",
    rule="#2b343d",
    nonfinite="#e8207f",
    zero="#8a7520",
    undefined="#665d4f",
    missing="#1b222a",
    hatch="#4a5661",
    ramp=blend(DARK_RAMP_STOPS),
    diverging=blend(DARK_DIVERGING_STOPS),
)
THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Between which values the ramp runs."""

    low: float
    high: float
    diverging: bool = False
    """Whether zero is in the middle."""
    ranks: bool = False
    """Whether the values are ranks, of which none may look like nothing."""
    shading: bool = True
    """Whether there was a number to fit them to; without one they mean nothing."""
    theme: Theme = LIGHT

    @property
    def palette(self) -> list[str]:
        """The ramp that belongs to these limits."""
        if self.ranks:
            return self.theme.ramp[64:]
        return self.theme.diverging if self.diverging else self.theme.ramp


def limits(
    values: NDArray[np.floating], *, diverging: bool = False, theme: Theme = LIGHT
) -> Limits:
    """Where nearly all finite values lie, with room above for what stands out.

    By quantiles, so that one spike does not wash out the rest; it is painted as the ramp's end.
    """
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Limits(low=0.0, high=1.0, diverging=diverging, shading=False, theme=theme)
    low, high = (float(v) for v in np.quantile(finite, [0.02, 0.98]))
    if low == high:  # nearly all are one number: what is not is what there is to see
        low, high = float(finite.min()), float(finite.max())
    if diverging:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    else:
        high = min(high + 0.6 * (high - low), float(finite.max()))
    if low == high == 0.0:
        high = 1.0  # of shares and counts nothing is below
    if high - low < 1e-12 * max(abs(high), abs(low), 1e-30):
        low, high = low - 0.5, high + 0.5
    return Limits(low=low, high=high, diverging=diverging, theme=theme)


def ratio_limits(
    ratios: NDArray[np.floating], *, least: float, most: float = np.inf, theme: Theme = LIGHT
) -> Limits:
    """The same of log2 of ratios, with a reach that neither noise nor a blow-up sets.

    Args:
        ratios: log2 of them; NaN where there is none.
        least: the reach where all are nearer, so that noise is not magnified.
        most: the reach where some are further, so that the onset of a blow-up is seen.
        theme: of the ramp.
    """
    usual = limits(ratios, diverging=True, theme=theme)
    reach = float(np.clip(usual.high, least, most))
    return replace(usual, low=-reach, high=reach)


def stick(previous: Limits | None, new: Limits) -> Limits:
    """The previous limits until the values have clearly outgrown them; they widen and never shrink.

    Colours that change their meaning at every step cannot be read.
    """
    if previous is None or previous.diverging != new.diverging or not previous.shading:
        return new
    if not new.shading:
        return previous
    slack = 0.1 * (previous.high - previous.low)
    if new.low >= previous.low - slack and new.high <= previous.high + slack:
        return previous
    return replace(new, low=min(previous.low, new.low), high=max(previous.high, new.high))
