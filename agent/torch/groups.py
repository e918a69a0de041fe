"""Tensors that are measured together, step after step: weights, gradients, optimizer state.

To look at each of a thousand tensors as if nobody had seen it before takes a training thread longer
than a GPU takes to read them all. What was found out about a tensor holds in the next step, too:
of a group it is kept, and a step only asks of each tensor whether it lies in memory as it did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from ...wire.messages import Placement
from ..schedule import Schedule
from ..sitebook import Key
from ..steptable import StepTable
from .found import Found
from .megatron import Part

LEAST = 4
"""Members of a group that are read together: for fewer it would take more launches."""
Tensors = Sequence[torch.Tensor | None]
"""One for each member of a group; None for what is not there, or not due."""


class Preparing(Protocol):
    """A meter, as far as it reads tensors together."""

    def can_prepare(self, found: Found) -> bool: ...
    def prepare(self, found: Sequence[Found]) -> Callable[[StepTable, Tensors], None]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A site, and what is known of its tensors."""

    key: Key
    aliases: tuple[str, ...] = ()
    placed: Mapping[str, Placement] | None = None
    part: Part | None = None
    """Which part of the whole its parameter is; a tensor of the same sizes is the same."""
    parameter: torch.Tensor | None = None

    def part_of(self, tensor: torch.Tensor) -> Part | None:
        """Which part of the whole a tensor is."""
        if self.part is None or self.parameter is None:
            return None
        return self.part if tensor.shape == self.parameter.shape else None


@dataclass(slots=True)
class Prepared:
    """Members whose tensors lie on one device, and are read at once."""

    device: torch.device
    places: list[int]
    """In the group."""
    found: list[Found]
    add: Callable[[StepTable, Tensors], None]

    def pieces_of(self, tensors: Tensors) -> tuple[list[torch.Tensor | None], list[int], list[int]]:
        """The rank's own elements, and of which places these are; places of what lies otherwise."""
        pieces, there, others = list[torch.Tensor | None](), list[int](), list[int]()
        for place, found in zip(self.places, self.found, strict=True):
            tensor = tensors[place]
            piece = None if tensor is None else found.piece_of(tensor)
            pieces.append(piece)
            if piece is not None:
                there.append(place)
            elif tensor is not None:
                others.append(place)
        return pieces, there, others


@dataclass(slots=True)
class Way:
    """One way to read the members of a group: as sketches, or as the sentinel does."""

    found: dict[int, Found] = field(default_factory=dict[int, Found])
    """By place in the group."""
    prepared: list[Prepared] = field(default_factory=list[Prepared])
    apart: list[int] = field(default_factory=list[int])
    """Places of members that are read one by one."""
    stamp: object = None
    """What was so when it was prepared; None where something was found since."""

    def learn(self, place: int, found: Found) -> None:
        """Something was found out about a member."""
        if self.found.get(place) != found:
            self.found[place], self.stamp = found, None

    def prepare(
        self, stamp: object, measured: Sequence[bool], meter: Callable[[torch.device], Preparing]
    ) -> None:
        """Sort the members, as far as they are measured, by what was found.

        Args:
            stamp: changes where they are to be sorted anew.
            measured: of each member, whether it is.
            meter: gives that of a device.
        """
        places = dict[torch.device, list[int]]()
        self.apart = []
        for place in np.flatnonzero(measured).tolist():
            one = self.found.get(place)
            if one is not None and meter(one.device).can_prepare(one):
                places.setdefault(one.device, []).append(place)
            else:
                self.apart.append(place)
        self.prepared = list[Prepared]()
        for device, mine in places.items():
            found = [self.found[place] for place in mine]
            self.prepared.append(Prepared(device, mine, found, meter(device).prepare(found)))
        self.stamp = stamp


class Group:
    """Sites of one kind.

    Args:
        kind: of all.
        members: at most one of each site.
    """

    def __init__(self, kind: str, members: Sequence[Member]) -> None:
        self.kind, self.members = kind, members
        self.ways = {False: Way(), True: Way()}
        """By whether it is the sentinel's."""
        self._turns: tuple[Schedule, dict[int, list[int]]] | None = None
        self.is_apart = len(members) < LEAST
        """Whether all are read one by one: there are few, or to read them together has failed."""

    def in_turn(self, schedule: Schedule, step: int) -> Sequence[int]:
        """The places of those whose turn it is, of members that take turns."""
        if self._turns is None or self._turns[0] is not schedule:
            places: dict[int, list[int]] = {}
            for place, member in enumerate(self.members):
                places.setdefault(schedule.turn_of(member.key[1]), []).append(place)
            self._turns = schedule, places
        return self._turns[1].get(step % schedule.every, ())
