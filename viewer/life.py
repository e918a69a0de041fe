"""The whole life of one site as data: which exponents its elements had, over steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from . import words
from .columns import lay_out
from .spectrum import NOT_FINITE

if TYPE_CHECKING:
    from ..store.query import Run


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Life:
    """Shares of elements by exponent, on a regular step axis."""

    site: str
    exponents: NDArray[np.int64]
    """int64 [rows]: from the first to the last bin that ever holds anything."""
    share: NDArray[np.float32]
    """float32 [rows, columns]: part of all elements of the column; NaN where not observed."""
    nonfinite: NDArray[np.bool_]
    """bool [columns]: whether any element was not finite."""
    left: float
    """Where the first column begins, in steps; a recorded step lies in the middle of its cell."""
    stride: float
    """Width of a column, in steps."""
    first: NDArray[np.int64]
    """int64 [columns]: the first observed step in the column, -1 where there is none."""
    last: NDArray[np.int64]
    """int64 [columns]: the last observed step in the column, -1 where there is none."""

    @property
    def right(self) -> float:
        """Where the last column ends, in steps."""
        return self.left + self.stride * len(self.first)


def load_life(run: Run, *, site: str, steps: slice | None = None, width: int) -> Life:
    """The exponents of a site over the steps in which it was sketched, at most `width` columns.

    Neighbouring steps that share a column are added up.
    """
    found = run.exponents(sites=[site], steps=steps, width=width).isel(site=0)
    found = found.isel(step=np.flatnonzero(found["observed"].values))
    wrong = sum(np.asarray(found[name].values, np.int64) for name in NOT_FINITE)
    return assemble_life(
        site,
        exponents=np.asarray(found["exponent"].values, np.int64),
        counts=np.asarray(found["count"].transpose("step", "exponent").values, np.int64),
        totals=np.asarray(found["total"].values, np.int64),
        nonfinite=np.asarray(wrong, np.int64) > 0,
        first=np.asarray(found["step"].values, np.int64),
        last=np.asarray(found["last_step"].values, np.int64),
        width=width,
    )


def assemble_life(
    site: str,
    *,
    exponents: NDArray[np.int64],
    counts: NDArray[np.int64],
    totals: NDArray[np.int64],
    nonfinite: NDArray[np.bool_],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    width: int,
) -> Life:
    """Lay columns that were observed on a regular axis, and leave gaps open.

    Args:
        site: its label.
        exponents: int64 [bins], ascending.
        counts: int64 [columns, bins].
        totals: int64 [columns]: all elements, those without a bin among them.
        nonfinite: bool [columns].
        first, last: int64 [columns]: the steps of each.
        width: columns at most.
    """
    held = np.flatnonzero(counts.any(axis=0))
    bins = slice(held[0], held[-1] + 1) if held.size else slice(0, 0)
    left, stride, inside = lay_out(first, last, width)
    if inside is None:
        inside = [np.array([column]) for column in range(len(first))]
    share = np.full((len(exponents[bins]), len(inside)), np.nan, np.float32)
    for column, span in enumerate(inside):
        if len(span):
            total = max(int(totals[span].sum()), 1)
            share[:, column] = counts[span, bins].sum(axis=0) / total
    return Life(
        site=site,
        exponents=exponents[bins],
        share=share,
        nonfinite=np.array([bool(nonfinite[span].any()) for span in inside], bool),
        left=left,
        stride=stride,
        first=np.array([first[span[0]] if len(span) else -1 for span in inside], np.int64),
        last=np.array([last[span[-1]] if len(span) else -1 for span in inside], np.int64),
    )


def describe(life: Life) -> str:
    """The picture in one sentence, for those who do not see it."""
    seen = life.first[life.first >= 0]
    if not seen.size:
        return "No exponents of this site have been recorded."
    text = f"Exponents of {life.site} in {words.steps(int(seen[0]), int(life.last.max()))}"
    if life.exponents.size:
        low, high = int(life.exponents[0]), int(life.exponents[-1]) + 1
        text += f", all between {words.power(low)} and {words.power(high)}"
    if life.nonfinite.any():
        text += f"; non-finite values from step {int(life.first[life.nonfinite.argmax()])}"
    return text + "."
