"""Which sites are read in a step, and how: schedules, the sentinel, samples and the stretch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .reading import Reading
from .schedule import Schedule

LASTING_KINDS = frozenset({"weight", "weight_gradient", "optimizer_state"})
"""Kinds whose tensors stay in memory without us, and change only after a `barrier`."""
COMPARED_KINDS = frozenset({"unsharded_weight"})
"""Kinds that are copies of what is sketched elsewhere, and stay in memory for a moment."""
COPIES = Reading(sentinel=True, compared=True, brief=True)
"""How these are read."""
MADE_KINDS = frozenset({"update"})
"""Kinds that are computed to be read: no sentinel looks at them."""
SENTINEL_STRETCH = 16
"""So many times less than schedules the sentinel is stretched: it costs less than they do."""


@dataclass(frozen=True, slots=True)
class _Way:
    """How the sites of one kind are read."""

    schedule: Schedule
    sketch: Reading
    glance: Reading | None

    def stretched(self, times: int) -> _Way:
        """The same so many times as rarely, sites in turn."""
        if times == 1:
            return self
        every = self.schedule.every * times
        return replace(self, schedule=replace(self.schedule, every=every, staggered=True))


def _way(kind: str, schedule: Schedule, stride: int) -> _Way:
    if kind in COMPARED_KINDS:
        return _Way(schedule, COPIES, COPIES)
    lasting = kind in LASTING_KINDS
    sketch = Reading(lasting=lasting, stride=stride)
    if kind in MADE_KINDS:
        return _Way(schedule, sketch, None)
    return _Way(schedule, sketch, Reading(lasting=lasting, sentinel=True))


class Timetable:
    """What is due in the step that is open; of one agent.

    Args:
        schedules: of each kind that is observed.
        sentinel: whether all other sites are looked at, too, in every step.
        ring: whether all are sketched in every step, and schedules say only which are sent.
        strides: of a large tensor of that kind, of how many clusters of elements one is sketched.
    """

    def __init__(
        self,
        schedules: Mapping[str, Schedule],
        *,
        sentinel: bool = False,
        ring: bool = False,
        strides: Mapping[str, int] | None = None,
    ) -> None:
        self._asked = {
            kind: _way(kind, schedule, (strides or {}).get(kind, 1))
            for kind, schedule in schedules.items()
        }
        self._ways = self._asked
        self._sentinel = Schedule() if sentinel else None
        self._ring = ring
        self.stretch = 1
        """How many times as rarely as was asked for sites are sketched."""
        self._next_stretch = 1, 0
        self._detail = range(0)
        self._step = 0
        self._sketched: dict[str, _Way] = {}
        self._glances = False
        self._in_turn = True

    def observes(self, kind: str) -> bool:
        """Whether sites of a kind are read in any step."""
        return kind in self._asked

    @property
    def leaves_out(self) -> bool:
        """Whether some sites are not sketched, or not sent, in some steps."""
        return not all(way.schedule.is_whole for way in self._asked.values())

    def stretch_from(self, step: int, times: int) -> None:
        """From that step on sketch so many times as rarely as was asked for, sites in turn.

        May be called by any thread.
        """
        self._next_stretch = times, step

    def sketch_all(self, from_step: int, steps: int) -> None:
        """In so many steps from that one on sketch all sites, and send them, whatever was asked.

        May be called by any thread.
        """
        self._detail = range(from_step, from_step + steps)

    def stretch_at(self, step: int) -> int:
        """How many times as rarely as was asked for it is measured from a step on."""
        times, from_step = self._next_stretch
        return times if step >= from_step else self.stretch

    def is_in_full(self, step: int) -> bool:
        """Whether all is sketched and sent in a step, whatever was asked."""
        return step in self._detail

    def begin(self, step: int) -> bool:
        """Turn to a step; whether anything is due in it."""
        times = self.stretch_at(step)
        if times != self.stretch:
            self._change_stretch(times)
        in_full = self._ring or step in self._detail
        self._step, self._in_turn = step, not in_full
        self._sketched = {
            kind: way for kind, way in self._ways.items() if in_full or way.schedule.due(step)
        }
        self._glances = self._sentinel is not None
        return bool(self._sketched) or self._glances

    def begin_final(self) -> None:
        """Turn to what is recorded at the end, whatever the schedules say: the last weights."""
        self._sketched = {kind: way for kind, way in self._asked.items() if kind == "weight"}
        self._glances = self._in_turn = False

    def is_scheduled(self, step: int) -> bool:
        """Whether a step is sent where a ring keeps the others; may be asked by any thread."""
        return step in self._detail or any(way.schedule.due(step) for way in self._asked.values())

    def end(self) -> None:
        """Nothing is due any more."""
        self._sketched, self._glances = {}, False

    def due(self, kind: str) -> bool:
        """Whether sites of a kind may be read in this step, be it by the sentinel alone."""
        if kind in self._sketched:
            return True
        way = self._ways.get(kind) if self._glances else None
        return way is not None and way.glance is not None

    def how(self, kind: str, name: str) -> Reading | None:
        """How the sites of a kind and name are read in this step; None: not."""
        way = self._sketched.get(kind)
        if way is not None and (not self._in_turn or way.schedule.is_turn_of(name, self._step)):
            return way.sketch
        way, sentinel = self._ways.get(kind), self._sentinel if self._glances else None
        if way is not None and sentinel is not None and sentinel.is_turn_of(name, self._step):
            return way.glance
        return None

    def turns(self, kind: str) -> Schedule | None:
        """The schedule by which a kind's sites take turns, the others not being read at all."""
        way = None if self._glances else self._sketched.get(kind)
        return way.schedule if way is not None and self.takes_turns(kind) else None

    def takes_turns(self, kind: str) -> bool:
        """Whether the sites of a kind are not all read alike in this step."""
        way = self._sketched.get(kind)
        if way is not None:
            return self._in_turn and way.schedule.staggered
        return self._glances and self._sentinel is not None and self._sentinel.staggered

    def _change_stretch(self, times: int) -> None:
        self.stretch = times
        self._ways = {kind: way.stretched(times) for kind, way in self._asked.items()}
        if self._sentinel is not None:
            every = max(1, times // SENTINEL_STRETCH)  # of one, all are in turn at every step
            self._sentinel = Schedule(every=every, staggered=True)
