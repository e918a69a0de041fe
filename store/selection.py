"""Which records and sites a question is about: pure choices over facts in memory."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..sketch.errors import SettingError
from ..sketch.table import COUNT, UNBINNED
from .layout import COLUMNS
from .record import SiteInfo

Indices = NDArray[np.int64]
Labels = str | Collection[str] | None
"""Labels of sites; None: all."""
Steps = slice | tuple[int | None, int | None] | int | np.integer[Any] | None
"""Steps from first to last, both included; None is open. One step; or None: all."""

STEP, ATTEMPT, TIME, COMPLETE, PARTIAL, FINAL = range(6)
ROWS, RANKS, SKETCHED, GLANCED, BAD, UNMATCHED, KEPT, ALONE = range(6, len(COLUMNS))

NEAR_GAP = 64
"""Two wanted places less than this apart are read in one go: they mostly share a chunk."""


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """Records by ascending step, each step once."""

    records: Indices
    """int64 [steps]: index of the record."""
    steps: Indices
    """int64 [steps]"""
    attempts: Indices
    """int64 [steps]"""
    glanced: bool = False
    """Whether some sites were left to the sentinel in these steps, or in those between them."""

    def __len__(self) -> int:
        return len(self.records)


def choose_records(
    facts: Indices,
    *,
    steps: Steps = None,
    attempt: int | None = None,
    sketched: bool = False,
    deleted: int = 0,
) -> Chosen:
    """The record of each step: that of the last attempt, or of the one asked for.

    Where an attempt recorded a step twice it is the one with more ranks, else the later: a rewound
    step replaces the old one, and one rank's frame that came too late does not hide the others.
    A final record, of weights alone, counts where no attempt recorded the step itself: where a
    later attempt ended earlier, what the earlier one saw of that step is not hidden.

    Args:
        facts: int64 [records, columns], the rows of the array `records`.
        steps: Which steps, first and last included.
        attempt: Only records of this one.
        sketched: Leave out the steps in which all was left to the sentinel and found finite.
        deleted: Leave out the records below this: retention deleted them.

    Raises:
        SettingError: `steps` cannot be understood, or ends before it begins, or is one that was not
            recorded, or there is no such attempt.
    """
    if is_one(steps):
        choose_step(facts, int(steps), attempt, deleted=deleted)  # raises, and names the nearest
    low, high = step_limits(steps)
    wanted = (facts[:, STEP] >= low) & (facts[:, STEP] <= high)
    wanted[:deleted] = False
    if attempt is not None:
        known = np.unique(facts[:, ATTEMPT])
        if attempt not in known:
            names = ", ".join(map(str, known)) or "none yet"
            raise SettingError(f"There is no record of attempt {attempt}; there are {names}.")
        wanted &= facts[:, ATTEMPT] == attempt
    records = np.flatnonzero(wanted)
    columns = facts[records]
    is_itself = columns[:, FINAL] == 0
    order = np.lexsort(
        (records, columns[:, RANKS], columns[:, ATTEMPT], is_itself, columns[:, STEP])
    )
    ordered = records[order]
    step = facts[ordered, STEP]
    is_last = np.append(step[1:] != step[:-1], True)[: len(step)]
    last = ordered[is_last]
    chosen = Chosen(last, facts[last, STEP], facts[last, ATTEMPT])
    return within(chosen, facts, sketched=sketched)


def within(
    chosen: Chosen, facts: Indices, *, steps: Steps = None, sketched: bool = False
) -> Chosen:
    """Those of some records that are of these steps; see `choose_records`.

    Raises:
        SettingError: `steps` cannot be understood.
    """
    low, high = step_limits(steps)
    some = slice(
        int(np.searchsorted(chosen.steps, low)), int(np.searchsorted(chosen.steps, high, "right"))
    )
    records = chosen.records[some]
    glanced = facts[records, GLANCED]
    kept = np.ones(len(records), np.bool_)
    if sketched:
        kept = may_hold_all(facts[records, SKETCHED], glanced, facts[records, BAD])
    return Chosen(
        records[kept],
        chosen.steps[some][kept],
        chosen.attempts[some][kept],
        bool((glanced > 0).any()),
    )


def may_hold_all(sketched: Indices, glanced: Indices, nonfinite: Indices) -> NDArray[np.bool_]:
    """bool [records]: which may hold more than a sentinel sees, or hold what is not finite.

    Args:
        sketched, glanced, nonfinite: int64 [records]: how many of its sites are so.
    """
    return (sketched > 0) | (glanced == 0) | (nonfinite > 0)


def is_counted(counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [records, sites]: which were observed, and not left to the sentinel."""
    return (counts[..., COUNT] >= 0) & (counts[..., UNBINNED] == 0)


