"""What the first bad site says of the cause: only what follows from what was observed.

A record that lacks a rank, a weight that was not observed or only sampled, a site that ran for the
first time: each makes the answer weaker, and never another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..sketch.derive import MAIN
from ..sketch.distribution import SPREAD
from ..sketch.labels import FOR_BACKWARD
from ..sketch.table import UNSEEN
from .badness import Seen
from .reader import Reader
from .record import SiteInfo
from .selection import ATTEMPT, COMPLETE, KEPT, PARTIAL, STEP, Indices

Cause = Literal[
    "module", "forward", "input", "backward", "reduction", "update", "weights", "gather", "unknown"
]
"""`module`: it made it, of good inputs and by good weights. `forward`: it or what feeds it did, by
good weights. `input`: it came in, and nothing before it was observed. `backward`: made there, or in
a reduction before which nothing was observed. `reduction`: all ranks' own addends were good.
`update`: the optimizer made it, of good gradients. `weights`: they were bad when the step began.
`gather`: FSDP's weights were good before it gathered them. `unknown`: what it was made of was not
observed, or in which order."""

Verdict = tuple[Cause, int | None, int, str]
"""Cause, first and last step in which it can have begun, and why, in a sentence."""

WEIGHT, GATHER, FORWARD, BACKWARD, REDUCED, STATE = range(6)
PHASES = {
    "weight": WEIGHT,
    "unsharded_weight": GATHER,
    "input": FORWARD,
    "local_activation": FORWARD,
    "activation": FORWARD,
    "activation_gradient": BACKWARD,
    "local_input_gradient": BACKWARD,
    "input_gradient": BACKWARD,
    "local_weight_gradient": BACKWARD,
    "weight_gradient": REDUCED,
    "optimizer_state": STATE,
    "update": STATE,
}
FIRST_RECORDS = 16
"""So many of the first records tell in which order sites run."""


def phase_of(site: SiteInfo) -> int:
    """When within a step a tensor is made."""
    if site.kind == "tap":
        return BACKWARD if site.slot.startswith("gradient") else FORWARD
    if site.kind == "unsharded_weight" and site.slot == FOR_BACKWARD:
        return BACKWARD
    return PHASES[site.kind]


@dataclass(frozen=True, slots=True)
class Case:
    """The first bad site of a record, and what was observed around it."""

    reader: Reader
    record: int
    here: Seen
    place: int
    """Of the site."""
    rows: Sequence[int]
    """Of the ranks on which it began, in `here`."""

    @property
    def site(self) -> SiteInfo:
        """What was bad."""
        return self.reader.meta.sites[self.place]

    @property
    def step(self) -> int:
        """In which step."""
        return int(self.reader.facts()[self.record, STEP])

    def before(self) -> str:
        """The label of the site that was executed before this one on the rank."""
        row, before, phase = self.rows[0], "", phase_of(self.site)
        for place in self.reader.choose_sites().tolist():
            if place == self.place:
                break
            if self.here.seen[row, place] and FORWARD <= phase_of(self._info(place)) <= phase:
                before = self.reader.label(place)
        return before

    def verdict(self) -> Verdict:
        """What made it, and when."""
        if not self.reader.facts()[self.record, COMPLETE]:
            return self._unknown("Not all ranks are in this record")
        if not self._is_whole(self.record):
            return self._unknown("The step had not ended on all ranks, and not all of it was seen")
        late = self._late()
        if late:
            return self._unknown(f"{late} runs for the first time, so in which order is not known")
        if self.site.kind == "unsharded_weight":
            return self._of_gathered()
        of_phase = {WEIGHT: self._of_weight, STATE: self._of_state}
        return of_phase.get(phase_of(self.site), self._of_pass)()

    def _of_pass(self) -> Verdict:
        """Forward, backward, reduction."""
        site, phase = self.site, phase_of(self.site)
        own = [place for place, one in enumerate(self.reader.meta.sites) if _is_weight(one, site)]
        addends, inputs = self._of_call(f"local_{site.kind}"), self._of_call("input")
        summed = site.kind in ("activation", "input_gradient")
        if summed and addends and self._good(addends):
            return self._now("reduction", "What every rank had to add up was good.")
        returned = site.kind in ("local_activation", "activation")
        fed = returned and bool(inputs) and self._good(inputs, self.rows)
        if fed and own and self._good(own):
            return self._now("module", "Its weights and inputs were finite: it made it.")
        weights = [p for p, one in enumerate(self.reader.meta.sites) if one.kind == "weight"]
        if not (weights and self._good(weights)):
            return self._unknown("Not all weights were observed in this step")
        if fed:
            return self._now("module", "Its inputs were finite, and it has no weights: it made it.")
        before = self.before() or "nothing observed"
        if phase == FORWARD and site.kind == "input":
            cause: Cause = "forward" if self.before() else "input"
            return self._now(cause, f"The weights were finite; it was made after {before}.")
        if phase == FORWARD and not self.before():
            why = (
                "The weights were finite: it made it, or it came in with the model's input, of "
                'which `kinds=` with "input" would tell, or a tap of it under JAX.'
            )
            return self._now("forward", why)
        if phase == FORWARD:
            why = f"The weights were finite: it made it, or what ran between {before} and it."
            return self._now("forward", why)
        if phase == REDUCED and self._good(self._places(site.name, "local_weight_gradient")):
            why = "Every rank's own was good: the reduction, unscaling or clipping made it."
            return self._now("reduction", why)
        if phase == REDUCED:
            why = "The weights were finite: the backward made it, or the reduction or clipping."
            return self._now("backward", why)
        why = f"The weights were finite: the backward made it, after {before}."
        return self._now("backward", why)

    def _of_call(self, kind: str) -> list[int]:
        """Sites of a kind in the same call of the same module."""
        places = self._places(self.site.name, kind)
        return [at for at in places if self._info(at).occurrence == self.site.occurrence]

    def _of_weight(self) -> Verdict:
        before = self._last_seen()
        if before is None:
            return "weights", None, self.step, "It was so when it was first observed."
        record, step = before
        if step < self.step - 1:
            why = f"It was good in step {step}, and began up to step {self.step - 1}, not observed."
            return "weights", step, self.step - 1, why
        if not self._was_good(record, "weight_gradient"):
            why = f"It began in step {step}, in gradients that were not observed or in the update."
            return "weights", step, step, why
        if self._was_good(record, "update"):
            why = (
                f"The gradient and the update of step {step} were finite: adding them up "
                "overflowed, or something else wrote to it."
            )
            return "weights", step, step, why
        why = (
            f"The update of step {step} made it, of good gradients, or something else wrote to it."
        )
        return "update", step, step, why

    def _was_good(self, record: int, kind: str) -> bool:
        """Whether this kind of the parameter was observed in an earlier record: all was good."""
        places = self._places(self.site.name, kind)
        return bool(places) and bool(self._observed(np.array([record]), places).all())

    def _of_gathered(self) -> Verdict:
        if self._good(self._places(self.site.name, "weight")):
            return self._now("gather", "The weight was good: gathering it made it.")
        return self._unknown("The weight itself was not observed in this step")

    def _of_state(self) -> Verdict:
        before = self._last_seen()
        gradients = self._places(self.site.name, "weight_gradient")
        if before and before[1] == self.step - 1 and gradients and self._good(gradients):
            return self._now("update", "The update of this step made it, of a good gradient.")
        return self._unknown("Its gradient or its state before were not observed")

    def _now(self, cause: Cause, why: str) -> Verdict:
        return cause, self.step, self.step, why

    def _unknown(self, why: str) -> Verdict:
        before = self._last_seen()
        if before is None:
            return "unknown", None, self.step, f"{why}: it may have begun before any was."
        steps = f"steps {before[1]} to {self.step}"
        return "unknown", before[1], self.step, f"{why}: it began in {steps}."

    def _info(self, place: int) -> SiteInfo:
        return self.reader.meta.sites[place]

    def _places(self, name: str, kind: str) -> list[int]:
        sites = enumerate(self.reader.meta.sites)
        return [place for place, one in sites if (one.kind, one.name) == (kind, name)]

    def _is_whole(self, record: int) -> bool:
        facts = self.reader.facts()[record]
        return bool(facts[COMPLETE]) and not facts[PARTIAL]

    def _good(self, places: Sequence[int], rows: Sequence[int] | None = None) -> bool:
        """Whether all of these sites were observed in this step, and whole: then they were good.

        Of a record that holds all ranks those that have a site have told of it. With `rows` all of
        these ranks must have.
        """
        if rows is None:
            seen = self.here.seen[:, list(places)].any(axis=0).all()
        else:
            seen = self.here.seen[list(rows)][:, list(places)].all()
        if not places or not seen:
            return False
        counts = self.reader.read("counts", np.array([self.record]), np.asarray(places, np.int64))
        return not (counts[..., UNSEEN] > 0).any()

    def _earlier(self) -> Indices:
        """int64: the whole records of earlier steps of the attempt, as they lead to this one."""
        facts = self.reader.facts()
        kept, steps = facts[:, KEPT] > 0, facts[:, STEP]
        mine = facts[:, ATTEMPT] == facts[self.record, ATTEMPT]
        mine &= (facts[:, COMPLETE] > 0) & (facts[:, PARTIAL] == 0)
        mine &= kept | (np.arange(len(facts)) < self.record)  # a kept one may come at any time
        # Of what was rewound later steps were made by updates that are undone.
        rewinds = np.where(kept, self.step, np.minimum(steps, self.step))
        rewinds[self.record :] = self.step
        lowest_after = np.minimum.accumulate(np.append(rewinds, self.step)[::-1])[::-1][1:]
        mine[: self.reader.state.deleted] = False
        earlier = np.flatnonzero(mine & (steps < lowest_after))
        return earlier[np.argsort(steps[earlier], kind="stable")]

    def _last_seen(self) -> tuple[int, int] | None:
        """Record and step before this one in which the site was observed last."""
        records = self._earlier()
        known = records[self._observed(records, [self.place])[:, 0]]
        return (int(known[-1]), int(self.reader.facts()[known[-1], STEP])) if len(known) else None

    def _late(self) -> str:
        """The label of a bad site of this pass that did not run in the attempt's first records."""
        phase = phase_of(self.site)
        first = self._earlier()[:FIRST_RECORDS]
        if phase not in (FORWARD, BACKWARD) or not len(first):
            return ""
        bad = [
            place
            for place in np.flatnonzero(self.here.bad.any(axis=0)).tolist()
            if phase_of(self._info(place)) == phase
        ]
        new = np.flatnonzero(~self._observed(first, bad).any(axis=0))
        return self.reader.label(bad[new[0]]) if len(new) else ""

    def _observed(self, records: Indices, places: Sequence[int]) -> NDArray[np.bool_]:
        """bool [records, places]"""
        column, largest = MAIN.index("nonfinite"), SPREAD.index("max")
        asked = np.asarray(places, np.int64)
        return ~np.isnan(self.reader.read("spread", records, asked, column, largest))


def _is_weight(weight: SiteInfo, of: SiteInfo) -> bool:
    """Whether a site is a weight of the module that another is of, or of one inside it."""
    prefix = "" if of.name.startswith("(") else f"{of.name}."  # (root), or a pipeline stage
    return weight.kind == "weight" and weight.name.startswith(prefix)
