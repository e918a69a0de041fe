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

from ..sketch.conservation import common_factor, own_factor_residual, residual
from ..sketch.derive import MAIN
from ..sketch.table import COUNT, PROJECTION, SUM, UNSEEN, Floats
from ..store.record import Alert, SiteInfo, gradient_pairs
from .merging import Divergence, Merged

MOST_AT_ONCE, MOST_TOLD = 64, 4096
"""Alerts that begin with one record, and in an attempt: where all is wrong a few say it."""
WHOLE = 1e-3
"""A tensor that is so near to twice the others, up to as many times as there are ranks, or to such
a part of them, was added up wrongly; other factors are clipping by group of parameters."""
ROUNDINGS = 16
"""So many units in the last place a reduction may be off."""
SUMS = 1e-12
"""What sums of numbers in float64 are off by, for these sums are in float64, too."""
TIMES_OTHERS = 8
"""And so many times as far as half of the others: what compresses gradients rounds them all."""
NO_FACTOR = 0.05
"""Where half of all reductions are off by so much, they are none: to round to fp8 is less, and of
ten tensors that were not reduced half are off by twice as much."""
DIVERGENCE, CONSERVATION = "replica-divergence", "conservation"
REDUCED = "weight_gradient"
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
    ranks: int
    """The most addends that a tensor has."""


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
    told: int = 0
    """How many began."""
    _pairs: _Pairs | None = None

    def judge(
        self, merged: Merged, step: int, time_ns: int, *, whole: bool, patched: bool = False
    ) -> list[Alert]:
        """What begins and what ends with a record.

        Args:
            whole: whether it holds all ranks, and each to the step's end; else nothing ends.
            patched: whether it had been judged before a late rank came; nothing ends then, either.
        """
        found = self._divergences(merged)
        if whole and not merged.unmatched:
            found |= self._conservation(merged)
        told = list[Alert]()
        for key, alert in found.items():
            going_on = key in self.firing
            if alert is not None and going_on:
                begun, last_step = self.firing[key]
                self.firing[key] = begun, max(step, last_step)
            elif alert is not None and len(told) < MOST_AT_ONCE and self.told < MOST_TOLD:
                begun = replace(alert, first_step=step, time_ns=time_ns)
                self.firing[key] = begun, step
                self.told += 1
                told.append(begun)
            elif alert is None and going_on and whole and not patched:
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
        compared = set(merged.sites[merged.table.measured() > 0].tolist())
        judged: dict[Key, Alert | None] = {
            (rule, site): None
            for rule, site in self.firing
            if rule == DIVERGENCE and site in compared and self._may_compare(site, merged)
        }
        for found in merged.divergences:
            info = self.site(found.site)
            if self._may_compare(found.site, merged):
                text = f"Copies of {info.label} differ between ranks: {verdict(found)}."
                ranks = found.odd or found.ranks
                judged[DIVERGENCE, found.site] = self._alert(
                    DIVERGENCE, found.site, ranks, len(ranks) / len(found.ranks), 0.0, text
                )
        return judged

    def _may_compare(self, site: int, merged: Merged) -> bool:
        """Whether copies of a site must be equal."""
        info = self.site(site)
        # Where gradients are still being added up they are not reduced yet.
        return info.checked and not (merged.unmatched and info.kind == REDUCED)

    def _conservation(self, merged: Merged) -> dict[Key, Alert | None]:
        pairs = self._pairs
        if pairs is None or pairs.of is not merged.sites:
            pairs = self._pairs = _pairs(merged, self.site)
        if not len(pairs.addends):
            return {}
        sums = _Sums.of(merged, pairs)
        if not np.isfinite(sums.factor) or sums.factor == 0 or np.isnan(sums.off).all():
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
        # Rounding alone: what other tensors are off by would excuse too many ranks.
        ranks, how = _whose(own, rest, float(pairs.tolerance[pair] * sums.scale[pair]))
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
    """Sum of the norms of all addends: what their rounding grows with."""
    factor: float
    off: Floats
    """See `residual`; NaN where it cannot be known."""

    @classmethod
    def of(cls, merged: Merged, pairs: _Pairs) -> _Sums:
        by_rank = np.stack(list(merged.by_rank.values())).astype(np.float64)
        reduced = merged.table.moments[pairs.reduced, PROJECTION]
        added = merged.table.moments[pairs.addends, PROJECTION]
        with np.errstate(all="ignore"):
            scale = np.nansum(by_rank[:, pairs.addends, L2], axis=0)
        known = np.isfinite(scale)
        for rows in (pairs.addends, pairs.reduced):
            known &= _is_whole(merged, rows) & ~(by_rank[:, rows, NONFINITE] > 0).any(axis=0)
        full = known & (pairs.share == 1)
        factor = common_factor(reduced[full], added[full], scale[full])
        off = residual(reduced, added, scale, factor, pairs.share)
        # What scales some parameters alone scales all their sums alike.
        total, total_added = (
            merged.table.moments[rows, SUM] for rows in (pairs.reduced, pairs.addends)
        )
        own = own_factor_residual(reduced, added, total, total_added, scale)
        with np.errstate(all="ignore"):
            times = np.abs(reduced / added / factor)
            times = np.maximum(times, 1 / times)
            twice = (np.abs(times - np.round(times)) < WHOLE) & (times < pairs.ranks + WHOLE)
        by_group = ~twice & (off > pairs.tolerance) & (own <= pairs.tolerance)
        if (by_group & known).any():  # then the common factor says nothing about others
            off = np.where(twice, off, np.where(np.isnan(own), np.nan, np.fmin(off, own)))
        return cls(reduced, added, scale, factor, np.where(known, off, np.nan))


NONE = (
    "Reduced gradients are not the sums of the ranks' own gradients times a common factor: they "
    "were not reduced, or changed between the reduction and the optimizer's step. If that is "
    "meant: observe(…, unchecked='weight_gradient')."
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
    checked = [pair for pair in gradient_pairs(infos) if all(infos[row].checked for row in pair)]
    addends, reduced = np.array(checked, np.intp).reshape(-1, 2).T
    tolerance = [max(SUMS, *(ROUNDINGS * _eps(infos[row]) for row in pair)) for pair in checked]
    number = merged.addends(addends)
    share = number.max(initial=1) / np.maximum(number, 1)
    return _Pairs(
        merged.sites,
        addends,
        reduced,
        share.astype(np.float64),
        np.asarray(tolerance),
        int(number.max(initial=1)),
    )


EPS: Mapping[str, float] = {
    name: float(ml_dtypes.finfo(dtype).eps)
    for name, dtype in (
        ("float64", np.float64),
        ("float32", np.float32),
        ("float16", np.float16),
        ("bfloat16", ml_dtypes.bfloat16),
    )
}
"""By dtype: a unit in the last place of 1; of sums in others nothing is concluded."""


def _eps(info: SiteInfo) -> float:
    return EPS.get(info.dtype, float("inf"))


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