def is_one(steps: Steps) -> TypeGuard[int | np.integer[Any]]:
    """Whether a single step is asked for, which must have been recorded."""
    return isinstance(steps, int | np.integer)


def step_limits(steps: Steps) -> tuple[int, int]:
    """The first and the last step that are wanted.

    Raises:
        SettingError: it cannot be understood, or ends before it begins.
    """
    lowest, highest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    match steps:
        case None:
            first, last = None, None
        case slice() if steps.step is None:
            first, last = steps.start, steps.stop
        case (first, last):
            pass
        case int() | np.integer():
            first = last = int(steps)
        case _:
            raise SettingError(
                f"`steps` must be a step, (first, last) or slice(first, last), got {steps!r}."
            )
    low, high = lowest if first is None else int(first), highest if last is None else int(last)
    if low > high:
        raise SettingError(f"`steps` must not end before it begins, got {low} to {high}.")
    return low, high


def choose_step(facts: Indices, step: int, attempt: int | None = None, *, deleted: int = 0) -> int:
    """The index of the record of one step.

    Raises:
        SettingError: the step was not recorded, or was deleted; the message names the nearest.
    """
    chosen = choose_records(facts, steps=(step, step), attempt=attempt, deleted=deleted)
    if len(chosen):
        return int(chosen.records[0])
    every = choose_records(facts, attempt=attempt, deleted=deleted).steps
    was_there = step in facts[:deleted, STEP]
    what = "was deleted by retention" if was_there else "was not recorded"
    raise SettingError(f"Step {step} {what}; {nearest(every, step)}.")


def check_attempt(attempt: int, attempts: Sequence[object]) -> None:
    """That a run which has attempts has this one.

    Raises:
        SettingError: it has not.
    """
    if attempts and not 0 <= attempt < len(attempts):
        raise SettingError(f"There is no attempt {attempt}; there are {len(attempts)}.")


def nearest(recorded: Indices, step: int) -> str:
    """Which of the recorded steps, which ascend, are next to one that is not among them."""
    place = int(np.searchsorted(recorded, step))
    match recorded[max(place - 1, 0) : place + 1].tolist():
        case [before, after]:
            return f"the nearest recorded are {before} and {after}"
        case [only]:
            return f"the nearest recorded is {only}"
        case _:
            return "nothing is recorded yet"


def choose_sites(
    known: Sequence[SiteInfo],
    *,
    kind: str | Collection[str] | None = None,
    name: str | None = None,
    site: str | None = None,
    sites: Labels = None,
    index: Mapping[str, int] | None = None,
) -> Indices:
    """int64: indices of the sites of a kind, whose name matches, among those labels.

    Without labels they come in the order of execution; with labels in the order of these.

    Args:
        known: All sites of the run.
        kind: One kind, or several.
        name: A regular expression, searched for in the site's name, and in that with the slot and
            the call behind it, as in `up.weight[exp_avg]` or `attn[1]#2`.
        site: Label of the only site.
        sites: In its place, labels of several.
        index: Their indices by label, if they are known.

    Raises:
        SettingError: nothing matches, or the expression is broken; the message lists near names.
    """
    if site is not None and sites is not None:
        raise SettingError("Choose by `site`, which is one, or by `sites`, not by both.")
    sites = sites if site is None else site
    if sites is None:
        places = execution_order(known)
    else:
        places = by_label(index_of(known) if index is None else index, sites)
    kinds = None if kind is None else {kind} if isinstance(kind, str) else set(kind)
    pattern = compiled(name)
    chosen = [
        place
        for place in places
        if (kinds is None or known[place].kind in kinds)
        and (pattern is None or _matches(pattern, known[place]))
    ]
    if not chosen and known:
        raise SettingError(nothing_matches(known, kinds, name))
    return np.array(chosen, np.int64)


def _matches(pattern: re.Pattern[str], site: SiteInfo) -> bool:
    if pattern.search(site.name):
        return True
    return bool(site.slot or site.occurrence) and bool(pattern.search(site.label.partition(":")[2]))


