"""How the pipeline itself is doing, as the page tells it: what it costs, what it lost, how late.

Pure functions of a run's own tables; every name from a store is escaped.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from . import words

if TYPE_CHECKING:
    import pandas as pd

    from ..store.query import Run

DROPS: Mapping[str, str] = {
    "steps_dropped": "steps not measured, for the agent was behind",
    "frames_dropped": "frames dropped for want of room",
    "ring_steps_dropped": "steps of the ring dropped for want of room",
    "reports_dropped": "reports of the training loop dropped",
    "tensors_stale": "tensors gone before they were read",
    "tensors_unsupported": "tensors that cannot be read",
    "sites_refused": "sites refused: more than a rank may have",
    "exact_counts_refused": "exact counts refused: more than a rank may have",
    "hook_errors": "errors in the agent",
}
"""Counters that are 0 where all is well, and what they count."""
LATE = 10
"""A live run whose newest record is this many usual intervals old is late."""
LATE_S = 30.0
"""And as many seconds at least: a commit takes its time."""


def is_late(age_s: float, interval_s: float | None) -> bool:
    """Whether a live run says nothing for longer than is usual.

    Args:
        age_s: since its newest record.
        interval_s: what usually is between two of them, if that is known.
    """
    return interval_s is not None and age_s > max(LATE * interval_s, LATE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """How the pipeline is doing."""

    interval_s: float | None
    """What usually is between two records."""
    pause_s: float | None
    """The longest time that was between two."""
    overhead: Mapping[int, float]
    """By rank: what the agent adds to a step, as a part of it."""
    stretch: float
    """How many times more rarely than asked for the collector lets all ranks sketch."""
    incomplete: int
    """Records that lack a rank."""
    records: int
    lost: Mapping[str, tuple[int, int]]
    """By cause: frames that are gaps of the run, and of how many ranks."""
    drops: Mapping[str, int]
    """By counter: what agents counted, over all ranks and attempts; without zeros."""


def intervals(records: pd.DataFrame) -> np.ndarray:
    """float64: seconds between the records of each attempt, as they came."""
    times = np.asarray(records["time"], "datetime64[ns]").astype(np.int64)
    attempts = records["attempt"].to_numpy(np.int64)
    order = np.lexsort((times, attempts))
    return np.diff(times[order])[np.diff(attempts[order]) == 0] / 1e9


def load_pipeline(run: Run, *, records: pd.DataFrame) -> Pipeline:
    """What a run tells of how it was made.

    Args:
        run: an open run.
        records: `run.records()`, which is at hand.
    """
    health, gaps = run.health(), run.gaps()
    between = intervals(records)
    lost = {
        str(cause): (sum(rows["frames"].tolist()), len(set(rows["rank"].tolist())))
        for cause, rows in gaps.groupby("cause")
    }
    drops = {name: int(_column(health, name, "total").sum()) for name in DROPS}
    return Pipeline(
        interval_s=float(np.median(between)) if len(between) else None,
        pause_s=float(between.max()) if len(between) else None,
        overhead=_overhead(health),
        stretch=float(np.nanmax([1.0, *_column(health, "stretch", "latest")])),
        incomplete=records["complete"].tolist().count(False),
        records=sum(run.attempts["records"].tolist()),
        lost=dict(sorted(lost.items(), key=lambda one: -one[1][0])),
        drops={name: number for name, number in drops.items() if number},
    )


def _column(health: pd.DataFrame, name: str, value: str) -> np.ndarray:
    """float64 [ranks]: a counter on each rank; zero where it is not told."""
    if (name, value) not in health.columns:
        return np.zeros(len(health))
    return np.nan_to_num(health[(name, value)].to_numpy(float))


def _overhead(health: pd.DataFrame) -> dict[int, float]:
    """By rank: the time in hooks over that of everything else, as docs/agent.md defines it."""
    hook, wall = (_column(health, name, "total") for name in ("hook_seconds", "wall_seconds"))
    own = wall - hook
    known = own > 0
    parts = np.divide(hook, own, where=known, out=np.zeros_like(own))
    ranks = [int(rank) for rank in health.index]
    return {rank: float(parts[i]) for i, rank in enumerate(ranks) if known[i]}


def pipeline(found: Pipeline) -> str:
    """It as a list of facts; what is not as it should be stands out."""
    rows = [_records(found), _cost(found), *_losses(found)]
    parts = "".join(
        f"<div{' class=off' if off else ''}><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>"
        for name, text, off in rows
    )
    return f'<h2>Pipeline</h2><dl class="facts pipeline">{parts}</dl>'


Row = tuple[str, str, bool]
"""A name, a text, and whether that is not as it should be."""


def _records(found: Pipeline) -> Row:
    if found.interval_s is None or found.pause_s is None:
        return "records", words.thousands(found.records), False
    text = f"{words.thousands(found.records)}, one every {words.seconds(found.interval_s)}"
    return "records", f"{text}; the longest pause was {words.seconds(found.pause_s)}", False


def _cost(found: Pipeline) -> Row:
    if not found.overhead:
        return "agent", "no agent told what it costs", False
    most = max(found.overhead, key=lambda rank: found.overhead[rank])
    middle = float(np.median(list(found.overhead.values())))
    text = f"adds {words.share(middle)} to a step"
    if len(found.overhead) > 1:
        text += f"; most on rank {most}: {words.share(found.overhead[most])}"
    if found.stretch > 1:
        text += f"; sketches {found.stretch:g} times more rarely than asked, to stay in its budget"
    return "agent", text, found.stretch > 1


def _losses(found: Pipeline) -> list[Row]:
    rows: list[Row] = []
    if found.incomplete:
        of = f"{words.thousands(found.incomplete)} of {words.count(found.records, 'record')}"
        rows.append(("incomplete", f"{of} lack a rank", True))
    for cause, (frames, ranks) in found.lost.items():
        text = f"{words.count(frames, 'frame')} of {words.count(ranks, 'rank')}: {cause}"
        rows.append(("lost", text, True))
    for name, number in found.drops.items():
        rows.append(("agents", f"{words.thousands(number)} {DROPS[name]}", True))
    return rows or [("lost", "nothing", False)]


def attempts(table: pd.DataFrame) -> str:
    """The starts of the job, the latest first, as a table."""
    if not len(table):
        return ""
    heads = ("attempt", "ranks", "mesh", "records", "steps", "from (UTC)", "to (UTC)")
    newest_first = reversed(table.to_dict("index").items())
    rows = [_attempt(int(str(number)), row) for number, row in newest_first]
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        f"<h2>{words.count(len(table), 'attempt')}</h2>"
        f'<table class="plain"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _attempt(number: int, row: Mapping[Hashable, object]) -> str:
    mesh = row["mesh"]
    axes = (
        " × ".join(f"{axis} {size}" for axis, size in mesh.items())
        if isinstance(mesh, dict)
        else ""
    )
    first, last = row["first_step"], row["last_step"]
    steps = "none" if not row["records"] else str(first) if first == last else f"{first}–{last}"
    times = [_time(row[name]) for name in ("started", "updated")]
    cells: Sequence[str] = (
        f"{row['ranks']} of {row['world_size']}",
        axes,
        str(row["records"]),
        steps,
    )
    told = "".join(f"<td>{escape(cell)}</td>" for cell in (*cells, *times))
    return f'<tr><th scope="row">{number}</th>{told}</tr>'


def _time(value: object) -> str:
    text = str(value)
    return "" if text == "NaT" else text[:19]
