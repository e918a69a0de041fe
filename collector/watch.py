"""What each record is judged by as it is made: whether copies agree, and whether sums were kept.

Pure: alerts follow from the records and from what is wrong already. An alert is told when it
begins, and once more when the step comes in which it is found no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..sketch.conservation import common_factor, residual
from ..sketch.derive import MAIN
from ..sketch.table import COUNT, PROJECTION, UNSEEN, Floats
from ..store.record import Alert, SiteInfo
from .merging import Divergence, Merged

ROUNDINGS = 16
"""So many units in the last place a reduction may be off."""
TIMES_OTHERS = 8
"""And so many times as far as half of the others: what compresses gradients rounds them all."""
NO_FACTOR = 0.05
"""Where half of all reductions are off by so much, they are none: to round to fp8 is less, and of
ten tensors that were not reduced half are off by twice as much."""
DIVERGENCE, CONSERVATION = "replica-divergence", "conservation"
ADDEND, REDUCED = "local_weight_gradient", "weight_gradient"
L2, NONFINITE = MAIN.index("l2"), MAIN.index("nonfinite")

Key = tuple[str, int]
"""A rule, and the index of a site; -1 for none."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Which rows of a record are a reduced tensor and its addends."""

    of: NDArray[np.intp]
    """The sites of the record that they are of."""
    addends: NDArray[np.intp]
    """intp [pairs]: rows of the addends."""
    reduced: NDArray[np.intp]
    """intp [pairs]: rows of what they were reduced to."""
    share: Floats
    """float64 [pairs]: see `residual`."""
    tolerance: Floats
    """float64 [pairs]: what rounding explains."""


