"""Arrays by name, and arithmetic with them, whatever framework they are of."""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from ...sketch.errors import SettingError
from ..selection import Selection

Array = TypeVar("Array")
"""A `torch.Tensor` or a `jax.Array`."""
Operand = Mapping[str, Array | float] | Array | float | np.number[Any]
"""A number, also NumPy's, an array without axes, or one of these for each name."""
Patterns = str | Sequence[str] | None
"""Regular expressions for `re.search`; None for all."""


class NamedArithmetic(Mapping[str, Array], Generic[Array]):
    """Arrays by name, all of one kind; see `Named`.

    Args:
        arrays: they are held as they are.
        kind: what they are, as `weight`, in the words of README.
    """

    _library: ClassVar[Any]
    """`torch` or `jax.numpy`: both have the names of the array API standard."""
    _array_type: ClassVar[type]

    __array_ufunc__ = None
    """With a number of NumPy's on the left Python asks `__rmul__` and the like, not NumPy."""

    def __init__(self, arrays: Mapping[str, Array], kind: str) -> None:
        self._arrays = dict(arrays)
        self.kind = kind

    def __getitem__(self, name: str) -> Array:
        """The array of that name; a KeyError lists near ones."""
        if name not in self._arrays:
            near = get_close_matches(name, self._arrays, n=3, cutoff=0.5)
            hint = f"did you mean {', '.join(near)}?" if near else f"there is {_listed([*self])}."
            raise KeyError(f"There is no tensor {name!r}; {hint}")
        return self._arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __eq__(self, other: object) -> bool:
        """Whether the names are the same, and each array: dtype, device, shape and elements."""
        return (
            isinstance(other, NamedArithmetic)
            and self.keys() == other.keys()
            and all(self._are_equal(mine, other[name]) for name, mine in self.items())
        )

    __hash__ = None  # type: ignore[assignment]  # holds tensors that may change

    def __repr__(self) -> str:
        size_bytes = sum(array.nbytes for array in self._anyhow().values())
        what = f"{len(self)} tensors, {self.numel()} elements, {size_bytes} bytes"
        return f"{type(self).__name__}({self.kind or 'of no kind'}: {what})"

    def numel(self) -> int:
        """How many elements there are here, of all tensors."""
        return sum(math.prod(array.shape) for array in self._anyhow().values())

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
        return self._with({name: self._copy(array) for name, array in self.items()})

    def apply(self, function: Callable[[Array], Array]) -> Self:
        """What a function makes of each; it is given a copy.

        Raises:
            SettingError: it returns something else than a tensor, or a tensor is an addend.
        """
        made = self._each(lambda array: function(self._copy(array)), "apply")
        for name, array in made.items():
            if not isinstance(array, self._array_type):
                raise SettingError(
                    f"The function given to `apply` must return a tensor, got {array!r} of {name}."
                )
        return made

    def __neg__(self) -> Self:
        return self._each(operator.neg, "-", linear=True)

    def __abs__(self) -> Self:
        return self._each(self._library.abs, "abs")

    def abs(self) -> Self:
        """|x| of each element."""
        return abs(self)

    def sqrt(self) -> Self:
        """The square root of each element; of negative ones NaN."""
        return self._each(self._library.sqrt, "sqrt")

    def sign(self) -> Self:
        """-1, 0 or 1 for each element."""
        return self._each(self._library.sign, "sign")

    def clip(self, min: float | None = None, max: float | None = None) -> Self:
        """Each element, but at least `min` and at most `max`."""
        return self._each(lambda array: self._library.clip(array, min, max), "clip")

    def zeros_like(self) -> Self:
        """Zeros of the same names and shapes."""
        return self._each(self._library.zeros_like, "zeros_like", linear=True)

    def ones_like(self) -> Self:
        """Ones of the same names and shapes."""
        return self._each(self._library.ones_like, "ones_like")

    def __add__(self, other: Operand[Array]) -> Self:
        return self._combine(other, operator.add, "+", linear=isinstance(other, NamedArithmetic))

    def __sub__(self, other: Operand[Array]) -> Self:
        return self._combine(other, operator.sub, "-", linear=isinstance(other, NamedArithmetic))

    def __mul__(self, other: Operand[Array]) -> Self:
        return self._combine(
            other, operator.mul, "*", linear=not isinstance(other, NamedArithmetic)
        )

    def __truediv__(self, other: Operand[Array]) -> Self:
        linear = not isinstance(other, NamedArithmetic)
        return self._combine(other, operator.truediv, "/", linear=linear)

    def __pow__(self, other: Operand[Array]) -> Self:
        return self._combine(other, operator.pow, "**")

    def __radd__(self, other: Operand[Array]) -> Self:
        return self + other

    def __rsub__(self, other: Operand[Array]) -> Self:
        return self._combine(
            other,
            lambda mine, theirs: theirs - mine,
            "-",
            linear=isinstance(other, NamedArithmetic),
        )

    def __rmul__(self, other: Operand[Array]) -> Self:
        return self * other

    def __rtruediv__(self, other: Operand[Array]) -> Self:
        return self._combine(other, lambda mine, theirs: theirs / mine, "/")

    def __rpow__(self, other: Operand[Array]) -> Self:
        return self._combine(other, lambda mine, theirs: theirs**mine, "**")

    @abstractmethod
    def _with(self, arrays: Mapping[str, Array]) -> Self:
        """Others in the place of these."""

    @abstractmethod
    def _copy(self, array: Array) -> Array: ...

    @abstractmethod
    def _are_equal(self, mine: Array, theirs: Any) -> bool: ...

    def _refuse_addends(self, word: str) -> None:
        """Raise SettingError where something here is an addend, of which `word` says nothing."""

    def _anyhow(self) -> Mapping[str, Any]:
        """The arrays, for what both frameworks spell alike."""
        return self._arrays

    def _each(self, function: Callable[[Any], Any], word: str, *, linear: bool = False) -> Self:
        if not linear:
            self._refuse_addends(word)
        return self._with({name: function(array) for name, array in self.items()})

    def _combine(
        self,
        other: Operand[Array],
        function: Callable[[Any, Any], Any],
        word: str,
        *,
        linear: bool = False,
    ) -> Self:
        if not linear:
            self._refuse_addends(word)
        if isinstance(other, NamedArithmetic) and not linear:
            other._refuse_addends(word)
        theirs = self._matched(other, word)
        for name in self:
            _check_shapes(name, self[name], theirs[name], word)
        made = self._with({name: function(self[name], theirs[name]) for name in self})
        if isinstance(other, NamedArithmetic) and other.kind != self.kind:
            made.kind = ""
        return made

    def _matched(self, other: Any, word: str) -> Mapping[str, Any]:
        """What goes with each array."""
        parts = other.values() if isinstance(other, Mapping) else [other]
        if any(isinstance(part, Mapping | list | tuple) for part in parts):
            raise SettingError(
                f"`{word}` takes a number or named tensors, got a tree that is a "
                f"{type(other).__name__}; name its tensors first, by `snapshot`, `weights` or "
                "`gradients`."
            )
        if not isinstance(other, Mapping):
            if isinstance(other, self._array_type | np.ndarray) and other.ndim:
                raise SettingError(
                    f"`{word}` takes a number or named tensors, got a tensor of shape "
                    f"{tuple(other.shape)}; `apply` takes any function."
                )
            # Of an array without axes the number: torch and NumPy do not agree about arrays.
            return dict.fromkeys(self, other[()] if isinstance(other, np.ndarray) else other)
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


def _check_shapes(name: str, mine: Any, theirs: Any, word: str) -> None:
    """Refuse arrays that do not go together.

    Raises:
        SettingError: their shapes are neither the same, nor is one repeated along axes of length 1.
    """
    left, right = (tuple(getattr(one, "shape", ())) for one in (mine, theirs))
    try:
        np.broadcast_shapes(left, right)
    except ValueError:
        raise SettingError(
            f"`{word}` takes tensors of the same shapes, got {left} and {right} of {name}; leave "
            "it out by `filter`, or convert it by `apply`."
        ) from None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(names[:5]) or "nothing") + more
