"""The columns of a table of statistics, in groups, under the names that nnstat gave them.

Whatever they are called, the statistics are those of `sketch.derive`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType

from ...sketch.derive import STATISTICS, derive
from ...sketch.errors import SettingError
from ...sketch.table import Floats, SketchTable

NNSTAT: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "num_params": ("count", 1),
        "L1_norm": ("l1", 1),
        "L2_norm": ("l2", 1),
        "L2_squared": ("l2", 2),
        "max": ("max", 1),
        "min": ("min", 1),
        "abs_mean": ("mean_abs", 1),
        "abs_max": ("abs_max", 1),
        "abs_min": ("abs_min", 1),
        "mean": ("mean", 1),
        "variance": ("var", 1),
        "std": ("std", 1),
        "skew": ("skewness", 1),
        "kurtosis": ("kurtosis", 1),
        "sq_mean": ("rms", 2),
        "sq_mean_std": ("rms", 1),
    }
)
"""nnstat's columns: the statistic that each is, and the power that it is raised to."""

FACTS = ("shape", "dtype")
"""Columns that are no statistics; only tables with one row a tensor have them."""

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "default": ("shape", "L1_norm", "L2_squared", "mean", "variance", "skew", "kurtosis"),
        "all": ("shape", *NNSTAT),
        "sketch": ("shape", "dtype", *STATISTICS),
    }
)
"""Groups of columns. No call changes them: what is left out is left out of that call's table."""

Wanted = str | Sequence[str]
"""Groups, columns of nnstat's, and statistics by their own names: one, or several."""


def columns_of(groups: Wanted, exclude: Wanted = ()) -> list[str]:
    """The columns that are asked for, each once, in order.

    Raises:
        SettingError: there is no such group or column; the message lists near names.
    """
    left_out = set(_unfolded(exclude))
    return [name for name in dict.fromkeys(_unfolded(groups)) if name not in left_out]


def column(table: SketchTable, name: str) -> Floats:
    """float64 [rows]: the column of that name, nnstat's or a statistic of `sketch.derive`."""
    statistic, power = NNSTAT.get(name, (name, 1))
    return derive(table, statistic) ** power


def _unfolded(wanted: Wanted) -> list[str]:
    names = list[str]()
    for name in [wanted] if isinstance(wanted, str) else wanted:
        names += GROUPS.get(name, (name,))
        _check(names[-1], {*NNSTAT, *STATISTICS, *FACTS})
    return names


def _check(name: str, known: Collection[str]) -> None:
    if name not in known:
        every = [*GROUPS, *sorted(known)]
        near = get_close_matches(name, every, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(every)}."
        raise SettingError(f"There is no column or group {name!r}; {hint}")
