"""Holds the time that agents take to a share of the training's. No I/O, no clock.

Every agent tells with its frames how long it has run and how long it was in hooks. Where that is
above the budget on any rank, all ranks are told to stretch their schedules by the same factor from
the same step on, so that they go on measuring the same sites in the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..wire.messages import MAX_STRETCH, Control

WINDOW_S, WINDOW_STEPS = 3.0, 8
"""A share is taken over so much time, and so many steps, on every rank."""
FASTEST = 4
"""Times by which schedules are stretched further at once, at most."""
CALM = 0.75
"""Part of the budget that is aimed at, so that noise does not lead across it."""
CALM_WINDOWS = 10
"""So many windows in a row must have been that calm before schedules are tightened again."""
USELESS = 0.9
"""A stretch that leaves more than this part of the share was of no use …"""
USELESS_FROM = 64
"""… once schedules were stretched so far that the sentinel was, too."""
MOST_S, MOST_STEPS = 1e9, 2**62
"""More seconds or steps than these nobody trains."""
NOTICE_S, NOTICE_STEPS = 2.0, 3
"""How long before a change the ranks are told of it, at least."""


@dataclass(frozen=True, slots=True)
class _Sample:
    step: int
    hook_s: float
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A new stretch, and why."""

    rank: int
    """The one that took the largest share."""
    step: int
    text: str


class Budget:
    """The stretch of one attempt.

    Args:
        share: of step time that agents may take on the training thread.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.control: Control | None = None
        """What every rank is to know, once there is something."""
        self._stretch = 1
        self._first: dict[int, _Sample] = {}
        self._last: dict[int, _Sample] = {}
        self._calm = 0
        self._before: tuple[int, float] | None = None
        """Stretch and share before the present stretch, if that was longer."""
        self._given_up = False

    def hear(self, rank: int, step: int, health: Mapping[str, float]) -> None:
        """Take in what a rank tells of itself with the frame of a step."""
        hook_s, wall_s = health.get("hook_seconds", -1.0), health.get("wall_seconds", -1.0)
        stretch = health.get("stretch", 0.0)
        if not (0 <= hook_s <= MOST_S and 0 <= wall_s <= MOST_S and abs(step) < MOST_STEPS):
            return
        if self.control is None and stretch > self._stretch and stretch in range(MAX_STRETCH + 1):
            # An earlier collector of this attempt told some ranks so; now all are.
            self._change(int(stretch), step + NOTICE_STEPS)
        if stretch == self._stretch:
            before = self._last.get(rank)
            if before is not None and (wall_s < before.wall_s or step < before.step):
                self._first.pop(rank, None)  # its process was started again, or its run rewound
            self._last[rank] = _Sample(step, hook_s, wall_s)
            self._first.setdefault(rank, self._last[rank])

    def decide(self, ranks: Collection[int]) -> Change | None:
        """Look at the shares of these ranks, once a window has passed on all; change `control`.

        Ranks that tell nothing, or go on with another stretch, are left out.
        """
        ranks = [rank for rank in ranks if rank in self._last]
        if not ranks or any(not self._is_whole(rank) for rank in ranks):
            return None
        worst, share = max(((rank, self._share(rank)) for rank in ranks), key=lambda pair: pair[1])
        step, notice = max(self._last[rank].step for rank in ranks), self._notice(ranks)
        self._begin_window()
        self._calm = self._calm + 1 if share <= CALM * self.share else 0
        if share > self.share and not self._given_up:
            return self._loosen(worst, share, step + notice)
        if self._calm >= CALM_WINDOWS and self._stretch > 1:
            return self._tighten(worst, share, step + notice)
        return None

    def _loosen(self, rank: int, share: float, from_step: int) -> Change:
        stretch = self._stretch
        before = self._before
        useless = before and before[0] >= USELESS_FROM and share > USELESS * before[1]
        if useless or stretch == MAX_STRETCH:
            self._given_up = True
            return Change(
                rank=rank,
                step=from_step,
                text=f"The agent adds {share:.1%} to the step time of rank {rank}, above the "
                f"budget of {self.share:.1%}, and stretching schedules further is of no use: "
                "observe fewer modules or kinds.",
            )
        wanted = math.ceil(min(stretch * share / (CALM * self.share), MAX_STRETCH))
        self._before = (stretch, share)
        longer = min(max(wanted, stretch + 1), FASTEST * stretch, MAX_STRETCH)
        return self._told(rank, share, from_step, longer)

    def _tighten(self, rank: int, share: float, from_step: int) -> Change | None:
        stretch = self._stretch
        shorter = max(math.ceil(stretch * share / (CALM * self.share)), stretch // 2, 1)
        self._before, self._given_up = None, False
        return self._told(rank, share, from_step, shorter) if shorter < stretch else None

    def _change(self, stretch: int, from_step: int) -> None:
        self.control = Control(stretch=stretch, from_step=from_step)
        self._stretch, self._calm = stretch, 0
        self._first, self._last = {}, {}

    def _told(self, rank: int, share: float, from_step: int, stretch: int) -> Change:
        self._change(stretch, from_step)
        often = (
            f"{stretch} times as rarely as asked for" if stretch > 1 else "as often as asked for"
        )
        return Change(
            rank=rank,
            step=from_step,
            text=f"The agent added {share:.2%} to the step time of rank {rank}; the budget is "
            f"{self.share:.2%}. From step {from_step} on each site is sketched {often}.",
        )

    def _is_whole(self, rank: int) -> bool:
        first, last = self._first.get(rank), self._last.get(rank)
        if first is None or last is None:
            return False
        return last.wall_s - first.wall_s >= WINDOW_S and last.step - first.step >= WINDOW_STEPS

    def _share(self, rank: int) -> float:
        first, last = self._first[rank], self._last[rank]
        hooks, wall = last.hook_s - first.hook_s, last.wall_s - first.wall_s
        return max(hooks, 0.0) / max(wall - hooks, 1e-9)

    def _notice(self, ranks: Collection[int]) -> int:
        """Steps from now on that will have begun before all ranks have heard of a change."""
        fastest = min(
            (self._last[rank].wall_s - self._first[rank].wall_s)
            / (self._last[rank].step - self._first[rank].step)
            for rank in ranks
        )
        return NOTICE_STEPS + math.ceil(NOTICE_S / max(fastest, 1e-4))

    def _begin_window(self) -> None:
        self._first = dict(self._last)
