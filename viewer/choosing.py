"""Which site to look at, or to put beside another one: found by name, or near it. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

MOST = 12
"""Sites that a search shows."""
PARAMETERS = ("weight", "weight_gradient", "local_weight_gradient", "optimizer_state", "update")
"""Kinds whose sites are named after their module and the parameter in it."""
NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A part of a name that counts layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A site that one often looks at together with another."""

    site: str
    why: str


class Choosing:
    """Finds sites, the same ones again and again: what they are found by is put in order once."""

    def __init__(self, sites: pd.DataFrame) -> None:
        """Put sites in order; they are as `Run.sites` gives them."""
        self.labels: list[str] = sites.index.tolist()
        """In the order of execution."""
        self._place = {label: place for place, label in enumerate(self.labels)}
        self._kinds: list[str] = sites["kind"].tolist()
        self._names: list[str] = sites["name"].tolist()
        self._of_kind = defaultdict[str, list[int]](list)
        self._named = defaultdict[str, list[int]](list)
        self._parameters = defaultdict[str, list[int]](list)
        """By module those of `PARAMETERS`."""
        apart = zip(self._kinds, sites["slot"], sites["occurrence"], strict=True)
        self._forms = [
            (*one, NUMBER.sub("#", name)) for one, name in zip(apart, self._names, strict=True)
        ]
        self._alike = defaultdict[tuple[object, ...], list[int]](list)
        for place, (kind, name) in enumerate(zip(self._kinds, self._names, strict=True)):
            self._of_kind[kind].append(place)
            self._named[name].append(place)
            self._alike[self._forms[place]].append(place)
            if kind in PARAMETERS:
                self._parameters[name.rpartition(".")[0]].append(place)

    def search(self, text: str) -> tuple[list[str], int]:
        """The first labels in which each word of a text is found, and how many there are.

        Args:
            text: words, apart by spaces, small or large; none: nothing is found.
        """
        wanted = text.lower().split()
        if not wanted:
            return [], 0
        found = [label for label in self.labels if all(word in label.lower() for word in wanted)]
        return found[:MOST], len(found)

    def neighbour(self, site: str, by: int) -> str:
        """The site so many places on in the order of execution, among those of its kind.

        At the ends it is the site itself; of a site that there is not, the first of its kind, or of
        all; empty where there are no sites.
        """
        places = self._of_kind.get(site.partition(":")[0], range(len(self.labels)))
        if site not in self._place:
            return self.labels[places[0]] if places else ""
        at = places.index(self._place[site]) + by
        return self.labels[places[min(max(at, 0), len(places) - 1)]]

    def suggestions(self, site: str) -> list[Suggestion]:
        """What is usually wished beside a site: its other kinds, its neighbours, other layers."""
        if site not in self._place:
            return []
        seen, found = {site}, list[Suggestion]()
        for one in (*self._kin(site), *self._neighbours(site), *self._layers(site)):
            if one.site not in seen:
                seen.add(one.site)
                found.append(one)
        return found

    def _kin(self, site: str) -> Iterator[Suggestion]:
        """What has the same name, and the parameters of the same module."""
        place = self._place[site]
        name, is_parameter = self._names[place], self._kinds[place] in PARAMETERS
        module = name.rpartition(".")[0] if is_parameter else name
        places = {*self._named[name]}
        places |= {one for one in self._named.get(module, []) if self._kinds[one] not in PARAMETERS}
        places |= {*self._parameters.get(module, [])} if not is_parameter else set()
        calls = Counter((*self._forms[one][:2], self._names[one]) for one in places)
        places -= {place}
        for one in sorted(places):
            kind = self._kinds[one]
            names = {self._names[other] for other in places if self._kinds[other] == kind}
            which = f" ({self._names[one].rpartition('.')[2]})" if len(names) > 1 else ""
            if calls[(*self._forms[one][:2], self._names[one])] > 1:
                which += f" #{self._forms[one][2]}"
            yield Suggestion(site=self.labels[one], why=f"its {kind.replace('_', ' ')}{which}")

    def _neighbours(self, site: str) -> Iterator[Suggestion]:
        for by, why in ((-1, "before it"), (1, "after it")):
            yield Suggestion(site=self.neighbour(site, by), why=why)

    def _layers(self, site: str) -> Iterator[Suggestion]:
        """The same module in the layer before, after, and in the first and the last."""
        place = self._place[site]
        alike = self._alike[self._forms[place]]
        at = alike.index(place)
        for turn, why in (
            (at - 1, "the layer before"),
            (at + 1, "the layer after"),
            (0, "the first layer"),
            (len(alike) - 1, "the last layer"),
        ):
            if 0 <= turn < len(alike):
                yield Suggestion(site=self.labels[alike[turn]], why=why)
