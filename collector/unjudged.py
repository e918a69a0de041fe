"""Which sums over ranks are not judged, and why, in words. Pure.

What is not looked at must not be taken for right, so each reason is told once an attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..merge.merging import Merged
from ..sketch.conservation import LEAST
from ..sketch.labels import more_words
from ..sketch.table import COUNT, UNSEEN
from ..store.record import SiteInfo
from .sums import Pairs

GRADIENT = "weight_gradient"
UNMATCHED = (
    "Whether gradients were reduced rightly is not judged in steps without an update of their own: "
    "where a step was skipped (a gradient scaler met an overflow), where gradients are added up "
    "over several steps or thrown away, or where one step holds several updates."
)
FEW = (
    f"Sums of gradients are not judged: fewer than {LEAST} have the ranks' own beside them, of "
    "which the factor that all share cannot be told."
)
SAMPLED = "only a sample of its elements is read"
COARSE = "what rounding does to sums in its dtype is not known"
APART = "what went in and what came out are not of the same micro-batches"


@dataclass(slots=True)
class Unjudged:
    """The reasons that an attempt has had, and those that are still to be told.

    Args:
        site: what is known of a site of the run, by its index.
        known: those that were told before.
    """

    site: Callable[[int], SiteInfo]
    known: set[str] = field(default_factory=set[str])
    _new: list[str] = field(default_factory=list[str])

    def take(self) -> list[str]:
        """Sentences to be told now."""
        new, self._new = self._new, []
        return new

    def say(self, why: str, text: str = "") -> None:
        """Have a reason told, once: in its own words, or in those of a sentence about some sums."""
        if why not in self.known:
            self.known.add(why)
            self._new.append(text or why)

    def look(self, merged: Merged, pairs: Pairs) -> None:
        """Note which of these sums are never judged as the job is now."""
        table, rows = merged.table, (pairs.addends, pairs.reduced)
        unseen, counted = (table.counts[np.stack(rows), column] for column in (UNSEEN, COUNT))
        glanced = np.stack([table.take(one).is_glance() for one in rows])
        self._of(pairs, ((unseen > 0) & ~glanced).any(0), SAMPLED)
        self._of(pairs, np.isinf(pairs.tolerance), COARSE)
        if pairs.kind != GRADIENT:
            self._of(pairs, (counted[0] != counted[1]) & ~glanced.any(0), APART)

    def _of(self, pairs: Pairs, which: NDArray[np.bool_], why: str) -> None:
        """These sums are not judged."""
        if not which.any():
            return
        first, *others = pairs.of[pairs.reduced[which]].tolist()
        what = f"{self.site(first).label}{more_words(others)}"
        self.say(why, f"The sum of {what} is not judged: {why}.")