def lengths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """How many sites each row has.

    Raises:
        SettingError: a row has none.
    """
    lengths = [len(row) for row in rows]
    if 0 in lengths:
        raise SettingError(f"Each of `rows` must have a site; row {lengths.index(0)} has none.")
    return lengths


def execution_order(known: Sequence[SiteInfo]) -> list[int]:
    """Indices of all sites in the order in which they are first executed within a step."""
    return sorted(range(len(known)), key=lambda place: (known[place].order, place))


def index_of(known: Sequence[SiteInfo]) -> dict[str, int]:
    """The indices of all sites by label."""
    return {site.label: place for place, site in enumerate(known)}


def by_label(index: Mapping[str, int], labels: str | Collection[str]) -> list[int]:
    """The indices of these labels."""
    wanted = [labels] if isinstance(labels, str) else list(labels)
    for label in wanted:
        if label not in index:
            near = get_close_matches(label, index, n=3, cutoff=0.4)
            hint = f"; near are {', '.join(near)}" if near else ""
            raise SettingError(f"There is no site {label!r}{hint}.")
    return [index[label] for label in wanted]


def compiled(name: str | None) -> re.Pattern[str] | None:
    """The regular expression of a name."""
    # Users without a type checker may pass anything.
    if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SettingError(f"`name` is one regular expression, as 'up|down', got {name!r}.")
    try:
        return None if name is None else re.compile(name)
    except re.error as error:
        raise SettingError(f"`name` must be a regular expression, got {name!r}: {error}.") from None


def nothing_matches(known: Sequence[SiteInfo], kinds: set[str] | None, name: str | None) -> str:
    """A sentence for a choice that finds no site."""
    there = {site.kind for site in known}
    if kinds is not None and not kinds & there:
        asked, known_kinds = " or ".join(sorted(kinds)), ", ".join(sorted(there))
        return f"No site is of kind {asked}; there are {known_kinds}."
    names = {site.name for site in known if kinds is None or site.kind in kinds}
    among = "" if kinds is None else f" among those of kind {' or '.join(sorted(kinds))}"
    return f"No site's name matches {name!r}{among}; {near_names(name, names)}."


def near_names(name: str | None, names: Collection[str]) -> str:
    """Which names are like one that is not among them, or some of all; the end of a sentence."""
    near = get_close_matches(name or "", names, n=3, cutoff=0.5)
    if near:
        return f"near are {', '.join(near)}"
    first = sorted(names)[:3]
    return f"there are {', '.join(first)}{', …' if len(names) > len(first) else ''}"


def stretches(places: Indices, gap: int = NEAR_GAP) -> Iterator[tuple[slice, slice]]:
    """Cut ascending places into stretches to read at once.

    Gives for each (the slice of `places`, the range that they lie in).
    """
    if not len(places):
        return
    cuts = np.flatnonzero(np.diff(places) > gap) + 1
    for start, stop in zip([0, *cuts], [*cuts, len(places)], strict=True):
        yield slice(int(start), int(stop)), slice(int(places[start]), int(places[stop - 1]) + 1)


def first_ranks(words: NDArray[np.int64]) -> Indices:
    """int64 [records]: the lowest rank whose bit is set in each record's mask."""
    bits = np.unpackbits(words.astype("<i8").view(np.uint8), axis=1, bitorder="little")
    return bits.argmax(axis=1) if len(bits) else np.zeros(0, np.int64)


def ranks_in(words: NDArray[np.int64]) -> list[int]:
    """The ranks whose bits are set in one record's mask."""
    bits = np.unpackbits(words.astype("<i8").view(np.uint8), bitorder="little")
    return [int(rank) for rank in np.flatnonzero(bits)]


def steps_from(step: int | None, steps: str | None) -> Steps:
    """The steps that options name: one, or `A:B` with both ends included.

    Raises:
        SettingError: both are given, or the second is neither a step nor a pair of them.
    """
    if step is not None and steps is not None:
        raise SettingError("Give --step or --steps, not both.")
    if steps is None:
        return step
    first, colon, last = steps.partition(":")
    try:
        if not colon:
            return int(first)
        return (int(first) if first else None, int(last) if last else None)
    except ValueError:
        raise SettingError(f"--steps must be as 100, 100:200, 100: or :, got {steps!r}.") from None
