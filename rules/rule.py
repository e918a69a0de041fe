"""What a rule is: a measurement of each site, and the bound that it may not pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..sketch.table import Floats
from .seen import Rows, Seen

Severity = Literal["error", "warning", "notice"]
"""`error`: the numbers are wrong, or soon will be. `warning`: something that nobody wants in most
runs. `notice`: worth knowing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What people are told of one finding."""

    text: str
    """A sentence: what was found, with its numbers."""
    ranks: tuple[int, ...] = ()
    """Those to blame; empty where all are, or nobody can know."""
    evidence: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers behind it, by name."""
    since: int | None = None
    """The step in which it began, where the rule knows better than that it was wrong since then."""
    value: float | None = None
    threshold: float | None = None
    """What people are shown, where it is not what was measured and the threshold of that."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Verdict:
    """What a rule measured in one record."""

    sites: Rows
    """intp [n]: index of each site that it looked at; -1 stands for the run as a whole."""
    value: Floats
    """float64 [n]: NaN where nothing can be said."""
    tell: Callable[[int], Told]
    """What to tell of an entry, by its place in these arrays."""
    threshold: Floats | None = None
    """float64 [n]: what `value` may be at most; None: what the rule says."""


class Memory:
    """What one rule remembers of each site: a few numbers, and nothing else.

    It is the only thing that a rule may keep from record to record, and as large as the run has
    sites.
    """

    def __init__(self) -> None:
        self._columns: dict[str, Floats] = {}

    def column(self, name: str, sites: int, start: float = np.nan) -> Floats:
        """float64 [at least sites]: a number of each site, to be changed in place.

        Args:
            sites: how many sites there are.
            start: what it is for a site that is new.
        """
        known = self._columns.get(name)
        if known is None or len(known) < sites:
            grown = np.full(max(sites, 64 if known is None else 2 * len(known)), start)
            if known is not None:
                grown[: len(known)] = known
            known = self._columns[name] = grown
        return known

    def table(self, name: str, sites: int, width: int) -> Floats:
        """float64 [at least sites, width]: some numbers of each site, 0 where it is new."""
        columns = self.column(name, sites * width, 0.0)
        return columns[: len(columns) // width * width].reshape(-1, width)


Measure = Callable[[Seen, Memory], Verdict | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of the watch.

    Args:
        name: as it stands in alerts and in settings.
        meaning: what it means when it fires, in plain words.
        advice: what to try.
        measure: gives a number for each site of a record, from the record and from what the rule
            remembers of the site; its verdict is None where it has nothing to say.
    """

    name: str
    severity: Severity
    meaning: str
    advice: str
    threshold: float
    """Above it a site is wrong …"""
    clear: float
    """… and right again when it is at most this."""
    records: int = 1
    """So many records in a row must be wrong before it is told …"""
    at_once: float = math.inf
    """… or one, if it is above this."""
    calm: int = 1
    """And so many right before it has ended."""
    alone: bool = False
    """Whether a record is judged by itself, without those before it: then one that a late rank has
    changed is judged again."""
    measure: Measure | None = None
    """None where verdicts come from elsewhere."""


def figures(number: float) -> str:
    """A number for people: three figures, without an exponent where it is of a common size."""
    return f"{number:,.0f}" if 100 <= abs(number) < 1e6 else f"{number:.3g}"


def of_rows(seen: Seen, rows: Rows, value: Floats, tell: Callable[[int], Told]) -> Verdict:
    """The verdict on some rows of a record.

    Args:
        value: float64 [rows of the record].
        tell: takes a row of the record.
    """
    return Verdict(
        sites=seen.record.sites[rows], value=value[rows], tell=lambda place: tell(int(rows[place]))
    )


def of_run(value: float, tell: Callable[[], Told]) -> Verdict:
    """The verdict on the run as a whole."""
    sites: NDArray[np.intp] = np.array([-1])
    return Verdict(sites=sites, value=np.array([value]), tell=lambda _: tell())
