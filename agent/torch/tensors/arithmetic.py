"""Tensors by name, and arithmetic with them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch

from ....sketch.errors import SettingError
from ...selection import Selection
from .places import WHOLE, Place

Number = int | float | torch.Tensor
"""A tensor must have no axis."""
Patterns = str | Sequence[str] | None
"""Regular expressions for `re.search`; None for all."""
Unary = Callable[[torch.Tensor], torch.Tensor]


class TensorArithmetic(Mapping[str, torch.Tensor]):
    """Tensors by name, all of one kind; see `NamedTensors`.

    Arithmetic with numbers, and with tensors of the same names, makes new tensors, in the dtypes
    that torch gives: `.to(dtype=torch.float32)` first where those are too narrow. Nothing here
    changes a tensor in place.

    Args:
        tensors: plain ones. They are held as they are: `snapshot` copies.
        kind: what they are, as `weight`, in the words of README.
        places: how each relates to the whole, where a rank holds a piece of it.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        kind: str = "",
        places: Mapping[str, Place] | None = None,
    ) -> None:
        self._tensors = dict(tensors)
        self._places = {name: (places or {}).get(name, WHOLE) for name in self._tensors}
        self.kind = kind

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __eq__(self, other: object) -> bool:
        """Whether the names are the same, and each tensor: dtype, device, shape and elements."""
        return (
            isinstance(other, TensorArithmetic)
            and self.keys() == other.keys()
            and all(_are_equal(mine, other[name]) for name, mine in self.items())
        )

    __hash__ = None  # type: ignore[assignment]  # holds tensors that may change

    def __repr__(self) -> str:
        size_bytes = sum(tensor.nbytes for tensor in self.values())
        what = f"{len(self)} tensors, {self.numel()} elements, {size_bytes} bytes"
        return f"{type(self).__name__}({self.kind or 'of no kind'}: {what})"

    @property
    def places(self) -> Mapping[str, Place]:
        """By name: how each relates to the whole."""
        return self._places

    def numel(self) -> int:
        """How many elements there are here, of all tensors."""
        return sum(tensor.numel() for tensor in self.values())

    def filter(self, include: Patterns = None, exclude: Patterns = None) -> Self:
        """Those in whose names some of `include`, if given, and none of `exclude` is found.

        Raises:
            SettingError: a pattern is no regular expression.
        """
        selection = Selection.of(include, exclude)
        selection.warn_of_strays(self)
        return self._with({name: self[name] for name in self if selection.chooses(name)})

    def clone(self) -> Self:
        """Copies of all."""
        return self._with({name: tensor.clone() for name, tensor in self.items()})

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """Copies of all, on that device, in that dtype; None leaves it as it is."""
        made = {
            name: tensor.to(device=device, dtype=dtype, copy=True) for name, tensor in self.items()
        }
        return self._with(made)

    def apply(self, function: Unary) -> Self:
        """What a function makes of each; it is given a copy.

        Raises:
            SettingError: it returns something else than a tensor, or a tensor is an addend.
        """
        made = self._each(lambda tensor: function(tensor.clone()), "apply")
        for name, tensor in made.items():
            # Users without a type checker may return anything.
            if not isinstance(tensor, torch.Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise SettingError(
                    f"The function given to `apply` must return a tensor, got {tensor!r} of {name}."
                )
        return made

    def __neg__(self) -> Self:
        return self._each(operator.neg, "-", linear=True)

    def __abs__(self) -> Self:
        return self._each(torch.abs, "abs")

    def abs(self) -> Self:
        """|x| of each element."""
        return abs(self)

    def sqrt(self) -> Self:
        """The square root of each element; of negative ones NaN."""
        return self._each(torch.sqrt, "sqrt")

    def sign(self) -> Self:
        """-1, 0 or 1 for each element."""
        return self._each(torch.sign, "sign")

    def clip(self, min: float | None = None, max: float | None = None) -> Self:
        """Each element, but at least `min` and at most `max`."""
        return self._each(lambda tensor: torch.clamp(tensor, min, max), "clip")

    def zeros_like(self) -> Self:
        """Zeros of the same names and shapes."""
        return self._each(torch.zeros_like, "zeros_like", linear=True)

    def ones_like(self) -> Self:
        """Ones of the same names and shapes."""
        return self._each(torch.ones_like, "ones_like")

    def __add__(self, other: Mapping[str, Number] | Number) -> Self:
        return self._combine(other, operator.add, "+", linear=isinstance(other, TensorArithmetic))

    def __sub__(self, other: Mapping[str, Number] | Number) -> Self:
        return self._combine(other, operator.sub, "-", linear=isinstance(other, TensorArithmetic))

    def __mul__(self, other: Mapping[str, Number] | Number) -> Self:
        return self._combine(
            other, operator.mul, "*", linear=not isinstance(other, TensorArithmetic)
        )

    def __truediv__(self, other: Mapping[str, Number] | Number) -> Self:
        linear = not isinstance(other, TensorArithmetic)
        return self._combine(other, operator.truediv, "/", linear=linear)

    def __pow__(self, other: Mapping[str, Number] | Number) -> Self:
        return self._combine(other, operator.pow, "**")

    def __radd__(self, other: Mapping[str, Number] | Number) -> Self:
        return self + other

    def __rsub__(self, other: Mapping[str, Number] | Number) -> Self:
        return self._combine(
            other,
            lambda mine, theirs: theirs - mine,
            "-",
            linear=isinstance(other, TensorArithmetic),
        )

    def __rmul__(self, other: Mapping[str, Number] | Number) -> Self:
        return self * other

    def __rtruediv__(self, other: Mapping[str, Number] | Number) -> Self:
        return self._combine(other, lambda mine, theirs: theirs / mine, "/")

    def __rpow__(self, other: Mapping[str, Number] | Number) -> Self:
        return self._combine(other, lambda mine, theirs: theirs**mine, "**")

    def _with(self, tensors: Mapping[str, torch.Tensor]) -> Self:
        return type(self)(tensors, kind=self.kind, places=self._places)

    def _each(self, function: Unary, word: str, *, linear: bool = False) -> Self:
        if not linear:
            self._refuse_addends(word)
        return self._with({name: function(tensor) for name, tensor in self.items()})

    def _combine(
        self,
        other: Mapping[str, Number] | Number,
        function: Callable[[Any, Any], torch.Tensor],
        word: str,
        *,
        linear: bool = False,
    ) -> Self:
        if not linear:
            self._refuse_addends(word)
        if isinstance(other, TensorArithmetic) and not linear:
            other._refuse_addends(word)
        theirs = self._matched(other, word)
        made = self._with({name: function(self[name], theirs[name]) for name in self})
        if isinstance(other, TensorArithmetic) and other.kind != self.kind:
            made.kind = ""
        return made

    def _matched(self, other: Mapping[str, Number] | Number, word: str) -> Mapping[str, Number]:
        """What goes with each tensor."""
        if not isinstance(other, Mapping):
            if isinstance(other, torch.Tensor) and other.dim():
                raise SettingError(
                    f"`{word}` takes a number or named tensors, got a tensor of shape "
                    f"{tuple(other.shape)}; `apply` takes any function."
                )
            return dict.fromkeys(self, other)
        if self.keys() != other.keys():
            ours, theirs = (
                [name for name in one if name not in two]
                for one, two in ((self, other), (other, self))
            )
            raise SettingError(
                f"`{word}` takes tensors of the same names. Only the left side has "
                f"{_listed(ours)}; only the right side has {_listed(theirs)}. `filter` leaves out."
            )
        return other

    def _refuse_addends(self, word: str) -> None:
        for name, place in self._places.items():
            if place.is_addend:
                raise SettingError(
                    f"{name} is this rank's addend of a sum that was not made yet, of which "
                    f"`{word}` says nothing; reduce it first, as `tensor.full_tensor()` does."
                )


def _are_equal(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    alike = mine.dtype == theirs.dtype and mine.device == theirs.device
    return alike and torch.equal(mine, theirs)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(names[:5]) or "nothing") + more
