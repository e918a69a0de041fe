"""What the plots ask of the thing they draw: a run, or a LogFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...sketch.errors import SettingError
from ...store.query import Run

if TYPE_CHECKING:
    from ...store.format_table import Scale
    from ...store.views import View
    from ..curves import Curves
    from ..grid import Grid
    from ..life import Life
    from ..series import Lines
    from ..spectrum import Spectrum

Data = Run | pd.DataFrame
"""What can be drawn: an open run, or a frame in the schema of Track & Visualize."""


class TrainingStats(Protocol):
    """Training statistics as Track & Visualize has them; `val_loss` may be there, too."""

    @property
    def steps(self) -> Sequence[int]: ...
    @property
    def train_loss(self) -> Sequence[float | None]: ...


Training = str | pd.Series | pd.DataFrame | TrainingStats
"""A training statistic of a run by name, columns of numbers whose index are steps, or tandv's."""
Many = str | Sequence[str] | None


class Source(Protocol):
    """Prepared data of a run or a frame."""

    name: str

    @property
    def kinds(self) -> list[str]:
        """Of its sites, in the order in which they come."""
        ...

    @property
    def statistics(self) -> list[str]:
        """Those of its tensors, by our names."""
        ...

    def choose(self, *, kind: Many, name: str | None, site: Many) -> list[str]:
        """Labels of sites, in the order of execution.

        Raises:
            SettingError: nothing matches.
        """
        ...

    def dtype(self, site: str) -> str:
        """Of the site's tensor; empty where that is not known."""
        ...

    def last_step(self, site: str) -> int | None:
        """The last step in which the site has a histogram."""
        ...

    def steps_of(self, site: str) -> NDArray[np.int64]:
        """The steps in which the site may have a histogram, ascending."""
        ...

    def grid(
        self,
        statistic: str,
        *,
        sites: Sequence[str],
        view: str,
        scale: str,
        steps: tuple[int, int] | None,
        size: tuple[int, int],
    ) -> Grid:
        """A statistic over these sites and steps, at most width x height cells."""
        ...

    def spectrum(self, site: str, step: int, *, view: View) -> Spectrum | None:
        """The exponents of a site at a step; None where it was not observed."""
        ...

    @property
    def beyond(self) -> tuple[int, int]:
        """The exponents that histograms have, first and last; what is beyond is counted apart."""
        ...

    def life(self, site: str, *, steps: tuple[int, int] | None, width: int) -> Life:
        """The exponents of a site over steps."""
        ...

    def curves(
        self, statistic: str, sites: Sequence[str], *, steps: tuple[int, int] | None, view: View
    ) -> Curves:
        """A statistic of some sites over steps."""
        ...

    def fit(self, site: str, step: int) -> pd.DataFrame | None:
        """How a site would fit all formats, as `Run.formats`; None where it has no histogram."""
        ...

    def fits(
        self,
        sites: Sequence[str],
        *,
        steps: int | tuple[int, int] | None,
        formats: Sequence[str],
        scale: Scale,
        most: tuple[float, float],
    ) -> pd.DataFrame:
        """By site and format what is lost in the worst step, as `Run.format_table`.

        Args:
            sites: labels.
            steps: a step, or first and last.
            formats: names.
            scale: by which power of two tensors are multiplied first.
            most: the shares that may overflow, and underflow, in a tensor that fits.

        Raises:
            SettingError: there is no such format or scale.
        """
        ...

    def worst(
        self, sites: Sequence[str], steps: tuple[int, int], *, statistic: str
    ) -> tuple[str, int]:
        """The site and step to look at in one cell: the first non-finite, else the extreme."""
        ...

    def training(self, name: str) -> Lines:
        """A training statistic.

        Raises:
            SettingError: there is none of that name.
        """
        ...


def one_kind(source: Source, kind: str) -> str:
    """The kind that was asked for; else activations, or what there is first."""
    if kind or not source.kinds:
        return kind
    return "activation" if "activation" in source.kinds else source.kinds[0]


def run_of(data: Data, what: str) -> Run:
    """The run, for what a frame does not hold.

    Raises:
        SettingError: it is a frame.
    """
    if isinstance(data, Run):
        return data
    raise SettingError(f"{what} needs a run: a LogFrame knows of no ranks.")
