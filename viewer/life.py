"""The exponents of one site over its whole life as data: ready to be painted.

The store sums histograms of neighbouring steps; here they become shares, laid on a regular step
axis. A bin that holds a single element is seen: nothing is rounded away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from . import words
from .columns import EMPTY, MISSING, NONFINITE, NUMBER, between, lay_out, span_of
from .grid import Grid

if TYPE_CHECKING:
    from ..store.query import Run

TOP = ("over", "≥ 2¹²⁸")
BOTTOM = (("under", "< 2⁻¹⁴⁹"), ("zero", "zero"))
BAD = ("nan", "pos_inf", "neg_inf")
LEAST_BINS = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Life:
    """Shares of elements by exponent and step."""

    site: str
    """Its label."""
    counts: NDArray[np.int64]
    """int64 [bins, columns]: how many elements have each exponent, from the lowest bin up."""
    total: NDArray[np.int64]
    """int64 [columns]: all elements, those without a bin among them."""
    grid: Grid
    """Rows from above: not finite, over, the bins downwards, under, zero; `shade` is log2 share."""
    high: int
    """The exponent of the highest bin."""
    low: int
    """The exponent of the lowest bin."""
    first_bin: int
    """The row of the highest bin."""

    @property
    def exponents(self) -> NDArray[np.int64]:
        """int64 [bins]: those of the bins, ascending."""
        return np.arange(self.low, self.high + 1)

    @property
    def share(self) -> NDArray[np.float32]:
        """float32 [bins, columns]: part of all elements of the column; NaN where not observed."""
        total = np.where(self.total > 0, self.total, np.nan)
        return (self.counts / total).astype(np.float32)

    @property
    def nonfinite(self) -> NDArray[np.bool_]:
        """bool [columns]: whether any element was not finite."""
        return self.grid.state[0] == NONFINITE

    def row_of(self, exponent: float) -> float:
        """Where on the axis of rows a power of two lies, between its neighbours."""
        return self.first_bin + self.high + 1 - exponent


def load_life(
    run: Run,
    *,
    site: str,
    recorded: NDArray[np.int64],
    steps: tuple[float, float] | None,
    width: int,
) -> Life | None:
    """The exponents of a site over steps; None where it was never sketched there.

    Args:
        run: an open run.
        site: its label.
        recorded: the steps that may have a sketch.
        steps: the visible ones; None for all.
        width: columns at most.
    """
    span = span_of(between(recorded, steps))
    found = run.exponents(sites=[site], steps=span, width=width)
    if not found["observed"].values.any():
        return None
    names = (TOP[0], *(name for name, _ in BOTTOM), *BAD)
    return assemble(
        site,
        exponents=np.asarray(found["exponent"].values, np.int64),
        counts=found["count"].values[:, 0].T,
        total=found["total"].values[:, 0],
        aside={name: found[name].values[:, 0] for name in names},
        first=np.asarray(found["step"].values, np.int64),
        last=np.asarray(found["last_step"].values, np.int64),
        width=width,
    )


def assemble(
    site: str,
    *,
    exponents: NDArray[np.int64],
    counts: NDArray[np.int64],
    total: NDArray[np.int64],
    aside: Mapping[str, NDArray[np.int64]],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    width: int,
) -> Life:
    """Lay columns on a regular step axis, and add up those that share one.

    Args:
        site: its label.
        exponents: int64 [bins], ascending, without a gap.
        counts: int64 [bins, columns].
        total: int64 [columns]: all elements, those without a bin among them; 0: not observed.
        aside: int64 [columns] of what is in no bin, by name; what is not there is 0.
        first, last: int64 [columns]: the steps of each.
        width: columns at most.
    """
    left, stride, held = lay_out(first, last, width)
    nothing = np.zeros(len(first), np.int64)
    beside = {name: aside.get(name, nothing) for name in (TOP[0], *dict(BOTTOM), *BAD)}
    if held is not None:
        counts, total = _sums(counts, held), _sums(total[None], held)[0]
        beside = {name: _sums(one[None], held)[0] for name, one in beside.items()}
        first = np.array([first[a[0]] if len(a) else -1 for a in held], np.int64)
        last = np.array([last[a[-1]] if len(a) else -1 for a in held], np.int64)
    filled = np.flatnonzero(counts.any(axis=1))
    middle = int(np.searchsorted(exponents, 0))
    low, high = (int(filled[0]), int(filled[-1])) if filled.size else (middle, middle)
    low = max(min(low, high + 1 - LEAST_BINS), 0)
    grid, first_bin = _rows(counts[low : high + 1], total, beside, exponents[low : high + 1])
    return Life(
        site=site,
        counts=counts[low : high + 1],
        total=total,
        grid=replace(grid, left=left, stride=stride, first=first, last=last),
        high=int(exponents[high]),
        low=int(exponents[low]),
        first_bin=first_bin,
    )


def _sums(values: NDArray[np.int64], held: list[NDArray[np.intp]]) -> NDArray[np.int64]:
    """int64 [rows, columns]: the sums over what each column holds."""
    return np.stack([values[:, span].sum(axis=1) for span in held], axis=1)


def _rows(
    counts: NDArray[np.int64],
    total: NDArray[np.int64],
    aside: Mapping[str, NDArray[np.int64]],
    exponents: NDArray[np.int64],
) -> tuple[Grid, int]:
    """The picture's rows from above, and which of them is the highest bin."""
    bad = np.sum([aside[name] for name in BAD], axis=0)
    top = [TOP] if aside[TOP[0]].any() else []
    bottom = [one for one in BOTTOM if one[0] == "zero" or aside[one[0]].any()]
    rows = np.concatenate(
        [bad[None], *(aside[name][None] for name, _ in top), counts[::-1]]
        + [aside[name][None] for name, _ in bottom]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        shade = np.log2(rows / total).astype(np.float32)
    state = np.full(rows.shape, NUMBER, np.uint8)
    state[rows == 0] = EMPTY
    state[0][bad > 0] = NONFINITE
    state[:, total == 0] = MISSING
    shade[rows == 0] = np.nan
    bins = [words.power(int(exponent)) for exponent in exponents[::-1]]
    names = ["NaN, ±∞", *(name for _, name in top), *bins, *(name for _, name in bottom)]
    nowhere = np.empty(0, np.int64)
    grid = Grid(
        shade=shade,
        state=state,
        left=0.0,
        stride=1.0,
        first=nowhere,
        last=nowhere,
        row_sites=[[name] for name in names],
        names=names,
        logarithmic=True,
        signed=False,
    )
    return grid, 1 + len(top)


def describe(life: Life | None) -> str:
    """It in one sentence, for those who do not see it."""
    if life is None:
        return "No histogram of it has been recorded here."
    grid = life.grid
    held = (grid.state == NUMBER).any(axis=0)
    steps = words.steps(int(grid.first[grid.first >= 0].min()), int(grid.last.max()))
    text = f"{steps}: no element is in a bin"
    if life.counts.any():
        text = f"{steps}: elements between {words.power(life.low)} and {words.power(life.high + 1)}"
    bins = grid.state[life.first_bin : life.first_bin + life.high - life.low + 1] == NUMBER
    ends = [_span(life, bins[:, at]) for at in np.flatnonzero(held)[[0, -1]]] if held.any() else []
    if len(ends) == 2 and all(ends):
        text += f"; at first {ends[0]}, at last {ends[1]}"
    bad = grid.state[0] == NONFINITE
    if bad.any():
        text += f"; not finite {grid.span(bad[None])}"
    return text + "."


def _span(life: Life, filled: NDArray[np.bool_]) -> str:
    rows = np.flatnonzero(filled)
    if not rows.size:
        return ""
    return (
        f"{words.power(life.high - int(rows[-1]))} to {words.power(life.high + 1 - int(rows[0]))}"
    )
