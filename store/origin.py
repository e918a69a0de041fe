"""Where what is wrong began: the first site in the order of cause and effect, and on which rank.

Within a step weights are read first, then the forward runs, the backward, the reduction over ranks
and the update. So of the sites that are bad in the first bad step the earliest of each rank is
where it began there; of the ranks, those that are earliest of all: the others took it over from
them. What was not observed is said, and never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .badness import Badness, Seen
from .reader import Reader
from .record import SPREAD, SiteInfo
from .selection import Chosen, Indices, choose_records, choose_sites

Cause = Literal["module", "input", "backward", "reduction", "update", "weights", "unknown"]
"""`module`: it was made in the forward, by good weights. `input`: it came from outside of the
modules. `backward`: it was made there. `reduction`: all ranks' own gradients were good. `update`:
the optimizer made it, of good gradients. `weights`: weights were bad already when the step began.
`unknown`: what it was made of was not observed."""

WEIGHTS = ("weight", "unsharded_weight")
GRADIENTS = ("local_weight_gradient", "weight_gradient")
PHASES = {
    **dict.fromkeys(WEIGHTS, 0),
    **dict.fromkeys(("input", "activation", "tap"), 1),
    **dict.fromkeys(("activation_gradient", "local_weight_gradient"), 2),
    "weight_gradient": 3,
    **dict.fromkeys(("optimizer_state", "update"), 4),
}
FORWARD, BACKWARD = 1, 2


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
    where it was bad when observing began."""
    after: str
    """The site that was executed before it on that rank, and was good; empty for none."""
    spread: Mapping[int, str]
    """By rank: the first site that was bad there, in the order of execution."""
    text: str
    """All that in sentences for people."""


def first_bad(reader: Reader, badness: Badness) -> FirstBad | None:
    """See `Run.first_bad`."""
    chosen = choose_records(reader.facts())
    found = badness.first(reader, chosen) if len(chosen) else None
    if found is None:
        return None
    at, sites = found
    step = Seen.of(reader, int(chosen.records[at]), badness, sites)
    begun = _begun(reader, step, int(chosen.attempts[at]))
    [(place, rows), *_] = sorted(begun.items(), key=lambda item: item[1][0])
    return _Judge(reader, badness, chosen, at, step, place, rows[1]).verdict(
        {step.ranks[row]: reader.label(first) for first, (_, held) in begun.items() for row in held}
    )


Key = tuple[int, int, int]
"""Place of a site on a rank in the order of cause and effect: phase, pipeline stage, order."""


def _begun(reader: Reader, step: Seen, attempt: int) -> dict[int, tuple[Key, list[int]]]:
    """By place of a site: its key, and the rows of the ranks on which it is the first bad one."""
    infos = {rank.rank: rank.coordinates for rank in reader.meta.attempts[attempt].ranks}
    order = choose_sites(reader.meta.sites).tolist()
    begun = dict[int, tuple[Key, list[int]]]()
    for row, rank in enumerate(step.ranks):
        stage = infos.get(rank, {}).get("pp", 0)
        keys = [
            (_key(reader.meta.sites[place], stage, number), place)
            for number, place in enumerate(order)
            if step.bad[row, place]
        ]
        if keys:
            key, place = min(keys)
            known = begun.setdefault(place, (key, []))
            known[1].append(row)
    return begun


def _key(site: SiteInfo, stage: int, number: int) -> Key:
    is_gradient = site.kind == "tap" and site.slot.startswith("gradient")
    phase = BACKWARD if is_gradient else PHASES.get(site.kind, FORWARD)
    return phase, -stage if phase == BACKWARD else stage, number


