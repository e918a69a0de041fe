"""How many sites at once would fit number formats: a table by site and format, see `docs/store.md`.

Each share comes with the bounds that it is sure to lie in. Of several steps it is the worst one's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ..sketch.errors import SettingError
from ..sketch.exact_counts import BlockExponents
from ..sketch.formats import NumberFormat
from ..sketch.ranges import QUESTIONS, Bounded, fit
from ..sketch.scaling import best_shift
from ..sketch.shared_scales import BLOCK_FORMATS_BY_NAME, BlockFormat, formats_named
from ..sketch.table import Floats, Ints, SketchTable
from ..sketch.tally import Tally
from .fit import counted_of
from .labels import by_site
from .reader import Reader
from .record import ExactCountInfo, SiteInfo
from .selection import Chosen, Indices
from .tallies import SomeTallies, Tallies

Scale = int | Mapping[str, int] | Literal["site", "kind"]
"""By which power of two tensors are multiplied: one for all, one a kind, or the best one."""
Format = NumberFormat | BlockFormat

MOST_SHIFT = 1024
VERDICTS = FITS, MAY_BREAK, BREAKS, NOT_KNOWN = ("fits", "may break", "breaks", "not known")
NO_HISTOGRAM, NONE_FINITE, NO_BLOCKS = ("no histogram", "no finite element", "no counted blocks")
"""What a site is without of which nothing is known in any format."""
BOUNDS = ("", "_low", "_high")
"""What is appended to a question: the estimate, and between what the true share lies."""
VALUE, LOW, HIGH = range(len(BOUNDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of all sites."""

    formats: str | Sequence[str]
    scale: Scale
    most_overflow: float
    """Share of a tensor's elements that may overflow, or be clipped, in one that fits."""
    most_underflow: float
    """Share that may become zero."""
    width: int | None = None
    """At most so many stretches of neighbouring steps are told apart."""


def format_table(reader: Reader, chosen: Chosen, places: Indices, asked: Question) -> xr.Dataset:
    """See `Run.format_table`.

    Raises:
        SettingError: there is no such format, kind, or scale.
    """
    targets = formats_named(asked.formats)
    if not targets:
        raise SettingError("`formats` must name a number format, as float8_e4m3fn.")
    sites = reader.sites(places)
    tallies = Tallies(reader, chosen, places, asked.width)
    shifts = _shifts(tallies, sites, targets, asked.scale)
    worst = _Worst.nothing(len(targets), len(places))
    for some in tallies:
        worst.add(some, _shares(reader, places, some, targets, shifts))
    table = _dataset(sites, targets, shifts, worst, asked)
    ends = [int(step) for step in chosen.steps[[0, -1]]] if len(chosen) else []
    return table.assign_attrs(zip(("first_step", "last_step"), ends, strict=False))


def lacking(table: xr.Dataset) -> NDArray[np.str_]:
    """str [sites]: what sites are without that are not known in any format; of others empty.

    Args:
        table: of `Run.format_table`.
    """
    unknown = (table["verdict"].values == NOT_KNOWN).all(axis=1)
    plain = set(map(str, table["format"].values)) - BLOCK_FORMATS_BY_NAME.keys()
    seen = np.where(table["steps"].values > 0, NONE_FINITE if plain else NO_BLOCKS, NO_HISTOGRAM)
    return np.where(unknown, seen, "")


def _shifts(
    tallies: Tallies, sites: Sequence[SiteInfo], targets: Sequence[Format], scale: Scale
) -> Ints:
    """int64 [formats, sites]: by which power of two each site is multiplied before a cast.

    Blocks are scaled by themselves, whatever the tensor is multiplied by.
    """
    shifts = np.zeros((len(targets), len(sites)), np.int64)
    plain = [row for row, one in enumerate(targets) if isinstance(one, NumberFormat)]
    if isinstance(scale, str):
        if scale not in ("site", "kind"):
            raise SettingError(
                "`scale` must be a power of two, as 4 or {'weight': 4}, or say of what the best "
                f"one is taken: 'site' or 'kind'; got {scale!r}."
            )
        names = [site.kind if scale == "kind" else site.label for site in sites]
        groups, group = np.unique(names, return_inverse=True)
        whole = Tally.of(SketchTable.empty(len(groups)))
        for some in tallies:
            whole = whole.merge(some.tally.united(group[some.site], len(groups)))
        for row in plain:
            shifts[row] = best_shift(whole, cast("NumberFormat", targets[row]))[group]
        return shifts
    shifts[plain] = _given(sites, scale)
    return shifts


