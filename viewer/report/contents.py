"""What a report tells, chosen from a run; no markup yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...rules import Why, why
from ...sketch.errors import SettingError
from ...store.selection import choose_sites
from .. import findings, words
from ..findings import Card

if TYPE_CHECKING:
    from ...store.query import Run

MOST_TENSORS = 8
"""Of findings, the worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A tensor at a step, shown in depth."""

    site: str
    step: int
    reasons: Sequence[str]
    """Sentences: which findings lead here; one that says so where none does."""
    ranks: Sequence[int]
    """Those to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a report tells."""

    why: Why
    looked: str
    """At how much, in words."""
    cards: Sequence[Card]
    evidence: Sequence[Evidence]
    kinds: Sequence[str]
    """The kinds whose heatmaps are shown."""


def gather(run: Run, *, site: str = "", step: int | None = None) -> Contents:
    """What is wrong with a run, and the tensors that show it.

    Args:
        run: an open run.
        site: a tensor to show, whatever was found.
        step: at which step; of findings the one in which they began.

    Raises:
        SettingError: there is no such site, or the step was not recorded.
    """
    if step is not None:
        run.training(steps=step)  # raises where there is no such step
    if site:
        choose_sites(run.site_infos, sites=site)
    found = why(run)
    # A report is of the whole run, at one moment: nothing in it is called old.
    cards = findings.cards(found, since=findings.Since(attempt=len(run.attempts) - 1, step=0))
    evidence = _evidence(run, cards, site, step)
    kinds = list(dict.fromkeys(one.site.partition(":")[0] for one in evidence))
    return Contents(
        why=found,
        looked=_looked(run),
        cards=cards,
        evidence=evidence,
        kinds=kinds or _first_kind(run),
    )


def _evidence(run: Run, cards: Sequence[Card], site: str, step: int | None) -> list[Evidence]:
    """The tensor that was asked for, or those of findings; where there is none the largest."""
    by_place: dict[tuple[str, int], list[Card]] = {}
    for card in cards:
        if card.site and (not site or card.site == site):
            at = card.step if step is None else step
            by_place.setdefault((card.site, at), []).append(card)
    if site and not by_place:
        at = _last_step(run, site) if step is None else step
        if at is None:
            raise SettingError(f"{site} was never observed; see run.records().")
        return [Evidence(site=site, step=at, reasons=["Asked for."], ranks=())]
    if not by_place:
        largest = _largest(run, step)
        return [] if largest is None else [largest]
    return [
        Evidence(
            site=place,
            step=at,
            reasons=[card.text for card in told],
            ranks=sorted({rank for card in told for rank in card.ranks}),
        )
        for (place, at), told in list(by_place.items())[:MOST_TENSORS]
    ]


def _last_step(run: Run, site: str) -> int | None:
    """The last step with a number of a site, or with elements that are not finite."""
    steps: list[int] = []
    for statistic in ("rms", "nonfinite"):
        found = run.scalar(statistic, sites=[site])
        steps += found["step"].values[~np.isnan(found.values[:, 0])].tolist()[-1:]
    return max(steps, default=None)


def _largest(run: Run, step: int | None) -> Evidence | None:
    """The activation, or what there is, with the largest number at the last step."""
    kinds = _first_kind(run)
    if not kinds:
        return None
    found = run.scalar("abs_max", kind=kinds, steps=step)
    rms = run.scalar("rms", kind=kinds, steps=step)
    sketched = rms["step"].values[~np.isnan(rms.values).all(axis=1)]
    if not len(sketched):
        return None
    at = int(sketched[-1])
    values = np.asarray(found.sel(step=at).values, float)
    values[np.isnan(rms.sel(step=at).values)] = np.nan
    if np.isnan(values).all():
        return None
    site = str(found["site"].values[np.nanargmax(values)])
    kind = kinds[0].replace("_", " ")
    reason = f"No finding is of a tensor; of all {kind}s this has the largest number at step {at}."
    return Evidence(site=site, step=at, reasons=[reason], ranks=())


def _first_kind(run: Run) -> list[str]:
    kinds = list(dict.fromkeys(one.kind for one in run.site_infos))
    return ["activation"] if "activation" in kinds else kinds[:1]


def _looked(run: Run) -> str:
    steps = run.records()["step"]
    if not len(steps):
        return ""
    sizes = run.attempts["world_size"]
    sites, ranks = (
        words.count(len(run.site_infos), "site"),
        words.count(int(sizes.iloc[-1]), "rank"),
    )
    return f"{sites} × {ranks} over steps {steps.min()}–{steps.max()}"
