"""Lines over steps as data: training statistics, and one site on each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..sketch.derive import DEGREE
from . import words
from .grid import is_logarithmic, pool_of

if TYPE_CHECKING:
    import xarray as xr

    from ..store.query import Run

Floats = NDArray[np.float64]

MOST_LINES = 16
"""More ranks than this are drawn as an envelope with the worst rank on it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lines:
    """Lines over the same steps."""

    name: str
    steps: NDArray[np.int64]
    """int64 [steps]"""
    values: dict[int, Floats]
    """By rank, float64 [steps]; NaN where the rank has no number there."""
    low: Floats
    """float64 [steps]: least over ranks."""
    high: Floats
    """float64 [steps]: greatest over ranks."""
    bad: list[tuple[int, int]]
    """(step, rank) of what is not finite."""
    lost: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """int64 [steps]: those in which a rank has no number and should, NaN or not given."""
    turns: list[tuple[int, int]] = field(default_factory=list)
    """(step, attempt) where the records of another attempt than before begin."""
    worst: int | None = None
    """The rank to look at."""
    why: str = ""
    """Why that rank."""

    @staticmethod
    def label(rank: int) -> str:
        """What to call the line of a rank."""
        return f"rank {rank}"

    @property
    def drawn(self) -> list[int]:
        """The ranks that get a line of their own; the worst comes last, above the others."""
        shown = list(self.values) if len(self.values) <= MOST_LINES else []
        others = [rank for rank in shown if rank != self.worst]
        if self.worst is None or self.worst not in self.values:
            return others
        return [*others, self.worst]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that began at a step."""

    step: int
    text: str
    """What, in a sentence."""
    severe: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scalar:
    """One statistic of one site over steps, merged over ranks."""

    name: str
    steps: NDArray[np.int64]
    """int64 [steps]"""
    values: Floats
    """float64 [steps]: log2 of the magnitude where `logarithmic`; NaN where there is no number."""
    bad: NDArray[np.int64]
    """int64 [steps]: those in which elements are not finite."""
    logarithmic: bool


def load_scalars(run: Run, *, site: str) -> list[Scalar]:
    """All main statistics of one site, in the order in which the store names them."""
    found = run.main(sites=[site]).isel(site=0).transpose("statistic", "step")
    steps = np.asarray(found["step"].values, np.int64)
    values = np.asarray(found.values, float)
    names = [str(name) for name in found["statistic"].values]
    bad = steps[np.nan_to_num(values[names.index("nonfinite")]) > 0]
    scalars = list[Scalar]()
    for name, line in zip(names, values, strict=True):
        logarithmic = is_logarithmic(name, "merged", "") and name != "nonfinite"
        shown = powers(line) if logarithmic else np.where(np.isfinite(line), line, np.nan)
        there = np.isfinite(line)  # the sentinel has some statistics at every step
        scalars.append(
            Scalar(
                name=name,
                steps=steps[there],
                values=shown[there],
                bad=bad,
                logarithmic=logarithmic,
            )
        )
    return scalars


def powers(values: Floats) -> Floats:
    """log2 of the magnitude, NaN for zero."""
    magnitude = np.abs(values)
    return np.log2(magnitude, where=magnitude > 0, out=np.full_like(magnitude, np.nan))


def training_names(training: xr.DataArray) -> list[str]:
    """The names of training statistics, the loss first."""
    names = [str(name) for name in training["name"].values]
    return sorted(names, key=lambda name: (name != "loss", "loss" not in name, name))


def load_training(run: Run, name: str, found: xr.DataArray | None = None) -> Lines:
    """One training statistic on each rank that reported it.

    Args:
        run: an open run.
        name: of the statistic.
        found: all that the run has, if that is known already.
    """
    found = run.training() if found is None else found
    names: list[str] = found["name"].values.tolist()
    if name not in names:
        steps, empty = np.empty(0, np.int64), np.empty(0)
        return Lines(name=name, steps=steps, values={}, low=empty, high=empty, bad=[])
    told = found.values.transpose(1, 0, 2)  # [ranks, steps, names]
    values = told[:, :, names.index(name)]
    steps, attempts = found["step"].values, found["attempt"].values
    ranks: list[int] = found["rank"].values.tolist()
    heard = [i for i in range(len(ranks)) if not np.isnan(values[i]).all() or len(ranks) == 1]
    told, values, ranks = told[heard], values[heard], [ranks[i] for i in heard]
    # An infinite loss has no place on the axis; it is marked instead.
    at = np.argwhere(np.isinf(values))
    bad = [(int(steps[column]), ranks[row]) for row, column in at]
    values = np.where(np.isfinite(values), values, np.nan)
    by_rank = dict(zip(ranks, values, strict=True))
    if name == "loss":
        bad += _lost(run, attempts, steps, by_rank)
    low, high = envelope(values)
    given = np.asarray(np.isfinite(told).any(axis=2))
    if bad:  # told already
        rows = {rank: row for row, rank in enumerate(ranks)}
        at = np.searchsorted(steps, [step for step, _ in bad])
        given[[rows[rank] for _, rank in bad], at] = False
    return Lines(
        name=name,
        steps=steps,
        values=by_rank,
        low=low,
        high=high,
        bad=bad,
        lost=steps[_gaps(values, given)],
        turns=turns_of(steps, attempts),
    )


def turns_of(steps: NDArray[np.int64], attempts: NDArray[np.int64]) -> list[tuple[int, int]]:
    """(step, attempt) where the records of another attempt than before begin.

    Args:
        steps: int64 [steps], ascending.
        attempts: int64 [steps]: which the record of each step is of.
    """
    at = np.flatnonzero(np.diff(attempts)) + 1
    return list(zip(steps[at].tolist(), attempts[at].tolist(), strict=True))


def _gaps(values: Floats, given: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool [steps]: where a rank that gave other statistics has no finite number of this one.

    Not before its first number, and not of a statistic that is given in half of the steps or fewer,
    as a validation loss is.

    Args:
        values: float64 [ranks, steps]
        given: bool [ranks, steps]: where a rank gave any statistic.
    """
    known = np.flatnonzero(np.isfinite(values).any(axis=0))
    nowhere = np.zeros(values.shape[1], np.bool_)
    if not known.size:
        return nowhere
    first, end = known[0], known[-1] + 1
    if 2 * known.size <= int(given[:, first:end].any(axis=0).sum()):
        return nowhere
    gaps = (given & np.isnan(values)).any(axis=0)
    return np.where(np.arange(len(nowhere)) < first, nowhere, gaps)


