"""Sketches of named tensors, and every number and table that follows from them.

Framework and device are forgotten here: a table of sketches is NumPy's wherever it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...merge.folding import fold
from ...sketch.derive import derive
from ...sketch.errors import SettingError
from ...sketch.table import SketchTable
from .columns import FACTS, Wanted, column, columns_of
from .extras import imported

if TYPE_CHECKING:
    import pandas as pd

By = Literal["tensor", "whole"] | Callable[[str], str]
"""A row for each tensor; one for all; or one for all tensors that a function of their names calls
alike, as `lambda name: name.rpartition(".")[0]` does those of a module."""

NORMS = {1.0: "l1", 2.0: "l2", np.inf: "abs_max"}
"""By p: the statistic that is the p-norm."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sketches:
    """One sketch a tensor, or one for several that were united."""

    names: tuple[str, ...]
    """Of the rows."""
    table: SketchTable
    """One row each."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of the tensors; empty where rows stand for several."""
    dtypes: tuple[str, ...] = ()
    """Of the tensors, as NumPy and ml_dtypes spell them; empty where rows stand for several."""

    def statistic(self, name: str) -> dict[str, float]:
        """By name: a statistic of `rankscope.sketch.STATISTICS`, of the finite elements.

        Raises:
            SettingError: there is no such statistic; the message lists near names.
        """
        return dict(zip(self.names, derive(self.table, name).tolist(), strict=True))

    def strict_norms(self) -> dict[str, float]:
        """By name: the 2-norm of all elements: NaN where one of them is not finite."""
        norms, nonfinite = (derive(self.table, name) for name in ("l2", "nonfinite"))
        return dict(zip(self.names, np.where(nonfinite > 0, np.nan, norms).tolist(), strict=True))

    def in_order(self, names: Sequence[str]) -> Sketches:
        """The same, those of these names first, in their order."""
        index = {name: row for row, name in enumerate(self.names)}
        rows = [index[name] for name in dict.fromkeys([*names, *self.names]) if name in index]
        return Sketches(
            names=tuple(self.names[row] for row in rows),
            table=self.table.take(rows),
            shapes=tuple(self.shapes[row] for row in rows),
            dtypes=tuple(self.dtypes[row] for row in rows),
        )

    def united(self, by: Callable[[str], str]) -> Sketches:
        """The sketches of the unions of all tensors whose names a function calls alike.

        In the order in which these come first; by the one merge of sketches, as a balanced tree.
        """
        groups: dict[str, list[int]] = {}
        for row, name in enumerate(self.names):
            groups.setdefault(by(name), []).append(row)
        place = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups.values()])
        depth = np.array([at for rows in groups.values() for at in range(len(rows))], np.intp)
        rows = np.array([row for own in groups.values() for row in own], np.intp)
        order = np.lexsort((place, depth))
        table = self.table.take(rows[order])
        with np.errstate(all="ignore"):
            return Sketches(names=tuple(groups), table=fold(table, depth[order], place[order]))

    def rows(self, by: By, whole: str = "whole") -> Sketches:
        """One row a tensor, as they are; one of all, called `whole`; or `united`.

        Raises:
            SettingError: `by` is none of these.
        """
        check_by(by)
        if callable(by):
            return self.united(by)
        if by == "tensor":
            return self
        if not self.names:
            return Sketches(names=(whole,), table=SketchTable.empty(1))
        return self.united(lambda _: whole)

    def describe(
        self,
        groups: Wanted = "default",
        exclude: Wanted = (),
        reductions: Mapping[str, Sequence[float]] | None = None,
    ) -> pd.DataFrame:
        """A table with a row a sketch, indexed by `tensor`, and the columns that are asked for.

        Args:
            groups: groups of columns, columns, or statistics: see `rankscope.agent.toolkit.GROUPS`.
            exclude: groups and columns to leave out of this table.
            reductions: further columns, a number a row.

        Raises:
            SettingError: there is no such group or column.
            ImportError: pandas is not installed.
        """
        pandas = imported("pandas", "A table of statistics")
        facts = {
            "shape": list(self.shapes),
            "dtype": list(self.dtypes),
            "num_params": self.table.counts[:, 0],
        }
        with np.errstate(over="ignore"):
            columns = {
                name: facts[name] if name in facts else column(self.table, name)
                for name in columns_of(groups, exclude)
                if name not in FACTS or len(facts[name]) == len(self.names)
            }
        index = pandas.Index(self.names, name="tensor", dtype="str")
        return pandas.DataFrame({**columns, **(reductions or {})}, index=index)


def check_by(by: By) -> None:
    """Refuse what is no choice of rows.

    Raises:
        SettingError: it is neither `tensor`, nor `whole`, nor a function.
    """
    if not callable(by) and by not in ("tensor", "whole"):
        raise SettingError(
            f"`by` must be 'tensor', 'whole' or a function of a tensor's name, got {by!r}."
        )


def check_norm(p: float) -> None:
    """Refuse what is no norm.

    Raises:
        SettingError: p is not positive.
    """
    if not p > 0:
        raise SettingError(f"`p` must be positive, or infinite for the largest |x|; got {p}.")
