"""Tensors by name: every statistic of the sketch, and tables of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from ...sketch.errors import SettingError
from .arithmetic import Array, NamedArithmetic
from .columns import Wanted
from .plots import Arrays
from .sketches import NORMS, By, Sketches, check_by, check_norm

if TYPE_CHECKING:
    import pandas as pd


Group = Any
"""A torch ProcessGroup, or a `jax.sharding.Mesh`."""


class Named(NamedArithmetic[Array]):
    """Tensors by name, all of one kind: every statistic of the sketch, and tables of them.

    Arithmetic with numbers, and with tensors of the same names, makes new tensors, in the dtypes
    that the framework gives: convert them first where those are too narrow. Nothing here changes a
    tensor in place. Statistics are of the finite elements, as everywhere in rankscope.
    """

    @abstractmethod
    def sketches(self, by: By = "tensor", *, across: Group | None = None) -> Sketches:
        """The sketches of all tensors, as they are now, by the kernels of the agent."""

    @abstractmethod
    def _elements(self, array: Array) -> NDArray[Any]:
        """The elements on the host, of the shape of the array, in float32 or float64."""

    def numpy(self, *, by: By = "tensor") -> Arrays:
        """By name: the elements on the host, as float32 or float64; of complex numbers the parts.

        Args:
            by: an array for each tensor, in its shape, or for several as one axis.

        Raises:
            SettingError: `by` is none of these.
        """
        return {
            name: self._elements(some[0])
            if by == "tensor"
            else np.concatenate([self._elements(one).reshape(-1) for one in some])
            for name, some in self._groups(by).items()
        }

    @overload
    def statistic(
        self, name: str, *, by: Literal["whole"] = "whole", across: Group | None = None
    ) -> float: ...
    @overload
    def statistic(
        self,
        name: str,
        *,
        by: Literal["tensor"] | Callable[[str], str],
        across: Group | None = None,
    ) -> dict[str, float]: ...
    def statistic(
        self, name: str, *, by: By = "whole", across: Group | None = None
    ) -> float | dict[str, float]:
        """A statistic of `rankscope.sketch.STATISTICS`: a number, or by name; see `sketches`.

        Raises:
            SettingError: there is no such statistic; the message lists near names.
        """
        found = self.sketches(by, across=across).statistic(name)
        return next(iter(found.values())) if by == "whole" else found

    @overload
    def norm(
        self, p: float = 2.0, *, by: Literal["whole"] = "whole", across: Group | None = None
    ) -> float: ...
    @overload
    def norm(
        self,
        p: float = 2.0,
        *,
        by: Literal["tensor"] | Callable[[str], str],
        across: Group | None = None,
    ) -> dict[str, float]: ...
    def norm(
        self, p: float = 2.0, *, by: By = "whole", across: Group | None = None
    ) -> float | dict[str, float]:
        """(Σ|x|^p)^(1/p) in float64; for p = ∞ the largest |x|. See `sketches`.

        For p other than 1, 2 and ∞ it scales by the largest |x|, so that no power overflows. NaN
        where there are elements, and none is finite.

        Raises:
            SettingError: p is not positive, or is another than 1, 2 and ∞ while `across` is given.
        """
        check_norm(p)
        if across is not None and p not in NORMS:
            raise SettingError(f"Across ranks only the norms 1, 2 and ∞ are known, got {p}.")
        sketches = self.sketches(by, across=across)
        found, count = sketches.statistic(NORMS.get(p, "abs_max")), sketches.statistic("count")
        # The largest |x| of nothing is undefined as a statistic, but 0 as a norm.
        found = {name: value if count[name] else 0.0 for name, value in found.items()}
        if p not in NORMS:
            found = self._norms(p, by, found)
        return next(iter(found.values())) if by == "whole" else found

    def reduce(self, function: Callable[[Array], Any], *, by: By = "tensor") -> dict[str, Any]:
        """By name: what a function makes of a tensor, or of the elements of several as one axis.

        It is given a copy. Of no tensors it makes nothing.

        Raises:
            SettingError: `by` is neither `tensor`, nor `whole`, nor a function.
        """
        groups = self._groups(by)
        if by == "tensor":
            return {name: function(self._copy(array)) for name, (array,) in groups.items()}
        library: Any = self._library
        return {
            name: function(library.concat([library.reshape(one, (-1,)) for one in some]))
            for name, some in groups.items()
        }

    def describe(
        self,
        groups: Wanted = "default",
        *,
        by: By = "tensor",
        exclude: Wanted = (),
        reductions: Mapping[str, Callable[[Array], Any]] | None = None,
        across: Group | None = None,
    ) -> pd.DataFrame:
        """A table of statistics, indexed by `tensor`.

        Args:
            groups: of columns, as `default`, `all` and `sketch`; or columns and statistics by name.
            by: rows, as of `sketches`.
            exclude: columns to leave out of this table.
            reductions: by column: a function of a tensor that gives a number, see `reduce`; NaN in
                the row of no tensors.
            across: as of `sketches`.

        Raises:
            SettingError: there is no such column, or reductions are asked for across ranks.
            ImportError: pandas is not installed.
        """
        if reductions and across is not None:
            raise SettingError(
                "Across ranks sketches are merged; `reductions` are not known there."
            )
        sketches, found = self.sketches(by, across=across), dict[str, list[Any]]()
        for name, function in (reductions or {}).items():
            made = self.reduce(function, by=by)
            found[name] = [made.get(row, np.nan) for row in sketches.names]
        return sketches.describe(groups, exclude, found)

    def _group(self, name: str, by: By) -> str:
        if callable(by):
            return by(name)
        return name if by == "tensor" else self.kind or "whole"

    def _groups(self, by: By) -> dict[str, list[Array]]:
        check_by(by)
        groups: dict[str, list[Array]] = {}
        for name, array in self.items():
            groups.setdefault(self._group(name, by), []).append(array)
        return groups

    def _norms(self, p: float, by: By, largest: Mapping[str, float]) -> dict[str, float]:
        sums = dict.fromkeys(largest, 0.0)
        for name, array in self.items():
            group = self._group(name, by)
            if largest[group] > 0:
                sums[group] += self._power_sum(array, p, largest[group])
        return {name: largest[name] * total ** (1 / p) for name, total in sums.items()}

    @abstractmethod
    def _power_sum(self, array: Array, p: float, scale: float) -> float:
        """Σ|x / scale|^p of the finite elements, in float64."""
