"""The tables of a page's plots: made when they are asked for, up to date while they are open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import pandas as pd
import param

from .. import twins


class Twin(NamedTuple):
    """The table of a plot."""

    caption: str
    frame: Callable[[], pd.DataFrame]


class Told(param.Parameterized):
    """The tables that are open."""

    html = param.Dict({}, doc="By the plot's name.")


class Twins:
    """By the name of a plot its table, folded until it is asked for."""

    def __init__(self, tables: Mapping[str, Twin]) -> None:
        self.tables, self.told = tables, Told()

    def toggle(self, name: str) -> None:
        """Open a table, or fold it."""
        shown = dict(self.told.html)
        if name in shown:
            shown.pop(name)
        elif name in self.tables:
            shown[name] = ""
        self.told.html = shown
        self.show()

    def show(self) -> None:
        """Bring the tables that are open up to date."""
        self.told.html = {
            name: twins.html(self.tables[name].frame(), self.tables[name].caption)
            for name in self.told.html
        }

    def csv(self, name: str) -> str:
        """A table as a file; empty for one that there is not."""
        return self.tables[name].frame().to_csv() if name in self.tables else ""


@runtime_checkable
class WithTwins(Protocol):
    """A page whose plots have tables."""

    twins: Twins
