"""Bounds of quantities, derived or told by sketches: what they may be at most, or at least.

Quantities are known once a record is stored, for spectra take their time; so they are judged after
it, and what is found is stored with the next one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ..sketch.quantities import SKETCHED
from ..sketch.table import Floats
from ..store.record import QuantityInfo, Record, SiteInfo
from .rule import Rule, Severity, Told, Verdict, figures
from .seen import Sites

Side = Literal["above", "below"]


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What a quantity may not be above, or below."""

    quantity: str
    side: Side
    value: float
    of: re.Pattern[str] = re.compile("")
    """Searched for in the names of modules and parameters."""
    severity: Severity = "warning"
    records: int = 1
    """So many records in a row must be beyond it."""
    meaning: str = "A quantity is beyond the bound that was set for it."
    advice: str = "See docs/quantities.md for what it means."

    @cached_property
    def rule(self) -> Rule:
        """The rule that it makes: of what is too small the negative is measured."""
        edge = self.value if self.side == "above" else -self.value
        return Rule(
            name=f"{self.quantity} {self.side}",
            severity=self.severity,
            meaning=self.meaning,
            advice=self.advice,
            threshold=edge,
            clear=edge,
            records=self.records,
        )

    @property
    def is_of_sketches(self) -> bool:
        """Whether sketches tell the quantity, so that nothing need be derived."""
        return self.quantity in SKETCHED

    def measure(
        self, record: Record, quantities: Sequence[QuantityInfo], place: Mapping[str, int]
    ) -> Verdict | None:
        """What the quantity is in a record; of a vector, and of several parts, the worst.

        Args:
            quantities: of the run.
            place: index of the site that stands for a module or parameter, by its name.
        """
        found, sign = dict[int, tuple[float, QuantityInfo]](), self._sign
        for index, values in record.derived.numbers().values.items():
            info = quantities[index]
            if info.name == self.quantity and self.of.search(info.of):
                site = place.get(info.of.partition("#")[0], -1)
                worst = _worst(sign * values)
                if site not in found or worst > found[site][0]:
                    found[site] = worst, info
        if not found:
            return None
        every = list(found.values())

        def tell(entry: int) -> Told:
            value, info = every[entry]
            where = f"{info.of} ({info.part})" if info.part else info.of
            return self._told(where, sign * value)

        return Verdict(
            sites=np.array(list(found), np.intp),
            value=np.array([value for value, _ in every]),
            tell=tell,
        )

    def measure_sketches(self, record: Record, sites: Sites) -> Verdict | None:
        """What sketches tell the quantity to be in a record, at the sites of its kind.

        Args:
            sites: of the run.
        """
        kind, statistic = SKETCHED[self.quantity]
        key = "bound", self.quantity, self.of.pattern
        is_bound = sites.known(record.sites, key, lambda one: self._is_of(one, kind))
        rows = np.flatnonzero(is_bound)
        if not len(rows):
            return None
        found, value = record.sites[rows], record.statistics[statistic][rows]

        def tell(entry: int) -> Told:
            where = sites[int(found[entry])].label.removeprefix(f"{kind}:")
            return self._told(where, float(value[entry]))

        return Verdict(sites=found, value=self._sign * value, tell=tell)

    @property
    def _sign(self) -> int:
        return 1 if self.side == "above" else -1

    def _is_of(self, site: SiteInfo, kind: str) -> bool:
        return site.kind == kind and self.of.search(site.name) is not None

    def _told(self, where: str, value: float) -> Told:
        edge = figures(self.value)
        text = f"{self.quantity} of {where} is {figures(value)}, {self.side} {edge}."
        return Told(text=text, value=value, threshold=self.value)


def sites_of_names(sites: Sequence[SiteInfo]) -> dict[str, int]:
    """By the name of a module or parameter the first of its sites."""
    found = dict[str, int]()
    for index, site in enumerate(sites):
        found.setdefault(site.name, index)
    return found


def _worst(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else float("nan")


BOUNDS = (
    Bound(
        quantity="attention_largest_logit",
        side="above",
        value=100.0,
        records=2,
        meaning=(
            "Logits of attention are so large that its softmax picks one token: gradients vanish, "
            "and bfloat16 no longer tells logits apart."
        ),
        advice="Normalise queries and keys, cap the logits, or lower the learning rate.",
    ),
    Bound(
        quantity="dead_neurons",
        side="above",
        value=0.9,
        records=2,
        meaning="Most channels of a layer are off for every sample.",
        advice="Lower the learning rate, look at the bias, or use an activation with a slope.",
    ),
)
"""Those that are built in; chosen, not measured on a bench."""
