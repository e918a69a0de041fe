"""What plots ask, answered by a LogFrame: a frame in the schema of Track & Visualize (tandv).

A frame knows no ranks. How many elements are zero, NaN or infinite only one of rankscope counts,
beside its statistics: of others no histogram draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...sketch.errors import SettingError
from ...sketch.formats import FORMATS
from ...sketch.ranges import QUESTIONS
from ...sketch.shared_scales import number_formats_named
from ...store.format_table import BREAKS, FITS, MAY_BREAK, NOT_KNOWN, Scale
from ...store.logframe import (
    COUNTED,
    KINDS,
    ORIGIN,
    SCALARS,
    modules_in,
    parameter_named,
    parted,
)
from ...store.pooling import Heatmap, labels_by_row, reduce_groups, row_starts
from ...store.record import SiteInfo
from ...store.selection import choose_sites
from .. import curves, grid, life, series, spectrum, words
from ..spectrum import ASIDE
from . import guesses

if TYPE_CHECKING:
    from ...store.views import View
    from .source import Many

LEVELS = ("metadata", "scalar_stats", "exponent_counts")
STATE = "Optimiser_State."
COLUMNS = [f"{question}{end}" for question in QUESTIONS for end in ("", "_low", "_high")]
"""Of shares, as `guesses.shares` orders them."""


class FrameSource:
    """A LogFrame as a `Source`."""

    def __init__(self, frame: pd.DataFrame) -> None:
        """Take a frame whose column n of exponents counts 2^n <= |x| < 2^(n+1).

        Raises:
            SettingError: it is no LogFrame.
        """
        self.name = "LogFrame"
        _check(frame)
        # `Any`: pandas does not know that a first level of columns gives a frame.
        meta: Any = frame["metadata"]
        self._step = meta["step"].to_numpy(np.int64)
        origin = frame.attrs.get(ORIGIN)
        is_ours = isinstance(origin, dict) and "mixed" not in origin
        self._infos, self._rows = _sites(meta, is_ours=is_ours)
        self._labels = [one.label for one in self._infos]
        counts: Any = frame["exponent_counts"]
        bins = sorted(int(n) for n in counts.columns if np.isfinite(float(n)))
        self.beyond = (bins[0], bins[-1])
        named = {float(n): counts[n].to_numpy(np.int64) for n in counts.columns}
        self._exponents = np.arange(bins[0], bins[-1] + 1)
        nothing = np.zeros(len(frame), np.int64)
        self._counts = np.stack([named.get(float(e), nothing) for e in self._exponents], axis=1)
        self._under, self._over = named[-np.inf], named[np.inf]
        self._scalars: Any = frame["scalar_stats"]
        self._aside = _aside(self._scalars) | {"under": self._under, "over": self._over}
        """By name int64 [rows]: what is in no bin; -1 where it is not known."""
        self._bad = _not_finite(self._scalars)
        """bool [rows]: whether the tensor is not finite; None where nothing tells."""

    @property
    def statistics(self) -> list[str]:
        """Those of its tensors, by our names."""
        return [SCALARS.get(str(one), str(one)) for one in self._scalars if one not in COUNTED]

    @property
    def kinds(self) -> list[str]:
        """Of its sites, in the order in which they come."""
        return list(dict.fromkeys(one.kind for one in self._infos))

    def choose(self, *, kind: Many, name: str | None, site: Many) -> list[str]:
        """Labels of sites, in the order in which they come."""
        found = choose_sites(self._infos, kind=kind, name=name, sites=site)
        return [self._labels[at] for at in found]

    def dtype(self, site: str) -> str:
        """Of the site's tensor."""
        return self._infos[self._labels.index(site)].dtype

    def last_step(self, site: str) -> int | None:
        """The last step in which the site has a row."""
        return int(self._step[self._rows_of(site)].max())

    def steps_of(self, site: str) -> NDArray[np.int64]:
        """The steps in which the site has a row, ascending."""
        return np.unique(self._step[self._rows_of(site)])

    def grid(
        self,
        statistic: str,
        *,
        sites: Sequence[str],
        view: str,
        scale: str,
        steps: tuple[int, int] | None,
        size: tuple[int, int],
    ) -> grid.Grid:
        """A statistic over sites and steps."""
        _merged(view)
        ours = SCALARS.get(statistic, statistic)
        table = self.curves(statistic, sites, steps=steps, view="merged")
        there = np.stack([np.isin(table.steps, self._steps_of(site)) for site in sites])
        bad = np.stack([np.isin(table.steps, wrong) for wrong in table.bad])
        pool = grid.pool_of(ours, view)
        down = row_starts([1] * len(sites), size[1])
        across = row_starts([1] * len(table.steps), size[0])
        worst = np.fmin if pool == "min" else np.fmax

        # `Any` of two dimensions: numbers or flags.
        def pooled(operation: np.ufunc, cells: NDArray) -> NDArray:
            rows = reduce_groups(operation, cells, down)
            return reduce_groups(operation, np.ascontiguousarray(rows.T), across).T

        ends = np.append(across[1:], len(table.steps)) - 1
        found = Heatmap(
            statistic=ours,
            kind=sites[0].partition(":")[0],
            view="merged",
            values=pooled(worst, table.values.T.astype(np.float32)),
            nonfinite=pooled(np.logical_or, bad),
            observed=pooled(np.logical_or, there),
            row_sites=labels_by_row(sites, down),
            column_first=table.steps[across],
            column_last=table.steps[ends] if len(table.steps) else table.steps,
        )
        logarithmic = grid.is_logarithmic(ours, view, scale)
        signed = not logarithmic and ours in grid.SIGNED
        return grid.assemble(
            found, pool=pool, width=size[0], logarithmic=logarithmic, signed=signed
        )

    def spectrum(self, site: str, step: int, *, view: View) -> spectrum.Spectrum | None:
        """The exponents of a site at a step; None where it was not observed."""
        _merged(view)
        row = self._row(site, step)
        if row is None:
            return None
        counts = self._counts[row]
        held = np.flatnonzero(counts)
        span = slice(held[0], held[-1] + 1) if held.size else slice(0, 0)
        aside = {name: int(one[row]) for name, one in self._aside.items() if one[row] >= 0}
        return spectrum.Spectrum(
            site=site,
            step=step,
            exponents=self._exponents[span],
            counts=counts[span],
            aside=aside,
            total=int(counts.sum()) + sum(aside.values()),
        )

    def life(self, site: str, *, steps: tuple[int, int] | None, width: int) -> life.Life:
        """The exponents of a site over steps."""
        rows = self._rows_of(site)
        rows = rows[np.argsort(self._step[rows], kind="stable")]
        rows = rows[_within(self._step[rows], steps)]
        counts = self._counts[rows]
        if not len(rows):
            raise SettingError(f"{site} has no exponents in these steps.")
        aside = {name: np.maximum(one[rows], 0) for name, one in self._aside.items()}
        return life.assemble(
            site,
            exponents=self._exponents,
            counts=counts.T,
            total=counts.sum(axis=1) + np.sum(list(aside.values()), axis=0),
            aside=aside,
            first=self._step[rows],
            last=self._step[rows],
            width=width,
        )

    def curves(
        self, statistic: str, sites: Sequence[str], *, steps: tuple[int, int] | None, view: View
    ) -> curves.Curves:
        """A statistic of some sites over steps, and where they were not finite."""
        _merged(view)
        column = self._scalars[self._column(statistic)].to_numpy(np.float64)
        wrong = np.isinf(column) if self._bad is None else self._bad
        every = np.unique(self._step[np.concatenate([self._rows_of(site) for site in sites])])
        every = every[_within(every, steps)]
        values = np.full((len(every), len(sites)), np.nan)
        bad = list[NDArray[np.int64]]()
        for place, site in enumerate(sites):
            rows = self._rows_of(site)
            rows = rows[np.isin(self._step[rows], every)]
            values[np.searchsorted(every, self._step[rows]), place] = column[rows]
            bad.append(np.unique(self._step[rows[wrong[rows]]]))
        return curves.Curves(
            statistic=SCALARS.get(statistic, statistic),
            names=[words.site_name(site) for site in sites],
            steps=every,
            values=np.where(np.isinf(values), np.nan, values),
            bad=bad,
        )

    def fit(self, site: str, step: int) -> pd.DataFrame | None:
        """How a site would fit all formats, with the bounds that the columns guarantee."""
        row = self._row(site, step)
        if row is None:
            return None
        found = self._shares(np.array([row]), FORMATS, 0)[..., 0]
        columns = found.reshape(len(FORMATS), -1)
        return pd.DataFrame(columns, index=pd.Index(FORMATS, name="format"), columns=COLUMNS)

    def fits(
        self,
        sites: Sequence[str],
        *,
        steps: int | tuple[int, int] | None,
        formats: Sequence[str],
        scale: Scale,
        most: tuple[float, float],
    ) -> pd.DataFrame:
        """By site and format what is lost in the worst step."""
        names = [target.name for target in number_formats_named(formats)]
        limits = (steps, steps) if isinstance(steps, int) else steps
        parts: list[pd.DataFrame] = []
        for site in sites:
            rows = self._rows_of(site)
            rows = rows[_within(self._step[rows], limits)]
            shift = _shift(scale, self._infos[self._labels.index(site)].kind)
            found = self._shares(rows, names, shift)
            worst = np.full(found.shape[:-1], np.nan) if not len(rows) else found.max(axis=-1)
            index = pd.MultiIndex.from_product([[site], names], names=["site", "format"])
            part = pd.DataFrame(worst.reshape(len(names), -1), index=index, columns=COLUMNS)
            part.insert(0, "verdict", [_verdict(one, most) for one in worst])
            parts.append(part.assign(shift=shift))
        return pd.concat(parts)

    def _shares(self, rows: NDArray[np.intp], formats: Sequence[str], shift: int) -> guesses.Floats:
        beyond = np.stack([self._under[rows], self._over[rows]])
        return guesses.shares(self._exponents, self._counts[rows], beyond, formats, shift)

    def worst(
        self, sites: Sequence[str], steps: tuple[int, int], *, statistic: str
    ) -> tuple[str, int]:
        """The site and step to look at in one cell."""
        found = self.curves(statistic, sites, steps=steps, view="merged")
        wrong = [(int(line[0]), column) for column, line in enumerate(found.bad) if len(line)]
        if wrong:
            step, column = min(wrong)
            return sites[column], step
        if not np.isfinite(found.values).any():
            return sites[0], steps[0]
        pool = grid.pool_of(found.statistic, "merged")
        flat = np.nanargmin(found.values) if pool == "min" else np.nanargmax(found.values)
        row, column = np.unravel_index(flat, found.values.shape)
        return sites[int(column)], int(found.steps[row])

    def training(self, name: str) -> series.Lines:
        """A frame has none of its own."""
        raise SettingError(
            f"A LogFrame holds no training statistics: pass numbers by step, got {name!r}."
        )

    def _rows_of(self, site: str) -> NDArray[np.intp]:
        return np.flatnonzero(self._rows == self._labels.index(site))

    def _steps_of(self, site: str) -> NDArray[np.int64]:
        return self._step[self._rows_of(site)]

    def _row(self, site: str, step: int) -> int | None:
        rows = self._rows_of(site)
        found = rows[self._step[rows] == step]
        return int(found[0]) if found.size else None

    def _column(self, statistic: str) -> str:
        """Its name of a statistic, given that or ours."""
        theirs = {ours: name for name, ours in SCALARS.items()}
        for column in (statistic, theirs.get(statistic, "")):
            if column in self._scalars.columns:
                return column
        there = ", ".join(map(str, self._scalars.columns))
        raise SettingError(f"The LogFrame has no statistic {statistic!r}; there are {there}.")


