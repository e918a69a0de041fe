"""Tensors by name: every statistic of the sketch, and tables of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from ....sketch.errors import SettingError
from ...toolkit.columns import Wanted
from ...toolkit.ranks import RankPart
from ...toolkit.sketches import NORMS, By, Sketches, check_norm
from .arithmetic import TensorArithmetic
from .gathering import Group, merged_across
from .places import Piece, spelt
from .sketching import real, sketch_tensors

if TYPE_CHECKING:
    import pandas as pd


class NamedTensors(TensorArithmetic):
    """Tensors by name, all of one kind.

    Arithmetic with numbers, and with tensors of the same names, makes new tensors, in the dtypes
    that torch gives: `.to(dtype=torch.float32)` first where those are too narrow. Nothing here
    changes a tensor in place. Statistics are of the finite elements, as everywhere in rankscope.

    Args:
        tensors: plain ones. They are held as they are: `snapshot` copies.
        kind: what they are, as `weight`, in the words of README.
        places: how each relates to the whole, where a rank holds a piece of it.
    """

    @classmethod
    def of(cls, pieces: Iterable[Piece], kind: str) -> NamedTensors:
        """Of pieces, which are held as they are."""
        every = list(pieces)
        return cls(
            {name: tensor for name, tensor, _ in every},
            kind=kind,
            places={name: place for name, _, place in every},
        )

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

        For p other than 1, 2 and ∞ it scales by the largest |x|, so that no power overflows.

        Raises:
            SettingError: p is not positive, or is another than 1, 2 and ∞ while `across` is given.
        """
        check_norm(p)
        if across is not None and p not in NORMS:
            raise SettingError(f"Across ranks only the norms 1, 2 and ∞ are known, got {p}.")
        sketches = self.sketches(by, across=across)
        found = sketches.statistic(NORMS.get(p, "abs_max"))
        if p not in NORMS:
            found = self._norms(p, by, found)
        if p == float("inf"):  # undefined as a statistic, but 0 as a norm, where there is nothing
            found = {name: 0.0 if value != value else value for name, value in found.items()}
        return next(iter(found.values())) if by == "whole" else found

    def reduce(
        self, function: Callable[[torch.Tensor], Any], *, by: By = "tensor"
    ) -> dict[str, Any]:
        """By name: what a function makes of a tensor, or of the elements of several as one axis.

        It is given a copy.
        """
        groups: dict[str, list[torch.Tensor]] = {}
        for name, tensor in self.items():
            groups.setdefault(self._group(name, by), []).append(tensor)
        if by == "tensor":
            return {name: function(tensor.clone()) for name, (tensor,) in groups.items()}
        return {
            name: function(torch.cat([tensor.reshape(-1) for tensor in some]))
            for name, some in groups.items()
        }

    def describe(
        self,
        groups: Wanted = "default",
        *,
        by: By = "tensor",
        exclude: Wanted = (),
        reductions: Mapping[str, Callable[[torch.Tensor], Any]] | None = None,
        across: Group | None = None,
    ) -> pd.DataFrame:
        """A table of statistics, indexed by `tensor`.

        Args:
            groups: of columns, as `default`, `all` and `sketch`; or columns and statistics by name.
            by: rows, as of `sketches`.
            exclude: columns to leave out of this table.
            reductions: by column: a function of a tensor that gives a number, see `reduce`.
            across: as of `sketches`.

        Raises:
            SettingError: there is no such column, or reductions are asked for across ranks.
            ImportError: pandas is not installed.
        """
        if reductions and across is not None:
            raise SettingError(
                "Across ranks sketches are merged; `reductions` are not known there."
            )
        found = {
            name: [*self.reduce(function, by=by).values()]
            for name, function in (reductions or {}).items()
        }
        return self.sketches(by, across=across).describe(groups, exclude, found)

    def _group(self, name: str, by: By) -> str:
        if callable(by):
            return by(name)
        return name if by == "tensor" else self.kind or "whole"

    def _norms(self, p: float, by: By, largest: Mapping[str, float]) -> dict[str, float]:
        sums = dict.fromkeys(largest, 0.0)
        for name, tensor in self.items():
            group = self._group(name, by)
            if largest[group] > 0:
                sizes = real(tensor).double().abs() / largest[group]
                sums[group] += float(torch.where(sizes.isfinite(), sizes, 0.0).pow(p).sum())
        return {
            name: largest[name] * total ** (1 / p) if total else 0.0 for name, total in sums.items()
        }
