"""What is judged by the numbers of single ranks, as a record is merged: copies, and sums.

Pure. The verdicts are made here, since only a merge sees the ranks; the watch tells them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..merge.merging import Divergence, Merged
from ..rules.exact import COPIES, SUMS
from ..rules.rule import Rule, Told, Verdict
from ..sketch.conservation import LEAST, NO_FACTOR
from ..sketch.derive import MAIN
from ..sketch.labels import rank_words
from ..sketch.table import Floats
from ..store.record import SiteInfo
from .averaging import MOST, Averaging, more_words, times_average
from .blame import Sum
from .rounding import TIMES_OTHERS, Rounding
from .sums import EPS, ROUNDINGS, Pairs, Sums
from .unjudged import FEW, UNMATCHED, Unjudged

FINE = ROUNDINGS * EPS["float32"]
"""What a rank's share must explain a rest to, or what others are off by, however coarse the dtype:
too narrow a bound names no rank."""
REDUCED = "weight_gradient"
SUMMED = "activation", "input_gradient"
"""What tensor parallelism adds up in the forward, and in the backward."""
WHOLE = "the sum of what its ranks had to add up"
NONFINITE = MAIN.index("nonfinite")
MOST_PIECES = 4
"""Of a tensor in pieces, the pieces that a sentence names."""


@dataclass(slots=True)
class _Entries:
    """A verdict in the making."""

    sites: list[int] = field(default_factory=list[int])
    value: list[float] = field(default_factory=list[float])
    threshold: list[float] = field(default_factory=list[float])
    tell: list[Callable[[], Told]] = field(default_factory=list[Callable[[], Told]])

    def add(self, site: int, value: float, threshold: float, tell: Callable[[], Told]) -> None:
        self.sites.append(site)
        self.value.append(value)
        self.threshold.append(threshold)
        self.tell.append(tell)

    def verdict(self) -> Verdict:
        return Verdict(
            sites=np.array(self.sites, np.intp),
            value=np.array(self.value),
            threshold=np.array(self.threshold),
            tell=lambda place: self.tell[place](),
        )


@dataclass(slots=True)
class Exact:
    """The verdicts on an attempt's records.

    Args:
        site: what is known of a site of the run, by its index.
    """

    site: Callable[[int], SiteInfo]
    _pairs: dict[str, Pairs] = field(default_factory=dict[str, Pairs])
    """By kind of what was reduced: those of the last record that had some."""
    _rounding: Rounding = field(default_factory=Rounding)
    _averaging: Averaging = field(default_factory=Averaging)
    unjudged: Unjudged = field(init=False)
    """What of it is not judged."""

    def __post_init__(self) -> None:
        self.unjudged = Unjudged(self.site)

    def learnt(self) -> dict[str, Any]:
        """What was learnt of the records so far, as plain values for `json`."""
        return {
            "rounding": self._rounding.learnt(),
            "averaging": self._averaging.learnt(),
            "unjudged": sorted(self.unjudged.known),
        }

    def recall(self, learnt: Mapping[str, Any]) -> None:
        """Go on with what `learnt` gave before; nothing of it is as good as an empty one."""
        if learnt:
            self._rounding = Rounding.recalled(learnt["rounding"])
            self._averaging = Averaging.recalled(learnt["averaging"])
            self.unjudged = Unjudged(self.site, set(learnt["unjudged"]))

    def judge(
        self,
        merged: Merged,
        firing: Collection[tuple[str, int]],
        training: Mapping[int, Mapping[str, float]],
        *,
        whole: bool,
    ) -> Mapping[Rule, Verdict]:
        """The verdicts on one record.

        Args:
            firing: rules and sites of which alerts go on.
            training: by rank what it told of the step.
            whole: whether it holds all ranks, and each to the step's end; else sums are not judged.
        """
        sums = _Entries()
        if whole:
            self._activation_sums(merged, sums)
        if whole and not merged.unmatched:
            self._gradient_sums(merged, training, sums)
        elif whole and len(self._pairs_of(merged, REDUCED).addends):
            self.unjudged.say(UNMATCHED)
        return {COPIES: self._copies(merged, firing), SUMS: sums.verdict()}

    def _copies(self, merged: Merged, firing: Collection[tuple[str, int]]) -> Verdict:
        found = _Entries()
        if merged.observed.is_of_several and len(merged.sites):
            found.add(-1, 0.0, 0.0, lambda: Told(text=""))  # copies were looked at
        differing = dict[int, list[Divergence]]()
        for one in merged.divergences:  # of a tensor in pieces there may be one a piece
            differing.setdefault(one.site, []).append(_with_odd(one, merged))
        settled = {site for rule, site in firing if rule == COPIES.name}
        if settled:
            settled &= set(merged.sites[merged.table.has_checksum()].tolist())
        for site in sorted(settled | differing.keys()):
            if not self._may_compare(site, merged):
                continue
            pieces = differing.get(site, [])
            share = len(_blamed(pieces)) / max(1, sum(len(one.ranks) for one in pieces))
            found.add(site, share, 0.0, lambda site=site, of=pieces: self._tell_copies(site, of))
        return found.verdict()

    def _tell_copies(self, site: int, pieces: Sequence[Divergence]) -> Told:
        if not pieces:
            return Told(text="")
        # Those of which the odd ones are known say most.
        several = sorted(pieces, key=lambda one: not one.odd)
        words = "; ".join(map(verdict, several[:MOST_PIECES]))
        text = f"Copies of {self.site(site).label} differ between ranks: {words}"
        more = len(several) - MOST_PIECES
        rest = f"; and so on, of {more} more of its pieces" if more > 0 else ""
        return Told(text=f"{text}{rest}.", ranks=_blamed(pieces))

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

    def _gradient_sums(
        self, merged: Merged, training: Mapping[int, Mapping[str, float]], into: _Entries
    ) -> None:
        pairs = self._pairs_of(merged, REDUCED)
        if not len(pairs.addends):
            return
        self.unjudged.look(merged, pairs)
        if len(pairs.addends) < LEAST:
            self.unjudged.say(FEW)
        tolerance = self._rounding.tolerance(pairs)
        sums = Sums.of_gradients(merged, pairs, tolerance)
        if not np.isfinite(sums.factor) or sums.factor == 0 or np.isnan(sums.off).all():
            return
        usual = float(np.nanmedian(sums.off))
        times = times_average(sums.factor, pairs.ranks, training)
        if usual <= NO_FACTOR and self._averaging.is_more(times):
            into.add(-1, times, MOST, lambda: Told(text=more_words(times)))
        else:
            into.add(-1, usual, NO_FACTOR, lambda: Told(text=NONE))
        if usual <= NO_FACTOR:
            self._averaging.learn(times)
            what = f"the sum of the ranks' own gradients times {sums.factor:.6g}, as the others are"
            most = np.maximum(tolerance, self._rounding.others(pairs, sums))
            self._kept(merged, pairs, sums, most, what, into)
            self._rounding.learn(pairs, sums)

    def _activation_sums(self, merged: Merged, into: _Entries) -> None:
        for kind in SUMMED:
            pairs = self._pairs_of(merged, kind)
            if len(pairs.addends):
                self.unjudged.look(merged, pairs)
                sums = Sums.of_activations(merged, pairs)
                # Not by what others are off by: nobody compresses these, and all may be wrong.
                self._kept(merged, pairs, sums, pairs.tolerance, WHOLE, into)

    def _kept(
        self,
        merged: Merged,
        pairs: Pairs,
        sums: Sums,
        most: Floats,
        what: str,
        into: _Entries,
    ) -> None:
        """Of each sum that can be judged whether it was kept; `most` is what it may be off by."""
        for pair in np.flatnonzero(~np.isnan(sums.off)).tolist():
            site = int(merged.sites[pairs.reduced[pair]])
            into.add(
                site,
                float(sums.off[pair]),
                float(most[pair]),
                lambda pair=pair: self._tell_sum(merged, pairs, sums, pair, what),
            )

    def _tell_sum(self, merged: Merged, pairs: Pairs, sums: Sums, pair: int, what: str) -> Told:
        """Of one sum that was not kept."""
        rows, off = (int(pairs.addends[pair]), int(pairs.reduced[pair])), float(sums.off[pair])
        others = np.delete(sums.off, pair)
        others = others[~np.isnan(others)]
        usual = TIMES_OTHERS * float(np.median(others)) if len(others) else 0.0
        most = max(min(float(pairs.tolerance[pair]), FINE), usual) * float(sums.scale[pair])
        ranks, how = Sum.of(merged, rows, int(pairs.column[pair]), sums.factor, most).whose()
        label = self.site(int(merged.sites[rows[1]])).label
        text = f"{label} is not {what}: it is off by {off:.3g} of their size; {how}."
        return Told(text=text, ranks=ranks)


NONE = (
    "Reduced gradients are not the sums of the ranks' own gradients times a common factor: they "
    "were not reduced, or changed between the reduction and the optimizer's step. If that is "
    "meant: observe(…, unchecked='weight_gradient')."
)


def _with_odd(found: Divergence, merged: Merged) -> Divergence:
    """Where no value has a majority, those are odd that alone hold what is not finite."""
    place = int(np.searchsorted(merged.sites, found.site))
    known = {rank: merged.by_rank[rank][place] for rank in found.ranks if rank in merged.by_rank}
    bad = tuple(rank for rank, numbers in known.items() if numbers[NONFINITE] > 0)
    if found.odd or not bad or len(bad) == len(found.ranks) or len(known) < len(found.ranks):
        return found
    return replace(found, odd=bad)


def _blamed(pieces: Sequence[Divergence]) -> tuple[int, ...]:
    """The odd ranks, as far as they are known; of no piece, then all that hold one."""
    odd = {rank for one in pieces for rank in one.odd}
    return tuple(sorted(odd or {rank for one in pieces for rank in one.ranks}))


def verdict(found: Divergence) -> str:
    """Who differs, as far as it can be known."""
    if not found.odd:
        return f"{rank_words(found.ranks)} hold them, and none has a majority"
    which = "one is" if len(found.odd) == 1 else "ones are"
    return f"of {rank_words(found.ranks)} the odd {which} {rank_words(found.odd).partition(' ')[2]}"