@dataclass(frozen=True, slots=True)
class _Judge:
    """What the first bad site says of the origin."""

    reader: Reader
    badness: Badness
    chosen: Chosen
    at: int
    """Which of the chosen records."""
    here: Seen
    place: int
    """Of the site."""
    rows: Sequence[int]
    """Of the ranks."""

    def verdict(self, spread: Mapping[int, str]) -> FirstBad:
        """The whole answer."""
        site, step = self._site(self.place), int(self.chosen.steps[self.at])
        cause, first, last, why = self._cause(site, step)
        ranks = tuple(self.here.ranks[row] for row in self.rows)
        after = self._before_it()
        who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        return FirstBad(
            site=site.label,
            kind=site.kind,
            name=site.name,
            step=step,
            ranks=ranks,
            cause=cause,
            first_step=first,
            last_step=last,
            after=after,
            spread=dict(sorted(spread.items())),
            text=f"First {self.badness.words}: {site.label} on {who}, step {step}. {why}",
        )

    def _cause(self, site: SiteInfo, step: int) -> tuple[Cause, int | None, int, str]:
        """Cause, first and last step in which it can have begun, and why, in a sentence."""
        phase = PHASES.get(site.kind, FORWARD)
        if phase == PHASES["weight"]:
            return self._of_weight(site, step)
        if phase == PHASES["optimizer_state"]:
            return self._of_state(site, step)
        own = [place for place, one in enumerate(self.reader.meta.sites) if _is_weight(one, site)]
        inputs = self._places(site.name, "input")
        fed = site.kind == "activation" and self._seen_at(inputs)
        if not (self._weights_were_good() or (fed and own and self._seen_at(own))):
            return self._unknown(step, "Not all weights were observed in this step")
        if phase == PHASES["weight_gradient"] and self._seen_at(
            self._places(site.name, "local_weight_gradient")
        ):
            why = "Every rank's own was good: the reduction, unscaling or clipping made it."
            return "reduction", step, step, why
        before = self._before_it() or "nothing observed"
        if phase != FORWARD:
            why = f"The weights were good; the backward made it, after {before}."
            return "backward", step, step, why
        if site.kind == "input":
            why = f"The weights were good; it came in from outside of the modules, after {before}."
            return "input", step, step, why
        weights = "Its weights were good" if own else "It has no weights of its own"
        if fed:
            return "module", step, step, f"{weights}, and so were its inputs: it made it."
        return "module", step, step, f"{weights}, and what ran before it ({before}) was, too."

    def _of_weight(self, site: SiteInfo, step: int) -> tuple[Cause, int | None, int, str]:
        before = self._last_seen(self.place)
        if before is None:
            return "weights", None, step, "It was so when it was first observed."
        record = self.chosen.records[np.searchsorted(self.chosen.steps, before)]
        gradients = self._places(site.name, *GRADIENTS)
        if before < step - 1:
            why = f"It was good in step {before}, and began up to step {step - 1}, not observed."
            return "weights", before, step - 1, why
        if gradients and self._observed(np.array([record]), gradients).any():
            why = f"The update of step {before} made it, of good gradients."
            return "update", before, before, why
        why = f"It began in step {before}, in gradients that were not observed or in the update."
        return "weights", before, before, why

    def _of_state(self, site: SiteInfo, step: int) -> tuple[Cause, int | None, int, str]:
        before = self._last_seen(self.place)
        gradients = self._places(site.name, "weight_gradient")
        if before == step - 1 and self._seen_at(gradients):
            return "update", step, step, "The update of this step made it, of a good gradient."
        return self._unknown(step, "Its gradient or its state before were not observed")

    def _unknown(self, step: int, why: str) -> tuple[Cause, int | None, int, str]:
        first = self._last_seen(self.place)
        if first is None:
            return (
                "unknown",
                None,
                step,
                f"{why}: it may have begun before any was.",
            )
        return "unknown", first, step, f"{why}: it began in steps {first} to {step}."

    def _weights_were_good(self) -> bool:
        """Whether all weights of the run were observed in this step, on some rank each."""
        sites = self.reader.meta.sites
        weights = [place for place, one in enumerate(sites) if one.kind == "weight"]
        return bool(weights) and bool(self.here.seen[:, weights].any(axis=0).all())

    def _before_it(self) -> str:
        """The label of the site that was executed before this one on the rank."""
        row, before = self.rows[0], ""
        phase = PHASES.get(self._site(self.place).kind, FORWARD)
        for place in choose_sites(self.reader.meta.sites).tolist():
            if place == self.place:
                break
            earlier = PHASES.get(self._site(place).kind, FORWARD)
            if self.here.seen[row, place] and FORWARD <= earlier <= phase:
                before = self.reader.label(place)
        return before

    def _site(self, place: int) -> SiteInfo:
        return self.reader.meta.sites[place]

    def _places(self, name: str, *kinds: str) -> list[int]:
        sites = enumerate(self.reader.meta.sites)
        return [place for place, one in sites if one.kind in kinds and one.name == name]

    def _seen_at(self, places: Sequence[int]) -> bool:
        """Whether one of these sites was observed in this step on a rank where it began."""
        return bool(self.here.seen[list(self.rows)][:, list(places)].any())

    def _last_seen(self, place: int) -> int | None:
        """The last step before this one in which a site was observed."""
        known = self._observed(self.chosen.records[: self.at], [place])[:, 0]
        steps = self.chosen.steps[: self.at][known]
        return int(steps[-1]) if len(steps) else None

    def _observed(self, records: Indices, places: Sequence[int]) -> NDArray[np.bool_]:
        """bool [records, places]"""
        largest = self.reader.read(
            "spread",
            records,
            np.asarray(places, np.int64),
            self.badness.column,
            SPREAD.index("max"),
        )
        return ~np.isnan(largest)


def _is_weight(weight: SiteInfo, of: SiteInfo) -> bool:
    """Whether a site is a weight of the very module that another is of."""
    prefix = "" if of.name.startswith("(") else f"{of.name}."  # (root), or a pipeline stage
    rest = weight.name.removeprefix(prefix)
    return weight.kind in WEIGHTS and weight.name.startswith(prefix) and "." not in rest