def _given(sites: Sequence[SiteInfo], scale: int | Mapping[str, int]) -> Ints:
    """int64 [sites]: as the caller said."""
    by_kind = scale if isinstance(scale, Mapping) else dict.fromkeys([s.kind for s in sites], scale)
    kinds = {site.kind for site in sites}
    for kind, shift in by_kind.items():
        if kind not in kinds:
            raise SettingError(
                f"`scale` names the kind {kind!r}; of these sites there are "
                f"{', '.join(sorted(kinds))}."
            )
        if isinstance(shift, bool) or int(shift) != shift or abs(shift) > MOST_SHIFT:
            raise SettingError(
                f"`scale` is the exponent of a power of two, up to {MOST_SHIFT}, got {shift!r}."
            )
    return np.array([int(by_kind.get(site.kind, 0)) for site in sites], np.int64)


def _shares(
    reader: Reader, places: Indices, some: SomeTallies, targets: Sequence[Format], shifts: Ints
) -> Floats:
    """float64 [formats, questions, BOUNDS, columns, sites]; NaN where it is not known."""
    cell = some.column, some.site - some.sites.start
    shape = len(some.steps), len(places[some.sites])
    found = np.full((len(targets), len(QUESTIONS), len(BOUNDS), *shape), np.nan)
    lost = some.nonfinite & (some.tally.total == 0)  # of NaN alone nothing can be said
    for row, target in enumerate(targets):
        if isinstance(target, NumberFormat):
            shift = shifts[row, some.site]
            for number, question in enumerate(QUESTIONS.values()):
                share = question(some.tally, target, shift=shift)
                for bound, values in enumerate((share.value, share.low, share.high)):
                    found[row, number, bound][cell] = np.where(lost, np.nan, values)
    totals = np.full(shape, -1, np.int64)
    totals[cell] = some.tally.total
    for info, here, counts in _counted(reader, places[some.sites], some.records):
        site = int(np.flatnonzero(places[some.sites] == info.site)[0])
        whole = counted_of(info.exact_count, counts) == totals[here, site]
        for row, target in enumerate(targets):
            shift = int(shifts[row, some.sites.start + site])
            told = _told(info, counts[whole], target, shift)
            _narrow(found[row, :, :, :, site], here[whole], told)
    return found


def _counted(
    reader: Reader, places: Indices, records: Indices
) -> Iterator[tuple[ExactCountInfo, Indices, Ints]]:
    """What was counted of these sites beside their sketches: in which of the records, and what."""
    if not len(records):  # of stretches
        return
    chosen = {int(place) for place in places}
    infos = [info for info in reader.meta.exact_counts if info.site in chosen]
    for info in infos:
        [block] = reader.read_all([("exact_counts", records, (info.numbers,))])
        here = np.flatnonzero(block[:, 0] >= 0)
        yield info, here, block[here].reshape(len(here), *info.exact_count.shape)


def _told(info: ExactCountInfo, counts: Ints, target: Format, shift: int) -> Mapping[str, Bounded]:
    """What counts say of a format; nothing where they are no answer."""
    exact_count = info.exact_count
    if isinstance(target, BlockFormat):
        return fit(exact_count, counts, target.target) if target.is_told_by(exact_count) else {}
    if isinstance(exact_count, BlockExponents):
        return {}
    with np.errstate(all="ignore"):  # the largest float64 rounds to infinity
        return fit(exact_count, counts, target, shift=shift)


def _narrow(found: Floats, records: Indices, told: Mapping[str, Bounded]) -> None:
    """Take over what is narrower; `found` is float64 [questions, BOUNDS, records]."""
    for number, question in enumerate(QUESTIONS):
        if question in told:
            answer = told[question]
            new = np.stack([answer.value, answer.low, answer.high])
            old = found[number][:, records]
            better = ~(new[HIGH] - new[LOW] >= old[HIGH] - old[LOW])  # than NaN, too
            found[number][:, records] = np.where(better, new, old)


