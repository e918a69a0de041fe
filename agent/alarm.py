"""The alarm: in which steps something goes wrong that did not go wrong before."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..sketch.table import MAX, MIN, NAN, NEG_INF, POS_INF
from .steptable import StepTable

ALARM_STEPS = 16
"""Without a ring: what was wrong in one of so many steps before is no news."""


@dataclass(slots=True)
class Alarm:
    """Looks at each step of a rank.

    Args:
        steps: so many are remembered.
        limit: a magnitude from which on a number is an overflow.
    """

    steps: int
    limit: float
    _bad: deque[NDArray[np.intp]] = field(default_factory=deque[NDArray[np.intp]])
    """Of the last steps the rows in which something was wrong."""

    def newly_bad(self, step: StepTable) -> NDArray[np.intp]:
        """The rows with what is not finite, or overflows, in which it did not in the last steps.

        So what is always so, as the -inf of an attention mask, is news but once.
        """
        rows = np.flatnonzero(step.present)
        counts, moments = step.table.counts[rows], step.table.moments[rows]
        largest = np.maximum(-moments[:, MIN], moments[:, MAX])
        is_bad = (counts[:, [NAN, POS_INF, NEG_INF]] > 0).any(axis=1) | (largest >= self.limit)
        bad = rows[is_bad]
        known = [one for one in self._bad if len(one)]
        self._bad.append(bad)
        while len(self._bad) > self.steps:
            self._bad.popleft()
        return np.setdiff1d(bad, np.concatenate(known)) if known else bad
