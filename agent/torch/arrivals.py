"""Tensors that a collective has not filled yet: to read one would wait for the other ranks.

Row-parallel modules return such tensors. Somebody will use each, and wait for it then; from then on
it can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch

from ...wire.messages import Placement
from ..sitebook import Key
from .local import ON_THEIR_WAY, PLAIN

MOST = 256
"""Tensors that may be awaited: they are kept in memory for it."""


def is_on_its_way(tensor: torch.Tensor) -> bool:
    """Whether a collective returned a tensor, or what a DTensor holds, and nobody used it since."""
    piece = _piece(tensor)
    return type(piece).__name__ in ON_THEIR_WAY and not piece.completed


def _piece(tensor: Any) -> Any:
    """What a DTensor holds here; a plain tensor itself."""
    return tensor if type(tensor) in PLAIN else getattr(tensor, "_local_tensor", tensor)


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Awaited:
    """A tensor that is on its way, and as what it is to be measured."""

    key: Key
    tensor: torch.Tensor
    module: str
    aliases: tuple[str, ...]
    placed: Mapping[str, Placement] | None


class Arrivals:
    """The tensors of the step that is open that are on their way."""

    def __init__(self) -> None:
        self._awaited: list[Awaited] = []
        self._beyond = 0
        """Tensors that came when too many were awaited."""

    def expect(self, awaited: Awaited) -> None:
        """Wait for a tensor."""
        if len(self._awaited) < MOST:
            self._awaited.append(awaited)
        else:
            self._beyond += 1

    def arrived(self) -> Iterator[Awaited]:
        """Those that somebody has used since; they are not awaited any more."""
        if self._awaited:
            awaited, self._awaited = self._awaited, []
            for one in awaited:
                if not is_on_its_way(one.tensor):
                    yield one
                else:
                    self._awaited.append(one)

    def of(self, tensor: torch.Tensor) -> Callable[[], Awaited | None]:
        """What asks whether a tensor is still awaited, and does not keep it in memory."""
        for one in reversed(self._awaited):
            if one.tensor is tensor:
                return ref(one)
        return _nothing

    def used(self, awaited: Awaited) -> None:
        """The gradient of the tensor came: whoever made it had used the tensor, and waited for it.

        Torch does not say so where it was used through a view.
        """
        if is_on_its_way(awaited.tensor):
            _piece(awaited.tensor).trigger_wait()

    def give_up(self) -> int:
        """The step has ended, and nobody will use what is left: how many were never read."""
        lost = len(self._awaited) + self._beyond
        self._awaited, self._beyond = [], 0
        return lost
