"""Where what is wrong began: the first site in the order of cause and effect, and on which rank.

Within a step weights are read first, then FSDP gathers them, the forward runs, the backward, the
reduction over ranks and the update. So of the sites that are bad in the first bad step the earliest
of each rank is where it began there; of the ranks, those that are earliest of all: the others took
it over from them. What that says about the cause is in `cause.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..sketch.mesh_axes import PIPELINE_PARALLEL
from .badness import Badness, Seen
from .cause import BACKWARD, Case, Cause, phase_of
from .reader import Reader
from .record import SiteInfo
from .selection import ATTEMPT, STEP, Steps

MOST_NAMED = 16
"""Ranks that a sentence names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBad:
    """Where what is wrong was seen first, and what that says about where it began."""

    site: str
    kind: str
    name: str
    step: int
    """In which it was seen first."""
    ranks: tuple[int, ...]
    """The ranks on which it began; where the run kept no numbers by rank, that of the worst."""
    cause: Cause
    first_step: int | None
    last_step: int
    """The step in which it began, or the first and last of those in which it may have; no first
    where nothing good was observed before."""
    after: str
    """The site that was executed before it on that rank, and was good; empty for none."""
    spread: Mapping[int, str]
    """By rank: the first site that was bad there, in the order of execution; where the run kept no
    numbers by rank, only of those that were the worst somewhere."""
    text: str
    """All that in sentences for people."""


def first_bad(
    reader: Reader, badness: Badness, steps: Steps = None, attempt: int | None = None
) -> FirstBad | None:
    """See `Run.first_bad`."""
    chosen = reader.choose(steps=steps, attempt=attempt)
    found = badness.first(reader, chosen) if len(chosen) else None
    if found is None:
        return None
    at, sites = found
    record = int(chosen.records[at])
    facts = reader.facts()
    here = Seen.of(reader, record, badness, sites)
    begun = _begun(reader, here, int(facts[record, ATTEMPT]))
    place, (_, rows) = min(begun.items(), key=lambda item: item[1][0])
    case = Case(reader, record, here, place, rows)
    cause, first, last, why = case.verdict()
    site, ranks = reader.meta.sites[place], tuple(here.ranks[row] for row in rows)
    named = ", ".join(map(str, ranks[:MOST_NAMED])) + ", …" * (len(ranks) > MOST_NAMED)
    where = "" if reader.is_imported else f" on rank{'s' * (len(ranks) > 1)} {named}"
    step = int(facts[record, STEP])
    return FirstBad(
        site=site.label,
        kind=site.kind,
        name=site.name,
        step=step,
        ranks=ranks,
        cause=cause,
        first_step=first,
        last_step=last,
        after=case.before(),
        spread={
            here.ranks[row]: reader.label(first_there)
            for first_there, (_, held) in begun.items()
            for row in held
        },
        text=f"First {badness.words}: {site.label}{where}, step {step}. {why}",
    )


Key = tuple[int, int, int]
"""Place of a site on a rank in the order of cause and effect: phase, pipeline stage, order."""


def _begun(reader: Reader, here: Seen, attempt: int) -> dict[int, tuple[Key, list[int]]]:
    """By place of a site: its key, and the rows of the ranks on which it is the first bad one."""
    infos = {rank.rank: rank.coordinates for rank in reader.meta.attempts[attempt].ranks}
    order = reader.choose_sites().tolist()
    begun = dict[int, tuple[Key, list[int]]]()
    for row, rank in enumerate(here.ranks):
        stage = infos.get(rank, {}).get(PIPELINE_PARALLEL, 0)
        keys = [
            (_key(reader.meta.sites[place], stage, number), place)
            for number, place in enumerate(order)
            if here.bad[row, place]
        ]
        if keys:
            key, place = min(keys)
            known = begun.setdefault(place, (key, []))
            known[1].append(row)
    return {place: begun[place] for place in np.array(order)[np.isin(order, list(begun))].tolist()}


def _key(site: SiteInfo, stage: int, number: int) -> Key:
    phase = phase_of(site)
    return phase, -stage if phase == BACKWARD else stage, number
