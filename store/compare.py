"""Two runs side by side: where they part first, and how far apart they are.

Sites are matched by label and steps by number. Two questions are answered apart: which bits differ,
by the checksums, where both trained on the same mesh; and which numbers differ by more than a
tolerance, by one statistic and by what is not finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from ..sketch.derive import MAIN, SENTINEL
from ..sketch.errors import SettingError
from .cause import phase_of
from .frames import missing_ranks
from .pooling import Heatmap, labels_by_row, pool_sites, pool_steps, row_starts
from .reader import Reader
from .selection import COMPLETE, FINAL, Chosen, Indices, Steps
from .values import SKETCHED, main_column

AT_ONCE = 1 << 20
"""Numbers of one statistic of one run that are in memory at a time."""
MOST_TOLD = 6
"""Training statistics that are named in a sentence."""
MOST_CELLS = 1 << 26
"""Numbers of one statistic that are read for a heatmap, of each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where two runs differ first: of the first such step the first site by cause and effect."""

    step: int
    site: str
    """Its label; or the name of a training statistic."""
    one: float
    """The statistic, in the run that was asked; NaN where it has none."""
    other: float
    """The same in the other."""
    nonfinite: tuple[int, int] | None = None
    """Where they differ: how many elements are not finite in each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """How two runs differ, at the steps and sites that both have."""

    statistic: str
    tolerance: float
    steps: int
    """How many steps both have."""
    first_step: int | None
    last_step: int | None
    bits: Parting | None
    """Where a bit differs first; None: nowhere, or `bits_unknown` says why nobody knows."""
    bits_unknown: str
    numbers: Parting | None
    """Where numbers differ first by more than the tolerance; None: nowhere."""
    sites: pd.DataFrame
    """By label, in the order of execution: `bits_step` and `numbers_step`, the first in which they
    differ (none: <NA>), `nonfinite_step`, that in which their counts of non-finite elements do,
    `largest`, log2 of the largest ratio of other to one, and `largest_step`; of those that both
    runs have."""
    training: Sequence[Parting]
    """Of each training statistic that both have, and that differs by more than the tolerance on a
    rank: where it does first; in the order of steps."""
    only_one: Sequence[str]
    """Labels that the other run has not."""
    only_other: Sequence[str]
    """Labels that only the other run has."""
    text: str
    """The answer, in sentences."""

    # `Any`: what a cell of pandas is, which may be <NA>.
    def with_nonfinite(self, ratio: str, largest: float, step: Any) -> str:
        """What is said of a site's largest ratio, and of its non-finite elements if they differ.

        Args:
            ratio: in words, maybe none; left out beside the other where it is within the tolerance.
            largest: its log2, NaN where it is not known.
            step: `nonfinite_step` of the site.
        """
        if pd.isna(step):
            return ratio
        told = f"other non-finite elements from step {step}"
        is_near = abs(largest) <= np.log2(1 + self.tolerance)
        return told if is_near or not ratio else f"{ratio}; {told}"

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class _Pair:
    """What two runs have in common."""

    readers: tuple[Reader, Reader]
    records: tuple[Indices, Indices]
    """Of each the records of the common steps."""
    places: tuple[Indices, Indices]
    """Of each the common sites."""
    steps: NDArray[np.int64]
    labels: Sequence[str]
    statistic: str

    def blocks(self) -> Iterator[slice]:
        """Steps to read at a time."""
        size = max(AT_ONCE // max(len(self.labels), 1), 1)
        for start in range(0, len(self.steps), size):
            yield slice(start, min(start + size, len(self.steps)))

    def read(self, run: int, some: slice) -> _Block:
        """Some steps of one of the two."""
        reader, records, places = self.readers[run], self.records[run][some], self.places[run]
        columns = [MAIN.index(name) for name in (self.statistic, "nonfinite", SKETCHED)]
        asked = [("scalars", records, (places, column)) for column in columns]
        numbers, bad, share, checksum = reader.read_all([*asked, ("checksum", records, (places,))])
        sketched = ~np.isnan(share) | (bad > 0)
        known = ~np.isnan(bad) if self.statistic in SENTINEL else sketched
        return _Block(numbers.astype(np.float64), bad, known, sketched, checksum)


@dataclass(frozen=True, slots=True)
class _Block:
    """[steps, sites] of one run."""

    numbers: NDArray[np.float64]
    bad: NDArray[np.float32]
    """How many elements are not finite; NaN where it was not observed."""
    known: NDArray[np.bool_]
    """Where the statistic is known, if there is any."""
    sketched: NDArray[np.bool_]
    checksum: NDArray[np.uint64]


def compare(
    one: Reader,
    other: Reader,
    *,
    statistic: str,
    kind: str | None,
    name: str | None,
    steps: Steps,
    tolerance: float,
    training: tuple[xr.DataArray, xr.DataArray],
) -> Comparison:
    """See `Run.compare`; `training` as `Run.training` gives it.

    Raises:
        SettingError: there is no such statistic, or nothing that both runs have.
    """
    if not tolerance >= 0:
        raise SettingError(f"`tolerance` is a share of the larger number, got {tolerance!r}.")
    pair = _pair(one, other, statistic, kind, name, steps)
    unknown = _why_bits_cannot_be_known(one, other)
    found = _Found(pair, tolerance, bits=not unknown)
    labels = [set(reader.labels(_chosen(reader, kind, name))) for reader in (one, other)]
    bits, numbers = found.parting(found.first_bits), found.parting(found.first_numbers)
    told = [_told(reader, of) for reader, of in zip((one, other), training, strict=True)]
    trained = _training(*training, told, tolerance)
    return Comparison(
        statistic=statistic,
        tolerance=tolerance,
        steps=len(pair.steps),
        first_step=int(pair.steps[0]) if len(pair.steps) else None,
        last_step=int(pair.steps[-1]) if len(pair.steps) else None,
        bits=bits,
        bits_unknown=unknown,
        numbers=numbers,
        sites=found.table(),
        training=trained,
        only_one=sorted(labels[0] - labels[1]),
        only_other=sorted(labels[1] - labels[0]),
        text=f"{_text(pair, bits, unknown, numbers, tolerance)} {_training_text(trained)}".strip(),
    )


def ratios(
    one: Reader,
    other: Reader,
    *,
    statistic: str,
    kind: str | None,
    name: str | None,
    steps: Steps,
    sizes: tuple[int | None, int | None],
) -> Heatmap:
    """See `Run.ratios`.

    Raises:
        SettingError: there is no such statistic, nothing that both runs have, or too much of it.
    """
    pair = _pair(one, other, statistic, kind, name, steps)
    count, sites = len(pair.steps), len(pair.labels)
    if count * sites > MOST_CELLS:
        raise SettingError(
            f"{count:,} steps of {sites:,} sites are too many to compare at once: choose a kind, "
            f"a name or a range of steps, of at most {MOST_CELLS:,} numbers together."
        )
    groups = np.array_split(np.arange(count), min(count, sizes[0] or count) or 1)
    column = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    high, low, bad, seen = (np.full((len(groups), sites), np.nan, np.float32) for _ in range(4))
    for some in pair.blocks():
        first, second = (pair.read(run, some) for run in (0, 1))
        both = first.known & second.known
        ratio = np.where(both, _log2_ratio(first.numbers, second.numbers), np.nan)
        pool_steps(ratio.astype(np.float32), column[some], high, "max")
        pool_steps(ratio.astype(np.float32), column[some], low, "min")
        pool_steps(np.fmax(first.bad, second.bad), column[some], bad, "max")
        pool_steps(np.where(both, 1, np.nan).astype(np.float32), column[some], seen, "max")
    starts = row_starts([1] * sites, sizes[1])
    above, worst, known = (pool_sites(part, starts, "max") for part in (high, bad, seen))
    below = pool_sites(low, starts, "min")
    return Heatmap(
        statistic=f"log2 of {statistic}, other over one",
        kind=kind,
        view="merged",
        values=np.where(np.abs(below) > np.abs(above), below, above),
        nonfinite=worst > 0,
        observed=~np.isnan(known),
        row_sites=labels_by_row(pair.labels, starts),
        column_first=np.array([pair.steps[held[0]] for held in groups if len(held)], np.int64),
        column_last=np.array([pair.steps[held[-1]] for held in groups if len(held)], np.int64),
    )


class _Found:
    """What differs between a pair, by site."""

    def __init__(self, pair: _Pair, tolerance: float, *, bits: bool) -> None:
        self.pair = pair
        sites = len(pair.labels)
        self.first_bits = np.full(sites, -1)
        """By site the first of the common steps in which a checksum differs, by its place."""
        self.first_numbers = np.full(sites, -1)
        self.first_nonfinite = np.full(sites, -1)
        self.largest = np.full(sites, np.nan)
        self.largest_at = np.full(sites, -1)
        for some in pair.blocks():
            one, other = (pair.read(run, some) for run in (0, 1))
            if bits:
                differ = one.sketched & other.sketched & (one.checksum != other.checksum)
                _note(self.first_bits, differ, some.start)
            both = one.known & other.known
            beyond = both & _differs(one.numbers, other.numbers, tolerance)
            unlike = _unlike(one.bad, other.bad)
            _note(self.first_nonfinite, unlike, some.start)
            _note(self.first_numbers, beyond | unlike, some.start)
            self._note_largest(
                np.where(both, _log2_ratio(one.numbers, other.numbers), np.nan), some
            )

    def _note_largest(self, ratio: NDArray[np.float64], some: slice) -> None:
        size = np.where(np.isnan(ratio), -1.0, np.abs(ratio))
        at = size.argmax(axis=0)
        here = np.take_along_axis(size, at[None], 0)[0]
        better = here > np.where(np.isnan(self.largest), -1.0, np.abs(self.largest))
        self.largest[better] = np.take_along_axis(ratio, at[None], 0)[0][better]
        self.largest_at[better] = at[better] + some.start

    def parting(self, first: NDArray[np.int64]) -> Parting | None:
        """The first of all, by step, then by cause and effect."""
        differing = np.flatnonzero(first >= 0)
        if not len(differing):
            return None
        pair = self.pair
        known, places = pair.readers[0].meta.sites, pair.places[0]
        site = min(differing.tolist(), key=lambda at: (first[at], phase_of(known[places[at]]), at))
        at = int(first[site])
        one, other = (pair.read(run, slice(at, at + 1)) for run in (0, 1))
        bad = one.bad[:, site], other.bad[:, site]
        return Parting(
            step=int(pair.steps[at]),
            site=pair.labels[site],
            one=float(one.numbers[0, site]),
            other=float(other.numbers[0, site]),
            nonfinite=(int(bad[0][0]), int(bad[1][0])) if _unlike(*bad).any() else None,
        )

    def table(self) -> pd.DataFrame:
        """See `Comparison.sites`."""
        return pd.DataFrame(
            {
                "bits_step": self._steps(self.first_bits),
                "numbers_step": self._steps(self.first_numbers),
                "nonfinite_step": self._steps(self.first_nonfinite),
                "largest": self.largest,
                "largest_step": self._steps(self.largest_at),
            },
            index=pd.Index(self.pair.labels, name="site", dtype=object),
        )

    def _steps(self, at: NDArray[np.int64]) -> pd.Series:
        steps = self.pair.steps[np.maximum(at, 0)] if len(self.pair.steps) else np.zeros(len(at))
        return pd.Series(steps, dtype="Int64").mask(at < 0).set_axis(self.pair.labels)


def _told(reader: Reader, training: xr.DataArray) -> NDArray[np.bool_]:
    """bool [steps, ranks]: whether the rank is in the record, and that is of a step of training."""
    facts = reader.facts()[training["record"].values]
    told = np.repeat(facts[:, FINAL, None] == 0, training.sizes["rank"], axis=1)
    for place in np.flatnonzero(facts[:, COMPLETE] == 0).tolist():
        missing = np.array(missing_ranks(facts[place], reader.meta.attempts), np.intp)
        told[place, missing[missing < told.shape[1]]] = False
    return told


def _training(
    one: xr.DataArray, other: xr.DataArray, told: Sequence[NDArray[np.bool_]], tolerance: float
) -> list[Parting]:
    """See `Comparison.training`; `told` as `_told` gives it, of each."""
    steps, mine, theirs = np.intersect1d(one["step"], other["step"], return_indices=True)
    ranks = min(one.sizes["rank"], other.sizes["rank"])
    known = told[0][mine, :ranks] & told[1][theirs, :ranks]
    both = [name for name in one["name"].values if name in other["name"].values]
    found = list[Parting]()
    for name in both:
        first = one.sel(name=name).transpose("step", "rank").values[mine, :ranks]
        second = other.sel(name=name).transpose("step", "rank").values[theirs, :ranks]
        apart = np.argwhere(known & _differs(first, second, tolerance))
        if len(apart):
            step, rank = apart[0]
            numbers = float(first[step, rank]), float(second[step, rank])
            found.append(
                Parting(step=int(steps[step]), site=str(name), one=numbers[0], other=numbers[1])
            )
    return sorted(found, key=lambda parting: parting.step)


def _training_text(found: Sequence[Parting]) -> str:
    if not found:
        return ""
    told = [
        f"{one.site} from step {one.step} on ({one.one:.6g} against {one.other:.6g})"
        for one in found[:MOST_TOLD]
    ]
    more = len(found) - MOST_TOLD
    return f"Of training differ {', '.join(told)}{f' and {more} more' if more > 0 else ''}."


def _note(first: NDArray[np.int64], differ: NDArray[np.bool_], start: int) -> None:
    """Note where sites differ, of which nothing was known before."""
    new = differ.any(axis=0) & (first < 0)
    first[new] = differ.argmax(axis=0)[new] + start


def _unlike(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.bool_]:
    """bool: both counts of what is not finite are known, and differ."""
    return (one != other) & ~np.isnan(one) & ~np.isnan(other)


def _differs(
    one: NDArray[np.float64], other: NDArray[np.float64], tolerance: float
) -> NDArray[np.bool_]:
    """bool: by more than so large a share of the larger; or only one of them is a number."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other) > tolerance * np.fmax(np.abs(one), np.abs(other))
    apart |= np.isinf(one) != np.isinf(other)
    return np.where(np.isnan(one) | np.isnan(other), np.isnan(one) != np.isnan(other), apart)


def _log2_ratio(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """log2 of |other| over |one|: 0 where both are 0, infinite where one of them is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log2(np.abs(other)) - np.log2(np.abs(one))
    return np.where((one == 0) & (other == 0), 0.0, ratio)


def _pair(
    one: Reader, other: Reader, statistic: str, kind: str | None, name: str | None, steps: Steps
) -> _Pair:
    main_column(one, statistic, "comparisons")
    places = [_chosen(reader, kind, name) for reader in (one, other)]
    theirs = {other.label(int(place)): int(place) for place in places[1]}
    shared = [int(place) for place in places[0] if one.label(int(place)) in theirs]
    labels = one.labels(np.array(shared, np.int64))
    if not shared:
        raise SettingError("The two runs have no site in common, of those that were asked for.")
    chosen: list[Chosen] = [
        reader.choose(steps=steps, sketched=statistic not in SENTINEL) for reader in (one, other)
    ]
    common, mine, others = np.intersect1d(chosen[0].steps, chosen[1].steps, return_indices=True)
    if not len(common):
        raise SettingError("The two runs have no step in common, of those that were asked for.")
    return _Pair(
        (one, other),
        (chosen[0].records[mine], chosen[1].records[others]),
        (np.array(shared, np.int64), np.array([theirs[label] for label in labels], np.int64)),
        common,
        labels,
        statistic,
    )


def _chosen(reader: Reader, kind: str | None, name: str | None) -> Indices:
    return reader.choose_sites(kind=kind, name=name)


def _why_bits_cannot_be_known(one: Reader, other: Reader) -> str:
    """A sentence; empty where checksums can be compared."""
    if one.is_imported or other.is_imported:
        return "A LogFrame keeps no checksums, so that bits of a run made of one are not known."
    meshes = [
        {str(sorted(attempt.mesh.items())) for attempt in reader.attempts}
        for reader in (one, other)
    ]
    if meshes[0] == meshes[1] and len(meshes[0]) == 1:
        return ""
    return "They trained on different meshes, so that their bits cannot be compared."


def _text(
    pair: _Pair, bits: Parting | None, unknown: str, numbers: Parting | None, tolerance: float
) -> str:
    both = f"{len(pair.steps):,} steps and {len(pair.labels):,} sites"
    told = unknown or (
        f"Over {both} that both have, not a bit differs."
        if bits is None
        else f"The first bit differs in step {bits.step} at {bits.site}."
    )
    if numbers is None:
        return f"{told} No {pair.statistic} differs by more than {tolerance:.3g} of its size."
    what = f"{pair.statistic} {numbers.one:.6g} against {numbers.other:.6g}"
    if numbers.nonfinite is not None:
        one, other = numbers.nonfinite
        what = f"non-finite elements {one:,} against {other:,}"
    return f"{told} Numbers part in step {numbers.step} at {numbers.site}: {what}."
