"""Which site to look at, or to put beside another one: found by name, or near it. Pure."""

from __future__ import annotations

import re
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


def search(sites: pd.DataFrame, text: str) -> tuple[list[str], int]:
    """The first labels in which each word of a text is found, and how many there are.

    Args:
        sites: as `Run.sites` gives them.
        text: words, apart by spaces, small or large; none: nothing is found.
    """
    wanted = text.lower().split()
    if not wanted:
        return [], 0
    found = [label for label in sites.index if all(word in label.lower() for word in wanted)]
    return found[:MOST], len(found)


def neighbour(sites: pd.DataFrame, site: str, by: int) -> str:
    """The site so many places on in the order of execution, among those of its kind.

    At the ends it is the site itself; of a site that there is not, the first of its kind, or of
    all; empty where there are no sites.
    """
    kind = site.partition(":")[0]
    kinds = zip(sites.index, sites["kind"], strict=True)
    labels = [str(label) for label, one in kinds if one == kind] or sites.index.tolist()
    if site not in labels:
        return labels[0] if labels else ""
    return labels[min(max(labels.index(site) + by, 0), len(labels) - 1)]


def suggestions(sites: pd.DataFrame, site: str) -> list[Suggestion]:
    """What is usually wished beside a site: its other kinds, its neighbours, its other layers."""
    if site not in sites.index:
        return []
    seen, found = {site}, list[Suggestion]()
    for one in (*_kinds(sites, site), *_neighbours(sites, site), *_layers(sites, site)):
        if one.site not in seen:
            seen.add(one.site)
            found.append(one)
    return found


def _kinds(sites: pd.DataFrame, site: str) -> Iterator[Suggestion]:
    """What has the same name, and the parameters of the same module."""
    kind, name = sites.at[site, "kind"], sites.at[site, "name"]
    module = name.rpartition(".")[0] if kind in PARAMETERS else name
    is_same = sites["name"] == name
    is_module = (sites["name"] == module) & ~sites["kind"].isin(PARAMETERS)
    is_own = sites["name"].str.rpartition(".")[0] == module
    is_own &= sites["kind"].isin(PARAMETERS) & (kind not in PARAMETERS)
    for label, other in sites.loc[is_same | is_module | is_own, "kind"].items():
        yield Suggestion(site=str(label), why=f"its {other.replace('_', ' ')}")


def _neighbours(sites: pd.DataFrame, site: str) -> Iterator[Suggestion]:
    for by, why in ((-1, "before it"), (1, "after it")):
        yield Suggestion(site=neighbour(sites, site, by), why=why)


def _layers(sites: pd.DataFrame, site: str) -> Iterator[Suggestion]:
    """The same module in the layer before, after, and in the first and the last."""
    facts = ["kind", "slot", "occurrence"]
    is_alike = (sites[facts] == sites.loc[site, facts]).all(axis=1)
    form = NUMBER.sub("#", sites.at[site, "name"])
    alike = [
        label
        for label, name in sites.loc[is_alike, "name"].items()
        if NUMBER.sub("#", name) == form
    ]
    at = alike.index(site)
    for place, why in (
        (at - 1, "the layer before"),
        (at + 1, "the layer after"),
        (0, "the first layer"),
        (len(alike) - 1, "the last layer"),
    ):
        if 0 <= place < len(alike):
            yield Suggestion(site=str(alike[place]), why=why)
