"""The page of derived quantities as data: lines over steps, and of a vector a heatmap."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from . import words
from .columns import MISSING, NONFINITE, NUMBER, UNDEFINED, ZERO, lay_out, pool_columns
from .curves import Curves
from .grid import Grid

if TYPE_CHECKING:
    from ..store import Run

MOST = 12
"""Lines that are drawn: more cannot be told apart."""
ROWS = 128
"""Rows of a heatmap at most; of a longer vector neighbours share one, which keeps the largest."""
WIDE = 100.0
"""Positive numbers that differ by more than this factor are drawn by powers of two."""


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """What a quantity is of."""

    of: str
    """A module or a parameter."""
    part: str
    """The ranks that it is of, as `tp=1`; empty: all."""

    @property
    def name(self) -> str:
        """In words; also how the address says it."""
        return f"{self.of} ({self.part})" if self.part else self.of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vector:
    """A vector over steps."""

    part: Part
    steps: NDArray[np.int64]
    """int64 [steps]: those in which it was measured, ascending."""
    values: NDArray[np.float64]
    """float64 [numbers, steps]; NaN where it could not be known."""


def parts_of(listed: pd.DataFrame, name: str, pattern: str) -> list[Part]:
    """What a quantity is of, as `Run.quantities` lists it; those whose name the pattern matches."""
    own = listed.loc[listed["quantity"] == name]
    found = [Part(str(of), str(part)) for of, part in zip(own["of"], own["part"], strict=True)]
    return [one for one in found if re.search(pattern, one.of)]


def drawn(parts: Sequence[Part], name: str) -> list[Part]:
    """As many as can be told apart, in their order: the first ones, and those of a site's name."""
    own = name.removesuffix(".weight")
    mine = [one for one in parts if name and bare(one.of).removesuffix(".weight") == own]
    kept = list(dict.fromkeys([*mine, *parts]))[:MOST]
    return [one for one in parts if one in kept]


def load_curves(run: Run, name: str, parts: Sequence[Part]) -> Curves:
    """A quantity that is one number, a line for each part."""
    frame = _frame(run, name, parts)
    steps = np.unique(frame["step"].to_numpy(np.int64))
    values = np.full((len(steps), len(parts)), np.nan)
    bad = list[NDArray[np.int64]]()
    for column, part in enumerate(parts):
        own = _of_part(frame, part)
        measured, found = own["step"].to_numpy(np.int64), own["value"].to_numpy(float)
        values[np.searchsorted(steps, measured), column] = found
        bad.append(measured[~np.isfinite(found)])
    return Curves(
        statistic=name,
        names=[one.name for one in parts],
        steps=steps,
        values=np.where(np.isinf(values), np.nan, values),
        bad=bad,
    )


def bare(of: str) -> str:
    """The name of a module or a parameter, without element and call behind it."""
    return re.split(r"[\[#]", of)[0]


def load_vector(run: Run, name: str, part: Part) -> Vector:
    """A quantity that is a vector, of one part."""
    own = _of_part(_frame(run, name, [part]), part)
    steps = np.unique(own["step"].to_numpy(np.int64))
    index = own["index"].to_numpy(np.int64)
    values = np.full((int(index.max(initial=-1)) + 1, len(steps)), np.nan)
    values[index, np.searchsorted(steps, own["step"].to_numpy(np.int64))] = own["value"]
    return Vector(part=part, steps=steps, values=values)


def _frame(run: Run, name: str, parts: Sequence[Part]) -> pd.DataFrame:
    # A slot or an occurrence is no part of the name that the store searches in.
    names = dict.fromkeys(re.split(r"[\[#]", one.of)[0] for one in parts)
    return run.quantity(name, of=f"^(?:{'|'.join(map(re.escape, names))})")


def _of_part(frame: pd.DataFrame, part: Part) -> pd.DataFrame:
    return frame.loc[(frame["of"] == part.of) & (frame["part"] == part.part)]


def is_wide(values: NDArray[np.float64]) -> bool:
    """Whether numbers are better told apart by powers of two."""
    known = values[np.isfinite(values)]
    return bool(len(known) and known.min() > 0 and known.max() > WIDE * known.min())


def grid_of(found: Vector, *, width: int) -> Grid:
    """A vector as cells, its numbers one below the other, in at most `width` columns."""
    finite = found.values[np.isfinite(found.values)]
    logarithmic = bool((finite >= 0).all())
    known, zero = np.isfinite(found.values), found.values == 0
    shade = np.where(known, found.values, np.nan)
    if logarithmic:
        shade = np.log2(np.where(zero, np.nan, shade))
    state = np.full(shade.shape, NUMBER, np.uint8)
    state[zero & logarithmic] = ZERO
    state[np.isnan(found.values)] = UNDEFINED
    state[np.isinf(found.values)] = NONFINITE
    groups = np.array_split(np.arange(len(shade)), min(len(shade), ROWS)) if len(shade) else []
    pooled, states = pool_columns(shade.astype(np.float32).T, state.T, groups, "max")
    shade, state = pooled.T, states.T
    first = last = found.steps
    left, stride, held = lay_out(first, last, width)
    if held is not None:
        shade, state = pool_columns(shade, state, held, "max")
        first = np.array([found.steps[span[0]] if len(span) else -1 for span in held], np.int64)
        last = np.array([found.steps[span[-1]] if len(span) else -1 for span in held], np.int64)
        state[:, first < 0] = MISSING
    names = [str(one[0]) if len(one) == 1 else f"{one[0]}–{one[-1]}, the largest" for one in groups]
    return Grid(
        shade=shade.astype(np.float32), state=state, left=left, stride=stride, first=first,
        last=last, row_sites=[[name] for name in names], names=names, logarithmic=logarithmic,
        signed=not logarithmic, said=[f"number {name}" for name in names],
    )  # fmt: skip


def nearest(steps: NDArray[np.int64], step: int | None) -> int | None:
    """Which of some steps is nearest, by its place; the last where none is chosen."""
    if not len(steps):
        return None
    return len(steps) - 1 if step is None else int(np.abs(steps - step).argmin())


def describe(found: Vector, *, name: str, place: int | None) -> str:
    """A vector in a sentence, for those who do not see it."""
    size = words.count(len(found.values), "number")
    text = f"{name} of {found.part.name}: {size} in {words.count(len(found.steps), 'step')}"
    if place is None:
        return f"{text}."
    at = found.values[:, place]
    text += f"; at step {int(found.steps[place])}"
    if np.isnan(at).all():
        return f"{text} it could not be known: see the events on Triage."
    return (
        f"{text} from {words.number(float(np.nanmin(at)))} to {words.number(float(np.nanmax(at)))}."
    )
