"""The formats page as data: which sites would break in which number formats, the worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..sketch.errors import SettingError
from ..sketch.exact_counts import exact_count_named
from ..sketch.shared_scales import BLOCK_FORMATS_BY_NAME, formats_named
from ..store.format_table import BREAKS, FITS, MAY_BREAK, NOT_KNOWN, VERDICTS
from ..store.query import NARROW_FORMATS
from ..store.sketched import fullest_step, sketched_steps
from . import words
from .columns import NO_STEP, between, span_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from ..rules import Finding
    from ..store import Run

AT_ONCE = 16384
"""Histograms that a page reads for the worst of several steps; of more, neighbours are summed."""
OVERFLOW, UNDERFLOW = 0.0, 0.01
"""What a tensor that fits may lose, unless the user says otherwise."""
BADNESS: Mapping[str, int] = {FITS: 0, NOT_KNOWN: 0, MAY_BREAK: 1, BREAKS: 2}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fitting:
    """How sites would fit formats; rows in the order in which they are looked at."""

    table: xr.Dataset
    """As the store gave it, in the order of execution."""
    formats: list[str]
    order: NDArray[np.intp]
    """intp [sites]: places in the table, the worst first."""
    steps: tuple[int, int]
    """The first and the last that it is of."""
    stretches: int
    """In how many parts these were looked at, each as a whole; 0: step by step."""

    def counts(self, name: str) -> dict[str, int]:
        """Of a format how many sites there are by verdict."""
        verdicts = self.table["verdict"].values[:, self.formats.index(name)]
        return {one: int((verdicts == one).sum()) for one in VERDICTS}


def load_fitting(
    run: Run,
    *,
    step: int | None,
    steps: tuple[float, float] | None,
    over_steps: bool,
    kind: str,
    pattern: str,
    formats: Sequence[str],
    scale: Any,
    most: tuple[float, float],
) -> Fitting | None:
    """Ask the store; None where no step has histograms.

    Args:
        run: an open run.
        step: the one to look at, or the nearest that has histograms; None: the last in which
            nearly all sites have.
        steps: first and last of those to look at instead, if `over_steps`; None: all.
        over_steps: whether the worst of several steps counts.
        kind: of sites; empty: all.
        pattern: a regular expression that names must match; empty: all.
        formats: names; none: `NARROW_FORMATS`, and those with a scale by block that were counted.
        scale: see `Run.format_table`.
        most: the shares that may overflow, and become zero.

    Raises:
        SettingError: there is no such kind, name, format or scale.
    """
    records = run.records()
    recorded, fullest = sketched_steps(records), fullest_step(records)
    if fullest is None:
        return None
    width, span = None, NO_STEP
    if over_steps:
        inside = between(recorded, steps)
        if not len(inside):
            raise SettingError("No step with histograms is visible: show all steps.")
        span = span_of(inside)
        columns = max(1, AT_ONCE // max(1, len(run.sites(kind or None, pattern or None))))
        width = columns if columns < len(inside) else None
    else:
        one = fullest if step is None else int(recorded[np.abs(recorded - step).argmin()])
        span = slice(one, one)
    names = list(formats) or [*NARROW_FORMATS, *counted_formats(run)]
    table = run.format_table(
        span,
        kind=kind or None,
        name=pattern or None,
        formats=names,
        scale=scale,
        most_overflow=most[0],
        most_underflow=most[1],
        width=width,
    )
    return Fitting(
        table=table,
        formats=[str(name) for name in table["format"].values],
        order=worst_first(table),
        steps=(int(span.start), int(span.stop)),
        stretches=width or 0,
    )


def healthy_step(records: pd.DataFrame, found: Sequence[Finding]) -> int | None:
    """The newest step in which nearly all sites have histograms, and no error stood.

    Args:
        records: as `Run.records` gives them.
        found: what rules found.
    """
    steps, attempts = records["step"].to_numpy(np.int64), records["attempt"].to_numpy(np.int64)
    stood = np.zeros(len(steps), np.bool_)
    for one in found:
        if one.severity == "error":
            last = np.inf if one.last_step is None else one.last_step
            stood |= (attempts == one.attempt) & (steps >= one.first_step) & (steps <= last)
    return fullest_step(records.loc[~stood])


def why_not_known(found: Fitting) -> str:
    """Why sites are not known in some formats, in sentences; empty where all are known."""
    counts = {name: found.counts(name)[NOT_KNOWN] for name in found.formats}
    by_block = [name for name in found.formats if name in BLOCK_FORMATS_BY_NAME and counts[name]]
    plain = [name for name in found.formats if name not in BLOCK_FORMATS_BY_NAME and counts[name]]
    told = list[str]()
    if plain:
        verdicts = found.table["verdict"].values[:, found.formats.index(plain[0])]
        unknown, seen = verdicts == NOT_KNOWN, found.table["steps"].values > 0
        for what, rows in (("histogram", unknown & ~seen), ("finite element", unknown & seen)):
            kinds = dict.fromkeys(found.table["kind"].values[rows].tolist())
            if kinds:
                sites = words.count(int(rows.sum()), "site")
                listed = ", ".join(kinds).replace("_", " ")
                told.append(f"{sites} without a {what} there ({listed})")
    if by_block:
        sites = words.count(max(counts[name] for name in by_block), "site")
        why = " of which no blocks were counted; `exact_counts` of the agent says of which they are"
        if found.stretches:
            why = ", for these are told step by step: show fewer steps, or ask at one"
        told.append(f"in formats with a scale by block ({', '.join(by_block)}) {sites}{why}")
    return f"Not known: {'; '.join(told)}." if told else ""


def counted_formats(run: Run) -> list[str]:
    """The formats with a scale by block that were counted of some site."""
    counted = [exact_count_named(name) for name in dict.fromkeys(run.exact_counts()["exact_count"])]
    return [
        name
        for name, one in BLOCK_FORMATS_BY_NAME.items()
        if any(one.is_told_by(exact_count) for exact_count in counted)
    ]


def worst_first(table: xr.Dataset) -> NDArray[np.intp]:
    """intp [sites]: those that break most formats come first; of equal ones what loses more."""
    verdicts = table["verdict"].values
    bad = sum((value * (verdicts == name)).sum(axis=1) for name, value in BADNESS.items())
    lost = np.nan_to_num(table["overflow"].values) + np.nan_to_num(table["underflow"].values)
    return np.lexsort((np.arange(len(lost)), -lost.sum(axis=1), -np.asarray(bad)))


def read_scale(text: str) -> Any:
    """A scale as it is written: nothing, `site`, `kind`, a whole number, or `weight=4,input=-2`.

    Raises:
        SettingError: it cannot be understood.
    """
    if text in ("site", "kind"):
        return text
    try:
        if "=" not in text:
            return int(text or 0)
        pairs = [part.partition("=") for part in text.split(",")]
        return {kind.strip(): int(exponent) for kind, _, exponent in pairs}
    except ValueError:
        raise SettingError(
            "Powers of two are given as 4 for all, or by kind as weight=4,activation=-2; "
            f"got {words.shorten(text, 60)!r}."
        ) from None


def read_formats(text: str) -> list[str]:
    """Names of formats, apart by commas.

    Raises:
        SettingError: there is no such format.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    return [one.name for one in formats_named(names)]