def _check(frame: pd.DataFrame) -> None:
    there = list(frame.columns.get_level_values(0).unique()) if frame.columns.nlevels == 2 else []
    missing = [level for level in LEVELS if level not in there]
    if missing:
        raise SettingError(
            f"This frame is no LogFrame: it has no columns {' and '.join(missing)}. "
            "`Run.logframe()` makes one."
        )


# `Any`: pandas does not know that a first level of columns gives a frame.
def _aside(scalars: Any) -> dict[str, NDArray[np.int64]]:
    """By name int64 [rows]: how many elements are zero, NaN or infinite; -1: not known."""
    names = [name for name in ASIDE if name in COUNTED and name in scalars]
    counts = {name: scalars[name].to_numpy(np.float64) for name in names}
    return {
        name: np.where(np.isfinite(count), count, -1).astype(np.int64)
        for name, count in counts.items()
    }


# `Any`: pandas does not know that a first level of columns gives a frame.
def _not_finite(scalars: Any) -> NDArray[np.bool_] | None:
    """bool [rows]: whether a tensor surely has NaN or infinities; None where nothing tells.

    Other statistics than these may be infinite where all elements are finite: tandv's overflow.
    """
    counts = [name for name in ("nan", "pos_inf", "neg_inf") if name in scalars]
    if counts:
        return (scalars[counts].to_numpy(np.float64) > 0).any(axis=1)
    if "max_abs" not in scalars:
        return None
    largest = scalars["max_abs"].to_numpy(np.float64)
    mean = scalars["mean"].to_numpy(np.float64) if "mean" in scalars else largest
    return np.isinf(largest) | (np.isnan(largest) & np.isnan(mean))