@dataclass(frozen=True, slots=True, eq=False)
class _Worst:
    """The worst shares of all steps, and what was seen of the sites."""

    shares: Floats
    """float64 [formats, questions, BOUNDS, sites]; NaN where none is known."""
    step: Ints
    """int64 [formats, questions, sites]: the step of the largest estimate; -1 for none."""
    steps: Ints
    """int64 [sites]: in how many steps there is a histogram."""
    nonfinite: NDArray[np.bool_]
    """bool [sites]"""
    seen_share: Floats
    """float64 [sites]: the smallest."""

    @classmethod
    def nothing(cls, formats: int, sites: int) -> _Worst:
        shape = formats, len(QUESTIONS)
        return cls(
            np.full((*shape, len(BOUNDS), sites), np.nan),
            np.full((*shape, sites), -1, np.int64),
            np.zeros(sites, np.int64),
            np.zeros(sites, np.bool_),
            np.full(sites, np.nan),
        )

    def add(self, some: SomeTallies, shares: Floats) -> None:
        """The shares of some more, see `_shares`."""
        mine, step = self.shares[..., some.sites], self.step[..., some.sites]
        value = shares[:, :, VALUE]
        here = np.where(np.isnan(value), -1.0, value)
        at = here.argmax(axis=2)
        largest = np.take_along_axis(here, at[:, :, None], axis=2)[:, :, 0]
        is_new = largest > np.nan_to_num(mine[:, :, VALUE], nan=-1.0)
        np.copyto(step, some.steps[at], where=is_new)
        np.fmax(mine, np.fmax.reduce(shares, axis=3), out=mine)
        np.add.at(self.steps, some.site, 1)
        np.logical_or.at(self.nonfinite, some.site, some.nonfinite)
        np.fmin.at(self.seen_share, some.site, some.seen_share)


def _dataset(
    sites: Sequence[SiteInfo],
    targets: Sequence[Format],
    shifts: Ints,
    worst: _Worst,
    asked: Question,
) -> xr.Dataset:
    both = ("site", "format")
    columns: dict[str, Any] = {"verdict": (both, _verdicts(worst.shares, targets, asked).T)}
    for number, question in enumerate(QUESTIONS):
        for bound, suffix in enumerate(BOUNDS):
            columns[question + suffix] = (both, worst.shares[:, number, bound].T)
        columns[f"{question}_step"] = (both, worst.step[:, number].T)
    columns |= {
        "shift": (both, shifts.T),
        "steps": ("site", worst.steps),
        "nonfinite": ("site", worst.nonfinite),
        "seen_share": ("site", worst.seen_share),
        "dtype": ("site", np.array([site.dtype for site in sites], dtype=object)),
    }
    names = np.array([target.name for target in targets], dtype=object)
    limits = {
        "most_overflow": asked.most_overflow,
        "most_underflow": asked.most_underflow,
    }
    return xr.Dataset(columns, coords=by_site(sites) | {"format": names}, attrs=limits)


def _verdicts(shares: Floats, targets: Sequence[Format], asked: Question) -> NDArray[np.str_]:
    """str [formats, sites]: one of `VERDICTS`.

    Blocks are scaled so that none overflows: what the rounding of their scales clips is no verdict.
    """
    limits = [(asked.most_overflow if isinstance(one, NumberFormat) else 1.0) for one in targets]
    most = np.array([(limit, asked.most_underflow) for limit in limits])[:, :, None]
    at_least, at_most = shares[:, :2, LOW], shares[:, :2, HIGH]
    verdict = np.full(at_least[:, 0].shape, VERDICTS.index(FITS))
    verdict[(at_most > most).any(axis=1)] = VERDICTS.index(MAY_BREAK)
    verdict[(at_least > most).any(axis=1)] = VERDICTS.index(BREAKS)
    verdict[np.isnan(at_most).any(axis=1)] = VERDICTS.index(NOT_KNOWN)
    return np.array(VERDICTS)[verdict]
