"""Tensors of several kinds in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .columns import Wanted
from .extras import imported
from .named import Group, Named
from .sketches import By

if TYPE_CHECKING:
    import pandas as pd


def of_kinds(
    tensors: Named[Any], groups: Wanted, by: By, across: Group | None = None
) -> pd.DataFrame:
    """A table of statistics, indexed by `kind` and `tensor`.

    Args:
        tensors: under names as `weight:blocks.0.mlp`, with the kind before the name.
        groups: of columns, as of `Named.describe`.
        by: rows of each kind, as of `Named.sketches`.
        across: as of `Named.sketches`.

    Raises:
        SettingError: there is no such column.
        ImportError: pandas is not installed.
    """
    pandas = imported("pandas", "A table of statistics")
    table = tensors.describe(groups, by=_within_kinds(by), across=across)
    labels = [tuple(label.split(":", 1)) for label in table.index]
    table.index = pandas.MultiIndex.from_tuples(labels, names=["kind", "tensor"])
    return table


def _within_kinds(by: By) -> By:
    """The same rows, but of each kind its own."""
    if by == "whole":
        return lambda label: f"{label.partition(':')[0]}:{label.partition(':')[0]}"
    if not callable(by):
        return by

    def group(label: str) -> str:
        kind, _, name = label.partition(":")
        return f"{kind}:{by(name)}"

    return group