def _lost(
    run: Run,
    attempts: NDArray[np.int64],
    steps: NDArray[np.int64],
    by_rank: Mapping[int, Floats],
) -> list[tuple[int, int]]:
    """(step, rank) where the loss was NaN: the store alone cannot tell that from none at all.

    An alert is of its own attempt, and none of the record after training, which has no loss, nor of
    a rank that a record lacks.

    Args:
        attempts: int64 [steps]: which the record of each step is of.
    """
    alerts = run.alerts()
    is_told = (alerts["rule"] == "loss-nonfinite").to_numpy()
    if not is_told.any():
        return []
    told = alerts.loc[is_told, ["attempt", "ranks", "first_step", "last_step"]]
    records = run.records()
    final = np.isin(steps, records.loc[records["final"], "step"])
    short = records.loc[~records["complete"], ["step", "missing"]]
    lacking = {(step, rank) for step, some in short.itertuples(index=False) for rank in some}
    found = list[tuple[int, int]]()
    for attempt, ranks, first, last in told.itertuples(index=False):
        during = (attempts == attempt) & (steps >= first) & ~final
        if not pd.isna(last):
            during &= steps <= last
        for rank in ranks or by_rank:
            if rank in by_rank:
                lost = steps[during & np.isnan(by_rank[rank])].tolist()
                found += [(step, rank) for step in lost if (step, rank) not in lacking]
    return found


