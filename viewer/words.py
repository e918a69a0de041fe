"""Numbers, ranks and times as people read them. Pure text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import floor, isfinite, isinf, isnan, log2
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..store.place import Place

VIEWS: Mapping[str, str] = {
    "merged": "merged over ranks",
    "max": "largest over ranks",
    "min": "smallest over ranks",
    "argmax": "which rank is largest",
    "argmin": "which rank is smallest",
}
"""Views that are no rank, and how they are called."""

ENDLESS = 2.0**128
"""A ratio of so much is one of a number to zero."""
LARGEST_COUNT = 1e15
"""Of elements or bytes nobody has more; 2^100 is a whole number, too."""
SUPERSCRIPT = str.maketrans("0123456789-.", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻·")


def view_name(view: str) -> str:
    """A view in words."""
    of_ranks = f"rank {view}" if view.isdigit() else f"ranks of {view}"
    return VIEWS.get(view, of_ranks)


def number(value: float) -> str:
    """Four significant digits; NaN and infinities by name."""
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "+∞" if value > 0 else "−∞"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3e}".replace("e-0", "e-").replace("e+0", "e+").replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def exact(value: float) -> str:
    """All digits of a whole number that people read as one, 65504; of others four."""
    return f"{value:.0f}" if value == floor(value) and 0 < value < 1e6 else number(value)


def count_or_number(value: float) -> str:
    """A whole number with thousands apart, unless it is as large as no count is; else `number`."""
    is_count = value.is_integer() and abs(value) < LARGEST_COUNT
    return thousands(int(value)) if is_count else number(value)


def power(exponent: float) -> str:
    """A power of two: 2⁻¹³, or 2⁻¹³·⁵ where the exponent is no integer."""
    rounded = round(exponent, 1) + 0.0  # which has no sign where it is zero
    text = f"{rounded:.0f}" if rounded == floor(rounded) else f"{rounded:.1f}"
    return "2" + text.translate(SUPERSCRIPT)


def as_power(value: float) -> str:
    """A positive number as a power of two."""
    return power(log2(value)) if value > 0 and isfinite(value) else number(value)


def ratio(value: float) -> str:
    """A ratio that is not negative, as what it does to a number: `× 3`, `÷ 40`, or `× ∞`.

    It is infinite beyond 2^128, the largest float32 over 1: the store has 2^-200 in place of 0.
    """
    if value < 1:
        return f"÷ {number(1 / value)}" if value > 1 / ENDLESS else "÷ ∞"
    return "× ∞" if value >= ENDLESS else f"× {number(value)}"


def share(part: float) -> str:
    """A part of a whole as a percentage, or in parts per million or billion."""
    if isnan(part):
        return "–"
    if part == 0:
        return "0 %"
    if part >= 0.9995:
        return "100 %" if part == 1 else ">99.9 %"
    if part >= 1e-4:
        return f"{part * 100:.{3 if part >= 0.995 else 2}g} %"
    return f"{part * 1e6:.2g} ppm" if part >= 1e-7 else f"{part * 1e9:.2g} ppb"


def ranks(numbers: Iterable[int]) -> str:
    """Ranks in runs: `0–2, 5`."""
    parts: list[list[int]] = []
    for rank in sorted(numbers):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in parts)


def rank_words(numbers: Sequence[int]) -> str:
    """`rank 2`, or `ranks 0–2, 5`."""
    return f"rank{'' if len(numbers) == 1 else 's'} {ranks(numbers)}"


def count(number: int, noun: str) -> str:
    """`1 site`, `24 sites`, with thousands apart."""
    return f"{thousands(number)} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int) -> str:
    """`a, b, c and 4 more`."""
    more = f" and {thousands(len(names) - most)} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def thousands(number: int) -> str:
    """`154 123`, which no line break parts."""
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def age(seconds: float) -> str:
    """How long ago, in one unit."""
    if seconds < 2:
        return "just now"
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // size)} {unit} ago"
    return f"{count(int(seconds // 86400), 'day')} ago"


def seconds(duration: float) -> str:
    """How long: `12 ms`, `2.1 s`, `3 min`."""
    if duration < 0.9995:
        return f"{duration * 1000:.3g} ms"
    if duration < 99.5:
        return f"{duration:.2g} s"
    return f"{duration / 60:.2g} min" if duration < 5970 else f"{duration / 3600:.3g} h"


def site_name(label: str) -> str:
    """A site in words: `blocks.0.up (weight gradient)`."""
    kind, _, name = label.partition(":")
    return f"{name} ({kind.replace('_', ' ')})"


def steps(first: int, last: int) -> str:
    """`step 40`, or `steps 40–47`."""
    return f"step {first}" if first == last else f"steps {first}–{last}"


def span(first: int, last: int, end: int) -> str:
    """Since when, and until when if it is over: `from step 40`, or `from step 40 to 47`.

    Args:
        first, last: the first and the last step in which it was so.
        end: the last that was observed.
    """
    if last >= end:
        return f"from step {first}"
    return f"at step {first}" if first == last else f"from step {first} to {last}"


def shorten(name: str, length: int) -> str:
    """The end of a name, which tells it from its neighbours, within `length` characters."""
    return name if len(name) <= length else "…" + name[-(length - 1) :]


def place(folder: Place) -> str:
    """Where runs lie, by its last two names: enough to tell one store from another."""
    text = str(folder.absolute() if isinstance(folder, Path) else folder)
    return shorten("/".join(text.split("/")[-2:]), 40)
