"""Tensors by name: every statistic of the sketch, and tables of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from numpy.typing import NDArray

from ....sketch.errors import SettingError
from ...toolkit.named import Group, Named
from ...toolkit.ranks import RankPart
from ...toolkit.sketches import By, Sketches
from .gathering import merged_across
from .places import WHOLE, Piece, Place, spelt
from .sketching import real, sketch_tensors


class NamedTensors(Named[torch.Tensor]):
    """Tensors by name, all of one kind.

    Arithmetic with numbers, and with tensors of the same names, makes new tensors, in the dtypes
    that torch gives: `.to(dtype=torch.float32)` first where those are too narrow. Nothing here
    changes a tensor in place. Statistics are of the finite elements, as everywhere in rankscope.

    Args:
        tensors: plain ones. They are held as they are: `snapshot` copies.
        kind: what they are, as `weight`, in the words of README.
        places: how each relates to the whole, where a rank holds a piece of it.
    """

    _library, _array_type = torch, torch.Tensor

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        kind: str = "",
        places: Mapping[str, Place] | None = None,
    ) -> None:
        super().__init__(tensors, kind)
        self._places = {name: (places or {}).get(name, WHOLE) for name in tensors}

    @classmethod
    def of(cls, pieces: Iterable[Piece], kind: str) -> NamedTensors:
        """Of pieces, which are held as they are."""
        every = list(pieces)
        return cls(
            {name: tensor for name, tensor, _ in every},
            kind=kind,
            places={name: place for name, _, place in every},
        )

    @property
    def places(self) -> Mapping[str, Place]:
        """By name: how each relates to the whole."""
        return self._places

    def to(
        self,
        device: torch.device | str | torch.dtype | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Copies of all, on that device, in that dtype; None leaves it as it is.

        A dtype may stand alone, as in `.to(torch.float32)`.

        Raises:
            SettingError: two dtypes are given.
        """
        if isinstance(device, torch.dtype):
            if dtype is not None:
                raise SettingError(f"`to` takes a device and one dtype, got {device} and {dtype}.")
            device, dtype = None, device
        made = {
            name: tensor.to(device=device, dtype=dtype, copy=True) for name, tensor in self.items()
        }
        return self._with(made)

    def sketches(self, by: By = "tensor", *, across: Group | None = None) -> Sketches:
        """The sketches of all tensors, as they are now, by the kernels of the agent.

        Args:
            by: a row for each tensor, for all (`whole`), or for those that a function of their
                names calls alike.
            across: a process group whose ranks all call this, each with what it holds: the result
                is that of the whole tensors. Without it there is no collective, and what is told is
                of this rank's own elements.
        """
        cuts = [place.cut for place in self._places.values()]
        own = Sketches(
            names=tuple(self),
            table=sketch_tensors(
                list(self.values()), [cut.region() if cut else None for cut in cuts]
            ),
            shapes=tuple(tuple(tensor.shape) for tensor in self.values()),
            dtypes=tuple(map(spelt, self.values())),
        )
        if across is not None:
            held = tuple(self._places[name].held(tensor) for name, tensor in self.items())
            own = merged_across(RankPart(sketches=own, held=held), across)
        return own.rows(by, self.kind or "whole")

    def _with(self, arrays: Mapping[str, torch.Tensor]) -> Self:
        return type(self)(arrays, kind=self.kind, places=self._places)

    def _copy(self, array: torch.Tensor) -> torch.Tensor:
        return array.clone()

    def _are_equal(self, mine: torch.Tensor, theirs: Any) -> bool:
        alike = mine.dtype == theirs.dtype and mine.device == theirs.device
        return alike and torch.equal(mine, theirs)

    def _refuse_addends(self, word: str) -> None:
        for name, place in self._places.items():
            if place.is_addend:
                raise SettingError(
                    f"{name} is this rank's addend of a sum that was not made yet, of which "
                    f"`{word}` says nothing; reduce it first, as `tensor.full_tensor()` does."
                )

    def _elements(self, array: torch.Tensor) -> NDArray[Any]:
        tensor = real(array)
        return (tensor.double() if tensor.dtype.itemsize == 8 else tensor.float()).cpu().numpy()

    def _power_sum(self, array: torch.Tensor, p: float, scale: float) -> float:
        sizes = real(array).double().abs() / scale
        return float(torch.where(sizes.isfinite(), sizes, 0.0).pow(p).sum())
