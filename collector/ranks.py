"""The ranks of one attempt: who is there, and where each stands. No I/O, no clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..sketch.labels import rank_words
from .held import Key
from .telling import Telling

MAX_PLACES = 32
"""Places at which ranks stand that are told of a job that hangs."""


class Place(NamedTuple):
    """Where a rank stands in its training."""

    step: int = 0
    tensors: int = 0
    """How many of the step it has come to."""
    site: str = ""
    """The last of them."""

    def words(self) -> str:
        """It as a part of a sentence."""
        at = f", last at {self.site}" if self.site else ""
        return f"in step {self.step}{at}" + (f", its tensor {self.tensors:,}" if at else "")


@dataclass(slots=True)
class Rank:
    """What is known of one rank."""

    seen: float
    position: Key | None = None
    """The record that its last frame went to."""
    unfinished: bool = False
    """Whether that frame was partial, so that a full one may replace it."""
    gone: bool = False
    """Said goodbye, or was silent for too long."""
    lost: bool = False
    """Whether it was told as lost, and nothing of it has come since: a relay may have announced it
    for frames that are stored."""
    left: bool = False
    """The same, of one that said goodbye."""
    place: Place = field(default_factory=Place)
    moved: float = 0.0
    """When it was last heard to be at another place."""
    first: int | None = None
    """The step in which it was first heard to be."""
    has_ended_a_step: bool = False
    """Whether it was heard to be in a later one."""

    def stands_in(self, step: int) -> None:
        """It was heard to be in a step, or to have sent of it."""
        self.first = step if self.first is None else self.first
        self.has_ended_a_step |= step > self.first


class Ranks:
    """All that were heard of; the others are expected for a while.

    Args:
        world_size: how many the attempt has.
        telling: hears who comes back, and where all stand when none moves.
        lost_after_s: see `JoinerSettings`, as for the others.
    """

    def __init__(
        self,
        world_size: int,
        telling: Telling,
        *,
        lost_after_s: float,
        stalled_after_s: float,
        begins_within_s: float,
    ) -> None:
        self.known: dict[int, Rank] = {}
        self.left_before = set[int]()
        """Ranks that said goodbye to an earlier collector, and have not come back."""
        self._left_again = set[int]()
        self._world_size, self._telling = world_size, telling
        self._lost_after_s = lost_after_s
        self._stalled_after_s, self._begins_within_s = stalled_after_s, begins_within_s
        self._here = 0
        """How many of them are not gone."""
        self._lost_before = dict[int, int]()
        """By rank that an earlier collector told as lost the step in which it was seen last."""
        self._stored_step: int | None = None
        """The newest that an earlier collector stored."""
        self._stalled = False
        """Whether it was told that no rank moves."""

    def recall(self, *, lost: Mapping[int, int], left: Iterable[int], step: int | None) -> None:
        """What an earlier collector stored: none of these ranks is awaited.

        Args:
            lost: by rank that it told as lost the step in which it was seen last.
            left: ranks that had said goodbye.
            step: the newest, if there is any.
        """
        self._lost_before.update(lost)
        self.left_before.update(left)
        self._stored_step = step

    def present(self) -> list[int]:
        """The ranks that are there: heard of, not gone."""
        return [rank for rank, state in self.known.items() if not state.gone]

    @property
    def is_deserted(self) -> bool:
        """Whether no rank is there that was heard of."""
        return not self._here

    def newest_step(self) -> int:
        """The furthest that a rank has come, as far as is known."""
        return max((state.place.step for state in self.known.values()), default=0)

    def last_step(self, rank: int) -> int | None:
        """Of the newest frame of the rank, as far as is known."""
        state = self.known.get(rank)
        return self._stored_step if state is None or state.position is None else state.position[1]

    def last_seen(self, rank: int) -> float | None:
        """When the rank was last heard; None if never, or if it is gone."""
        state = self.known.get(rank)
        return None if state is None or state.gone else state.seen

    def everyone_is_gone(self, now: float, started: float) -> bool:
        """Whether no rank of the attempt is there, and none is expected.

        A rank that was never heard of is expected for `lost_after_s` after `started`.
        """
        if not self.is_deserted:
            return False
        heard = max((state.seen for state in self.known.values()), default=started)
        everyone = len(self.known) + len(self.left_before) >= self._world_size
        return everyone or now - max(heard, started) > self._lost_after_s

    def hear(
        self, rank: int, now: float, place: Place | None = None, *, came: bool = False
    ) -> Rank:
        """The rank is there, and at this place; or a frame of it `came`."""
        state = self.known.get(rank)
        if state is None:
            at = Place(step=self._lost_before.get(rank, self._stored_step or 0))
            lost = rank in self._lost_before
            state = Rank(seen=now, moved=now, place=at, lost=lost, left=rank in self.left_before)
            self.known[rank] = state
            self._here += 1
        self.left_before.discard(rank)
        if state.gone:
            state.gone = False
            self._here += 1
        if (state.lost or state.left) and (came or place is not None):
            state.lost = state.left = False
            self._telling.tell("rank-joined", rank, state.place.step, f"Rank {rank} is back.")
        state.seen = max(state.seen, now)
        if place is not None and place != state.place:
            state.place, state.moved = place, now
            state.stands_in(place.step)
        return state

    def arrive(self, rank: int, step: int, now: float, *, kept: bool) -> Rank:
        """A frame of a step came from the rank; one that it had `kept` back is no step back."""
        state = self.hear(rank, now, came=True)
        state.moved = now
        state.stands_in(step)
        may_go_back = not kept and not state.unfinished  # then it is a rewind
        if step > state.place.step or may_go_back:
            state.place = state.place._replace(step=step)
        return state

    def leave(self, rank: int, reason: str) -> bool:
        """The rank ended its stream, which is told if it has a reason; False if it was not here."""
        state = self.known.get(rank)
        if state is None or state.gone:
            return False
        if reason:
            self._telling.tell("rank-left", rank, state.place.step, f"Rank {rank} left: {reason}")
        state.left = True
        self._let_go(state)
        return True

    def lose(self, rank: int, why: str) -> None:
        """A rank that is here is told as lost, once; `why` is a sentence from the verb on.

        Not if it had left, and only said hello since.
        """
        state = self.known[rank]
        if state.left:
            self._left_again.add(rank)
        elif not state.lost:
            text = f"Rank {rank} {why}; it was last seen {state.place.words()}."
            self._telling.tell("rank-lost", rank, state.place.step, text)
            state.lost = True
        self._let_go(state)

    def _let_go(self, state: Rank) -> None:
        state.gone = True
        self._here -= 1

    def take_left_again(self) -> set[int]:
        """Those that had left, were announced, and are gone without anything having come."""
        taken, self._left_again = self._left_again, set[int]()
        return taken

    def silent(self, now: float) -> list[int]:
        """Those that are there, and were not heard for too long."""
        there = ((rank, one) for rank, one in self.known.items() if not one.gone)
        return [rank for rank, one in there if now - one.seen > self._lost_after_s]

    def find_stall(self, now: float) -> None:
        """Tell where each rank is, once no rank has come to another step or site for long."""
        moved = max((one.moved for one in self.known.values() if not one.gone), default=now)
        begun = any(one.has_ended_a_step for one in self.known.values())
        limit_s = self._stalled_after_s if begun else self._begins_within_s
        stalled = now - moved > limit_s
        if stalled and not self._stalled:
            self._tell_places(limit_s)
        self._stalled = stalled

    def _tell_places(self, limit_s: float) -> None:
        at = defaultdict[Place, list[int]](list)
        for rank in sorted(self.present()):
            at[self.known[rank].place].append(rank)
        # Those that are fewest, or behind, are most likely the ones that the others wait for.
        places = sorted(at.items(), key=lambda item: (len(item[1]), item[0]))
        text = "; ".join(
            f"{rank_words(ranks)} {place.words()}" for place, ranks in places[:MAX_PLACES]
        )
        place, [rank, *_] = places[0]
        since = f"No rank has moved for {limit_s:g} s: "
        self._telling.tell("stalled", rank, place.step, f"{since}{text}.")