def read_most(text: str) -> tuple[float, float]:
    """The shares that may overflow and become zero, as `0:0.01`; empty: the usual ones.

    Raises:
        SettingError: they are no shares.
    """
    if not text:
        return OVERFLOW, UNDERFLOW
    try:
        overflow, underflow = (float(part) for part in text.split(":"))
        if not (0 <= overflow <= 1 and 0 <= underflow <= 1):
            raise ValueError
    except ValueError:
        raise SettingError(
            "What may be lost is given as two shares between 0 and 1, overflow before zeros, as "
            f"0:0.01; got {words.shorten(text, 40)!r}."
        ) from None
    return overflow, underflow


def describe(found: Fitting) -> str:
    """What the table says, in a sentence for each format, for those who do not see it."""
    total = found.table.sizes["site"]
    text = f"{words.count(total, 'site')}, {when(found)}"
    for name in found.formats:
        counts = found.counts(name)
        parts = [
            f"{words.thousands(counts[verdict])} {word}"
            for verdict, word in (
                (BREAKS, "would break"),
                (MAY_BREAK, "may break"),
                (FITS, "fit"),
                (NOT_KNOWN, "not known"),
            )
            if counts[verdict]
        ]
        text += f"; {name}: {', '.join(parts)}"
    return text + "."


def when(found: Fitting) -> str:
    """Of which steps it is, in words."""
    first, last = found.steps
    if first == last:
        return f"step {first}"
    what = f"the worst of steps {first}–{last}"
    if found.stretches:
        what = f"the worst of {found.stretches} stretches of steps {first}–{last}, each as a whole"
    return what
