"""The optimizers of a model whose script may make others while it is observed."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import torch


class ReplaceableOptimizers(Sequence[torch.optim.Optimizer]):
    """Those that are still there: an optimizer that its script drops is not kept alive by us.

    What it holds, its state above all, would stay in memory else, and nothing would tell that the
    model is trained no more.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._all = [weakref.ref(one) for one in optimizers]

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """There is another one."""
        self._all.append(weakref.ref(optimizer))

    def remove(self, optimizer: torch.optim.Optimizer) -> None:
        """It is no longer one of them."""
        self._all = [one for one in self._all if one() not in (None, optimizer)]

    @overload
    def __getitem__(self, place: int) -> torch.optim.Optimizer: ...
    @overload
    def __getitem__(self, place: slice) -> list[torch.optim.Optimizer]: ...
    def __getitem__(
        self, place: int | slice
    ) -> torch.optim.Optimizer | list[torch.optim.Optimizer]:
        return list(self)[place]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        return (one for made in list(self._all) if (one := made()) is not None)
