"""The ranks of an attempt laid out by the axes of their mesh, and how each is doing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from typing import TYPE_CHECKING, Literal

from . import words

if TYPE_CHECKING:
    from ..store.query import Run

WIDTH = 16
"""Ranks in a line where no mesh says how they lie."""
MOST_NAMED = 512
"""With more ranks than this their numbers are in the read-outs alone."""

State = Literal["present", "missing", "blamed", "unknown"]
MEANINGS: dict[State, str] = {
    "present": "in the newest record, not blamed",
    "missing": "missing there",
    "blamed": "blamed by a finding",
    "unknown": "never heard of",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One rank."""

    rank: int | None
    """None where no rank has told that it is there."""
    state: State
    place: str
    """Coordinates, host and device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Ranks in lines: along a line the last axis runs."""

    axes: dict[str, int]
    """Axis to size; empty where there is no mesh."""
    lines: list[tuple[str, list[Cell]]]
    """Each with its coordinates on the other axes."""


def load_mesh(run: Run, *, attempt: int, missing: Collection[int], blamed: Collection[int]) -> Mesh:
    """How the ranks of an attempt lie.

    Args:
        run: an open run.
        attempt: of which.
        missing: ranks that the newest record lacks.
        blamed: ranks that a finding names.
    """
    start = run.attempts.loc[attempt]
    hosts = run.hosts(attempt)
    heard = {int(str(rank)): row for rank, row in hosts.to_dict("index").items()}
    axes: dict[str, int] = dict(start["mesh"])

    def cell(rank: int | None, where: str) -> Cell:
        row = heard.get(rank) if rank is not None else None
        if rank is None or row is None:
            return Cell(rank=rank, state="unknown", place=where)
        state: State = "present"
        if rank in blamed or rank in missing:
            state = "blamed" if rank in blamed else "missing"
        place = [where, f"{row['host'] or '?'}, {row['device'] or '?'}"]
        return Cell(rank=rank, state=state, place="; ".join(part for part in place if part))

    at = {tuple(sorted(dict(row["coordinates"]).items())): rank for rank, row in heard.items()}
    size = int(start["world_size"])
    if not axes or len(at) < len(heard):
        ranks = range(size)
        lines = [
            (f"{i}", [cell(rank, "") for rank in ranks[i : i + WIDTH]]) for i in ranks[::WIDTH]
        ]
        return Mesh(axes={}, lines=lines)
    *outer, inner = axes
    lines = list[tuple[str, list[Cell]]]()
    for place in product(*(range(axes[axis]) for axis in outer)):
        around = dict(zip(outer, place, strict=True))
        row = list[Cell]()
        for own in range(axes[inner]):
            there = around | {inner: own}
            row.append(cell(at.get(tuple(sorted(there.items()))), _coordinates(there)))
        lines.append((_coordinates(around), row))
    return Mesh(axes=axes, lines=lines)


def _coordinates(place: dict[str, int]) -> str:
    return ", ".join(f"{axis}={number}" for axis, number in place.items())


def mesh(found: Mesh) -> str:
    """The ranks as a table of small cells; what each is, is in its read-out, too."""
    cells = [cell for _, line in found.lines for cell in line]
    named = len(cells) <= MOST_NAMED
    rows = "".join(_line(name, line, named=named) for name, line in found.lines)
    states: Sequence[State] = [state for state in MEANINGS if any(c.state == state for c in cells)]
    keys = "".join(
        f'<span class="key"><i class="{state}"></i>{MEANINGS[state]}'
        f" ({sum(c.state == state for c in cells)})</span>"
        for state in states
    )
    detail = " × ".join(f"{axis} {size}" for axis, size in found.axes.items())
    aside = f'<span class="detail">{escape(detail)}</span>' if detail else ""
    return (
        f"<h2>Ranks{aside}</h2><div class='legend'>{keys}</div>"
        f'<div class="scroll"><table class="mesh"><tbody>{rows}</tbody></table></div>'
        f'<p class="summary">{escape(describe(found))}</p>'
    )


def _line(name: str, line: Sequence[Cell], *, named: bool) -> str:
    told = "".join(
        f'<td class="{cell.state}" title="{escape(_title(cell))}">'
        f"{cell.rank if named and cell.rank is not None else ''}</td>"
        for cell in line
    )
    return f'<tr><th scope="row">{escape(name)}</th>{told}</tr>'


def _title(cell: Cell) -> str:
    rank = "no rank" if cell.rank is None else f"rank {cell.rank}"
    return f"{rank} ({cell.place}): {MEANINGS[cell.state]}" if cell.place else rank


def describe(found: Mesh) -> str:
    """It in one sentence, for those who do not see it."""
    cells = [cell for _, line in found.lines for cell in line]
    parts = list[str]()
    for state in ("missing", "blamed", "unknown"):
        ranks = [cell.rank for cell in cells if cell.state == state and cell.rank is not None]
        if ranks:
            parts.append(f"{words.rank_words(ranks)} {MEANINGS[state]}")
    told = "; ".join(parts) or "all of them in the newest record"
    return f"{words.count(len(cells), 'rank')}; {told}."