def load_ranks(run: Run, statistic: str, *, site: str) -> Lines:
    """One site over steps on each rank that the store keeps."""
    table = run.ranks(statistic, site=site).transpose("rank", "step")
    counts = run.ranks("nonfinite", site=site).transpose("rank", "step")
    steps = np.asarray(table["step"].values, np.int64)
    ranks = [int(rank) for rank in table["rank"].values]
    values = np.asarray(table.values, float)
    wrong = np.nan_to_num(np.asarray(counts.values, float)) > 0
    bad_steps = counts["step"].values  # the sentinel counts in every step
    bad = [(int(bad_steps[column]), ranks[row]) for row, column in np.argwhere(wrong)]
    low, high = envelope(values)
    kept = [row for row in range(len(ranks)) if np.isfinite(values[row]).any()]
    if len(kept) < len(ranks) or len(ranks) > MOST_LINES:
        # The store keeps the extremes of all ranks, even where it keeps few ranks themselves.
        low, high = (
            on_steps(run.scalar(statistic, sites=[site], view=view), steps)
            for view in ("min", "max")
        )
    return Lines(
        name=statistic,
        steps=steps,
        values={ranks[row]: values[row] for row in kept},
        low=low,
        high=high,
        bad=bad,
        turns=turns_of(steps, table["attempt"].values),
    )


def why_no_sketch(run: Run, *, site: str, step: int | None) -> str:
    """What to say where a site has no histogram, and where the nearest one is."""
    if step is None:
        return "Not observed."
    seen = run.scalar("abs_max", site=site, steps=slice(step, step))
    if not seen.size or bool(seen.isnull().all()):
        records = run.records()
        text = f"Not observed at step {step}"
        if bool((records["final"] & (records["step"] == step)).any()):
            text += ": the record after training has the weights alone"
        text += "."
    else:
        text = f"At step {step} the sentinel alone looked at this site: |x| is at most"
        text += f" {words.number(float(seen.values[0, 0]))}, and there is no histogram."
    sketched = run.scalar("rms", sites=[site]).dropna("step")["step"].values
    if not len(sketched):
        return text
    return f"{text} The nearest is at step {int(sketched[np.abs(sketched - step).argmin()])}."


def at_step(run: Run, lines: Lines, *, site: str, step: int | None) -> Lines:
    """The lines of `load_ranks`, the worst rank at a step named: not finite, zero, or the extreme.

    Zero is told of at most half of the ranks, of what grows with the tensor. None is where all
    have the same number.
    """
    lines = replace(lines, worst=None, why="")
    if step is None:
        return lines
    there = sorted(rank for at, rank in lines.bad if at == step)
    if there:
        why = f"{words.rank_words(there)} not finite at step {step}"
        return replace(lines, worst=there[0], why=why)
    at = lines.steps == step
    if np.array_equal(lines.low[at], lines.high[at]):
        return lines  # one rank, or all have the same number, as of a reduced gradient
    view = "argmin" if pool_of(lines.name, "merged") == "min" else "argmax"
    zero = [rank for rank, line in lines.values.items() if not line[at].any()]
    if view == "argmax" and lines.name in DEGREE and 0 < len(zero) <= len(lines.values) / 2:
        return replace(lines, worst=zero[0], why=f"{words.rank_words(zero)} zero at step {step}")
    found = run.scalar(lines.name, sites=[site], steps=slice(step, step), view=view)
    if found.size == 0 or np.isnan(rank := float(found.values.ravel()[-1])):
        return lines
    word = "smallest" if view == "argmin" else "largest"
    return replace(lines, worst=int(rank), why=f"{word} on rank {int(rank)} at step {step}")


# `found` is an xarray.DataArray, untyped here as all that comes from the query API.
def on_steps(found: object, steps: NDArray[np.int64]) -> Floats:
    """The only site's values at `steps`, NaN where there is none."""
    aligned = found.isel(site=0).reindex(step=steps)  # type: ignore[attr-defined]
    return np.asarray(aligned.values, float)