def _sites(meta: pd.DataFrame, *, is_ours: bool) -> tuple[list[SiteInfo], NDArray[np.intp]]:
    """The sites of a frame as they come, and for each row of which it is.

    Several rows of one name and step are calls of one module, or elements of its output; of which
    call and element a row is, rankscope writes into the name.
    """
    calls = meta.groupby(["tensor_type", "name", "step"], sort=False, observed=True).cumcount()
    keys = list(zip(meta["tensor_type"], meta["name"], calls, strict=True))
    place = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    facts = dict(zip(reversed(keys), reversed(meta[["dtype", "type"]].to_numpy()), strict=True))
    named = [(parted(str(name)) if is_ours else (str(name), "", 0)) for _, name, _ in place]
    modules = modules_in((own for own, *_ in named), (str(theirs) for theirs, *_ in place))
    sites: list[SiteInfo] = []
    for ((theirs, name, call), order), (own, slot, first) in zip(place.items(), named, strict=True):
        state = str(theirs).startswith(STATE)
        dtype, module = facts[theirs, name, call]
        kind = "optimizer_state" if state else KINDS.get(str(theirs), str(theirs))
        sites.append(
            SiteInfo(
                kind=kind,
                name=parameter_named(own, kind, modules),
                slot=str(theirs).removeprefix(STATE) if state else slot,
                occurrence=first + int(call),
                dtype=str(dtype),
                module=str(module),
                order=order,
            )
        )
    return sites, np.array([place[key] for key in keys], np.intp)


def _shift(scale: Scale, kind: str) -> int:
    if isinstance(scale, str):
        raise SettingError(f"The best scale of a {scale} is found in runs only: give its exponent.")
    return int(scale.get(kind, 0) if isinstance(scale, Mapping) else scale)


def _verdict(shares: guesses.Floats, most: tuple[float, float]) -> str:
    """Of the shares of one site and format, float64 [questions, 3]."""
    _, low, high = shares[:2].T
    if np.isnan(high).any():
        return NOT_KNOWN
    if (low > most).any():
        return BREAKS
    return MAY_BREAK if (high > most).any() else FITS


def _merged(view: View) -> None:
    if view != "merged":
        raise SettingError(f"A LogFrame knows of no ranks, so of no view {view!r}.")


def _within(steps: NDArray[np.int64], limits: tuple[int, int] | None) -> NDArray[np.bool_]:
    if limits is None:
        return np.ones(len(steps), bool)
    return (steps >= limits[0]) & (steps <= limits[1])
