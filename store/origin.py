"""Where the first NaN or infinity of a run appeared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..sketch.derive import MAIN
from .reader import Reader
from .selection import choose_records, choose_sites
from .values import values

NONFINITE = MAIN.index("nonfinite")
"""Defined wherever something was observed, so that NaN there says: not observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstNonfinite:
    """Where NaN or infinity first appeared."""

    site: str
    kind: str
    name: str
    step: int
    ranks: tuple[int, ...]
    """The ranks that had such values there; empty where the run kept no numbers by rank."""
    previous_step: int | None
    """The last step before it in which the site was observed, if any."""


def first_nonfinite(reader: Reader) -> FirstNonfinite | None:
    """The earliest step with NaN or infinity, and in it the first site to be executed."""
    chosen = choose_records(reader.facts())
    places = choose_sites(reader.meta.sites)
    merged = values(reader, "nonfinite", chosen.records, places, "merged")
    # What cannot be merged (Partial tensors) is seen by rank only.
    of_ranks = values(reader, "nonfinite", chosen.records, places, "max")
    bad = (merged > 0) | (of_ranks > 0)
    if not bad.any():
        return None
    at = int(np.argmax(bad.any(axis=1)))
    row = int(np.argmax(bad[at]))
    place = int(places[row])
    before = chosen.steps[:at][~np.isnan(merged[:at, row]) | ~np.isnan(of_ranks[:at, row])]
    by_rank = reader.read("ranks", chosen.records[[at]], slice(None), place, NONFINITE)[0]
    site = reader.meta.sites[place]
    return FirstNonfinite(
        site=site.label,
        kind=site.kind,
        name=site.name,
        step=int(chosen.steps[at]),
        ranks=tuple(map(int, np.flatnonzero(by_rank > 0))),
        previous_step=int(before[-1]) if len(before) else None,
    )