@dataclass(slots=True)
class Watch:
    """The rules of one attempt, and what they found wrong and is still so.

    Args:
        attempt: its number.
        site: what is known of a site of the run.
    """

    attempt: int
    site: Callable[[int], SiteInfo]
    firing: dict[Key, tuple[Alert, int]] = field(default_factory=dict[Key, tuple[Alert, int]])
    """With the last step in which each was found."""
    _pairs: _Pairs | None = None

    def judge(self, merged: Merged, step: int, time_ns: int, *, whole: bool) -> list[Alert]:
        """What begins and what ends with a record.

        Args:
            whole: whether it holds all ranks, and each to the step's end; else nothing ends.
        """
        found = self._divergences(merged)
        if whole:
            found |= self._conservation(merged)
        told = list[Alert]()
        for key, alert in found.items():
            going_on = key in self.firing
            if alert is not None:
                begun = replace(alert, first_step=step, time_ns=time_ns)
                self.firing[key] = (self.firing[key][0] if going_on else begun), step
                told += [] if going_on else [begun]
            elif going_on and whole:
                ended, last_step = self.firing.pop(key)
                told.append(replace(ended, last_step=last_step))
        return told

    def _alert(
        self, rule: str, site: int, ranks: tuple[int, ...], value: float, most: float, text: str
    ) -> Alert:
        return Alert(
            rule=rule,
            attempt=self.attempt,
            site=self.site(site).label if site >= 0 else "",
            ranks=ranks,
            first_step=0,
            last_step=None,
            value=value,
            threshold=most,
            text=text,
            time_ns=0,
        )

    # Each rule gives by key an alert, or None for what it judged and found right.

    def _divergences(self, merged: Merged) -> dict[Key, Alert | None]:
        compared = merged.sites[merged.table.measured() > 0].tolist()
        judged: dict[Key, Alert | None] = {
            key: None for key in self.firing if key[0] == DIVERGENCE and key[1] in compared
        }
        for found in merged.divergences:
            info = self.site(found.site)
            if info.checked:
                text = f"Copies of {info.label} differ between ranks: {verdict(found)}."
                ranks = found.odd or found.ranks
                judged[DIVERGENCE, found.site] = self._alert(
                    DIVERGENCE, found.site, ranks, len(ranks) / len(found.ranks), 0.0, text
                )
        return judged

    def _conservation(self, merged: Merged) -> dict[Key, Alert | None]:
        pairs = self._pairs
        if pairs is None or pairs.of is not merged.sites:
            pairs = self._pairs = _pairs(merged, self.site)
        sums = _Sums.of(merged, pairs)
        if not np.isfinite(sums.factor) or sums.factor == 0:
            return {}
        usual = float(np.nanmedian(sums.off))
        if usual > NO_FACTOR:
            return {(CONSERVATION, -1): self._alert(CONSERVATION, -1, (), usual, NO_FACTOR, NONE)}
        judged: dict[Key, Alert | None] = {(CONSERVATION, -1): None}
        most = np.maximum(pairs.tolerance, TIMES_OTHERS * usual)
        for pair in np.flatnonzero(~np.isnan(sums.off)).tolist():
            site = int(merged.sites[pairs.reduced[pair]])
            judged[CONSERVATION, site] = (
                self._broken(merged, pairs, sums, pair, float(most[pair]))
                if sums.off[pair] > most[pair]
                else None
            )
        return judged

    def _broken(self, merged: Merged, pairs: _Pairs, sums: _Sums, pair: int, most: float) -> Alert:
        """One sum that was not kept."""
        site, off = int(merged.sites[pairs.reduced[pair]]), float(sums.off[pair])
        rest = float(sums.added[pair] - sums.reduced[pair] / sums.factor)
        own = merged.addend_projections(int(pairs.addends[pair]))
        ranks, how = _whose(own, rest, most * float(sums.scale[pair]))
        text = (
            f"{self.site(site).label} is not the sum of the ranks' own gradients times "
            f"{sums.factor:.6g}, as the others are: it is off by {off:.3g} of their size; {how}."
        )
        return self._alert(CONSERVATION, site, ranks, off, most, text)


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Projections of reduced tensors and of their addends; float64 [pairs] each."""

    reduced: Floats
    added: Floats
    scale: Floats
    """Root of the sum of the squares of all addends."""
    factor: float
    off: Floats
    """See `residual`; NaN where it cannot be known."""

    @classmethod
    def of(cls, merged: Merged, pairs: _Pairs) -> _Sums:
        by_rank = np.stack(list(merged.by_rank.values())).astype(np.float64)
        reduced = merged.table.moments[pairs.reduced, PROJECTION]
        added = merged.table.moments[pairs.addends, PROJECTION]
        with np.errstate(all="ignore"):
            scale = np.sqrt(np.nansum(by_rank[:, pairs.addends, L2] ** 2, axis=0))
        known = np.isfinite(scale)
        for rows in (pairs.addends, pairs.reduced):
            known &= _is_whole(merged, rows) & ~(by_rank[:, rows, NONFINITE] > 0).any(axis=0)
        full = known & (pairs.share == 1)
        factor = common_factor(reduced[full], added[full], scale[full])
        off = residual(reduced, added, scale, factor, pairs.share)
        return cls(reduced, added, scale, factor, np.where(known, off, np.nan))


NONE = (
    "Reduced gradients are not the sums of the ranks' own gradients times a common factor: they "
    "were not reduced, or changed between the reduction and the optimizer's step."
)


def verdict(found: Divergence) -> str:
    """Who differs, as far as it can be known."""
    if not found.odd:
        return f"{rank_words(found.ranks)} hold them, and none has a majority"
    odd = rank_words(found.odd).partition(" ")[2]
    return f"of {rank_words(found.ranks)} the odd ones are {odd}"


def rank_words(ranks: Sequence[int], most: int = 16) -> str:
    """Some ranks in words."""
    numbers = ", ".join(map(str, ranks[:most])) + (", …" if len(ranks) > most else "")
    return f"rank{'s' * (len(ranks) > 1)} {numbers}"


def _pairs(merged: Merged, site: Callable[[int], SiteInfo]) -> _Pairs:
    infos = [site(index) for index in merged.sites.tolist()]
    rows = {(one.kind, one.name, one.slot, one.occurrence): row for row, one in enumerate(infos)}
    addends, reduced, tolerance = list[int](), list[int](), list[float]()
    for key, row in rows.items():
        other = rows.get((REDUCED, *key[1:])) if key[0] == ADDEND else None
        if other is not None and infos[row].checked and infos[other].checked:
            addends.append(row)
            reduced.append(other)
            tolerance.append(ROUNDINGS * max(_eps(infos[row].dtype), _eps(infos[other].dtype)))
    number = merged.addends(np.asarray(addends, np.intp))
    share = number.max(initial=1) / np.maximum(number, 1)
    return _Pairs(
        merged.sites,
        np.asarray(addends, np.intp),
        np.asarray(reduced, np.intp),
        share.astype(np.float64),
        np.asarray(tolerance),
    )


def _eps(dtype: str) -> float:
    try:
        return float(ml_dtypes.finfo(dtype).eps)
    except (TypeError, ValueError):  # of a dtype that has none nothing is concluded
        return float("inf")


def _is_whole(merged: Merged, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which rows hold every element of their tensor."""
    counts = merged.table.counts[rows]
    glanced = merged.table.take(rows).is_glance()
    return (counts[:, COUNT] > 0) & (counts[:, UNSEEN] == 0) & ~glanced


def _whose(own: Mapping[int, float], rest: float, most: float) -> tuple[tuple[int, ...], str]:
    """Whose addend explains what is left, if it is one rank's alone."""
    missing = tuple(rank for rank, number in own.items() if abs(rest - number) <= most)
    twice = tuple(rank for rank, number in own.items() if abs(rest + number) <= most)
    if len(missing) == 1 and not twice:
        return missing, f"it is as if that of rank {missing[0]} were missing"
    if len(twice) == 1 and not missing:
        return twice, f"it is as if that of rank {twice[0]} were in it twice"
    return (), "sums do not tell through which rank"
