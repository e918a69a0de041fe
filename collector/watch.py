"""What each record is judged by as it is made: whether copies agree, and whether sums were kept.

Pure: alerts follow from the records and from what is wrong already. An alert is told when it
begins, and once more when the step comes in which it is found no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..merge.merging import Divergence, Merged
from ..store.record import Alert, SiteInfo
from .sums import Pairs, Sums

MOST_AT_ONCE, MOST_TOLD = 64, 4096
"""Alerts that begin with one record, and in an attempt: where all is wrong a few say it."""
TIMES_OTHERS = 8
"""And so many times as far as half of the others: what compresses gradients rounds them all."""
NO_FACTOR = 0.05
"""Where half of all reductions are off by so much, they are none: to round to fp8 is less, and of
ten tensors that were not reduced half are off by twice as much."""
DIVERGENCE, CONSERVATION = "replica-divergence", "conservation"
REDUCED = "weight_gradient"
SUMMED = "activation", "input_gradient"
"""What tensor parallelism adds up in the forward, and in the backward."""
WHOLE = "the sum of what its ranks had to add up"

Key = tuple[str, int]
"""A rule, and the index of a site; -1 for none."""


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
    _pairs: dict[str, Pairs] = field(default_factory=dict[str, Pairs])
    """By kind of what was reduced: those of the last record that had some."""

    def resume(
        self, alerts: Sequence[Alert], place: Callable[[str], int], last_step: int | None
    ) -> None:
        """Go on where an earlier collector of the attempt has ended.

        Args:
            alerts: what it has told.
            place: index of a site by its label.
            last_step: of the attempt's newest record, to which alerts went on that did not end.
        """
        self.told = len(alerts)
        for alert in alerts:
            if alert.last_step is None:
                key = alert.rule, place(alert.site) if alert.site else -1
                self.firing[key] = alert, max(alert.first_step, last_step or alert.first_step)

    def judge(
        self, merged: Merged, step: int, time_ns: int, *, whole: bool, patched: bool = False
    ) -> list[Alert]:
        """What begins and what ends with a record.

        Args:
            whole: whether it holds all ranks, and each to the step's end; else nothing ends.
            patched: whether it had been judged before a late rank came; nothing ends then, either.
        """
        found = self._divergences(merged)
        if whole:
            found |= self._activation_sums(merged)
        if whole and not merged.unmatched:
            found |= self._gradient_sums(merged)
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
        compared = set(merged.sites[merged.table.has_checksum()].tolist())
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

    def _pairs_of(self, merged: Merged, kind: str) -> Pairs:
        known = self._pairs.get(kind)
        if known is None or known.of is not merged.sites:
            known = self._pairs[kind] = Pairs.find(merged, self.site, kind)
        return known

    def _gradient_sums(self, merged: Merged) -> dict[Key, Alert | None]:
        pairs = self._pairs_of(merged, REDUCED)
        if not len(pairs.addends):
            return {}
        sums = Sums.of_gradients(merged, pairs)
        if not np.isfinite(sums.factor) or sums.factor == 0 or np.isnan(sums.off).all():
            return {}
        usual = float(np.nanmedian(sums.off))
        if usual > NO_FACTOR:
            return {(CONSERVATION, -1): self._alert(CONSERVATION, -1, (), usual, NO_FACTOR, NONE)}
        what = f"the sum of the ranks' own gradients times {sums.factor:.6g}, as the others are"
        return {(CONSERVATION, -1): None, **self._kept(merged, pairs, sums, usual, what)}

    def _activation_sums(self, merged: Merged) -> dict[Key, Alert | None]:
        judged = dict[Key, Alert | None]()
        for kind in SUMMED:
            pairs = self._pairs_of(merged, kind)
            if len(pairs.addends):
                sums = Sums.of_activations(merged, pairs)
                # Not by what others are off by: nobody compresses these, and all may be wrong.
                judged |= self._kept(merged, pairs, sums, 0.0, WHOLE)
        return judged

    def _kept(
        self, merged: Merged, pairs: Pairs, sums: Sums, usual: float, what: str
    ) -> dict[Key, Alert | None]:
        """Of each sum that can be judged whether it was kept; `usual` is what most are off by."""
        judged = dict[Key, Alert | None]()
        most = np.maximum(pairs.tolerance, TIMES_OTHERS * usual)
        for pair in np.flatnonzero(~np.isnan(sums.off)).tolist():
            site = int(merged.sites[pairs.reduced[pair]])
            judged[CONSERVATION, site] = (
                self._broken(merged, pairs, sums, pair, float(most[pair]), what)
                if sums.off[pair] > most[pair]
                else None
            )
        return judged

    def _broken(
        self, merged: Merged, pairs: Pairs, sums: Sums, pair: int, most: float, what: str
    ) -> Alert:
        """One sum that was not kept."""
        site, off = int(merged.sites[pairs.reduced[pair]]), float(sums.off[pair])
        rest = float(sums.added[pair] - sums.reduced[pair] / sums.factor)
        own = merged.addends_of(int(pairs.addends[pair]), int(pairs.column[pair]))
        # Rounding alone: what other tensors are off by would excuse too many ranks.
        ranks, how = _whose(own, rest, float(pairs.tolerance[pair] * sums.scale[pair]))
        text = (
            f"{self.site(site).label} is not {what}: it is off by {off:.3g} of their size; {how}."
        )
        return self._alert(CONSERVATION, site, ranks, off, most, text)


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


def _whose(own: Mapping[int, float], rest: float, most: float) -> tuple[tuple[int, ...], str]:
    """Whose addend explains what is left, if it is one rank's alone."""
    missing = tuple(rank for rank, number in own.items() if abs(rest - number) <= most)
    twice = tuple(rank for rank, number in own.items() if abs(rest + number) <= most)
    if len(missing) == 1 and not twice:
        return missing, f"it is as if that of rank {missing[0]} were missing"
    if len(twice) == 1 and not missing:
        return twice, f"it is as if that of rank {twice[0]} were in it twice"
    return (), "sums do not tell through which rank"