def envelope(values: Floats) -> tuple[Floats, Floats]:
    """Least and greatest over the first axis, NaN where there is no number."""
    if not len(values):
        return np.empty(0), np.empty(0)
    return np.fmin.reduce(values, axis=0), np.fmax.reduce(values, axis=0)


def level(steps: NDArray[np.int64], line: Floats, at: int, *, otherwise: float) -> float:
    """The height at which to mark a step without a number: that at which the line broke off.

    So all of one stretch are at one height.

    Args:
        steps: ascending.
        line: float64 [steps].
        at: the step.
        otherwise: the answer where the line has no number at all.
    """
    finite = np.flatnonzero(np.isfinite(line))
    if not finite.size:
        return otherwise
    before = int(np.searchsorted(steps[finite], at, "right")) - 1
    return float(line[finite[max(before, 0)]])


def thin(steps: NDArray[np.int64], values: Sequence[Floats], points: int) -> NDArray[np.intp]:
    """Which steps to draw so that about `points` are left and no extreme of any line is lost."""
    total = len(steps)
    if total <= points or not values:
        return np.arange(total)
    size = -(-total * (2 * len(values) + 1) // points)
    starts = np.arange(0, total, size)
    keep = [starts, [total - 1]]
    for line in values:
        padded = np.full(len(starts) * size, np.nan)
        padded[:total] = line
        buckets = padded.reshape(len(starts), size)
        for extreme in (np.fmin, np.fmax):
            same = buckets == extreme.reduce(buckets, axis=1, keepdims=True)
            # A bucket without a number keeps its first step.
            keep.append(starts + same.argmax(axis=1))
    return np.unique(np.concatenate(keep))


def describe(lines: Lines) -> str:
    """The lines in one sentence, for those who do not see them."""
    if not len(lines.steps) or not lines.values:
        if not lines.name:
            return "No training statistic has been recorded."
        if lines.bad:
            return f"No {lines.name}: no element is finite on {_bad(lines)}."
        return f"No {lines.name} has been recorded yet."
    text = f"{lines.name} on {words.rank_words(list(lines.values))}"
    known = np.flatnonzero(np.isfinite(lines.high))
    if known.size:
        low, high = float(lines.low[known[-1]]), float(lines.high[known[-1]])
        span = words.number(low) if low == high else f"{words.number(low)} to {words.number(high)}"
        text += f"; at step {int(lines.steps[known[-1]])}: {span}"
    if lines.why:
        text += f"; {lines.why}"
    zero = lines.steps[(lines.low == 0) & (lines.high == 0)]
    if 0 < zero.size < known.size:
        count = words.count(zero.size, "step")
        when = words.span(int(zero[0]), int(zero[-1]), _last(lines))
        text += f"; zero on all in {count} {when}"
    if lines.bad:
        text += f"; not finite on {_bad(lines)}"
    if lines.lost.size:
        count = words.count(lines.lost.size, "step")
        when = words.span(int(lines.lost[0]), int(lines.lost[-1]), _last(lines))
        text += f"; no finite number in {count} {when}: NaN, or not given"
    for step, attempt in lines.turns:
        text += f"; attempt {attempt} from step {step}"
    return text + "."


def _bad(lines: Lines) -> str:
    """Which ranks are not finite, and when; those first that were it first."""
    begins = dict[int, int]()
    for step, rank in lines.bad:
        begins[rank] = min(step, begins.get(rank, step))
    begin, end = min(begins.values()), max(step for step, _ in lines.bad)
    first = sorted(rank for rank, step in begins.items() if step == begin)
    text = f"{words.rank_words(first)} {words.span(begin, end, _last(lines))}"
    others = sorted(begins.keys() - set(first))
    return f"{text}, later on {words.rank_words(others)}, too" if others else text


def _last(lines: Lines) -> int:
    """The last step that has a number."""
    return max(lines.steps[np.isfinite(lines.high)].tolist(), default=0)
