"""What plots ask, answered by a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...sketch.derive import MAIN
from ...sketch.errors import SettingError
from ...sketch.table import FIRST_EXPONENT, LAST_EXPONENT
from ...store.selection import choose_sites
from .. import curves, grid, life, series, spectrum

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from ...store.format_table import Scale
    from ...store.query import Run
    from ...store.views import View
    from .source import Many

TRIES = 8
"""Steps that are looked at for one with a histogram, from the last one back."""


class RunSource:
    """A run as a `Source`."""

    beyond = (FIRST_EXPONENT, LAST_EXPONENT)

    def __init__(self, run: Run) -> None:
        self.run = run
        self.name = run.name
        self._sites = {one.label: one for one in run.site_infos}

    @property
    def kinds(self) -> list[str]:
        """Of its sites, in the order of execution."""
        return list(dict.fromkeys(self.run.sites()["kind"]))

    @property
    def statistics(self) -> list[str]:
        """Those that the store keeps ready."""
        return list(MAIN)

    def choose(self, *, kind: Many, name: str | None, site: Many) -> list[str]:
        """Labels of sites, in the order of execution."""
        known = self.run.site_infos
        return [known[at].label for at in choose_sites(known, kind=kind, name=name, sites=site)]

    def dtype(self, site: str) -> str:
        """Of the site's tensor."""
        return self._sites[site].dtype

    def last_step(self, site: str) -> int | None:
        """The last step in which the site has a histogram."""
        for step in self.steps_of(site)[: -TRIES - 1 : -1].tolist():
            if self.spectrum(site, step, view="merged") is not None:
                return step
        return None

    def steps_of(self, site: str) -> NDArray[np.int64]:
        """The steps in which the site may have a histogram, ascending."""
        scalar = self.run.scalar("rms", sites=[site])
        wrong = self.run.scalar("nonfinite", sites=[site])
        seen = scalar["step"].values[~np.isnan(scalar.values[:, 0])]
        return np.union1d(seen, wrong["step"].values[wrong.values[:, 0] > 0])

    def grid(
        self,
        statistic: str,
        *,
        sites: Sequence[str],
        view: str,
        scale: str,
        steps: tuple[int, int] | None,
        size: tuple[int, int],
    ) -> grid.Grid:
        """A statistic over sites and steps."""
        return grid.load_grid(
            self.run,
            statistic=statistic,
            rows=[[site] for site in sites],
            view=view,
            scale=scale,
            steps=steps,
            width=size[0],
            height=size[1],
        )

    def spectrum(self, site: str, step: int, *, view: View) -> spectrum.Spectrum | None:
        """The exponents of a site at a step; None where it was not observed."""
        return spectrum.load_spectrum(self.run, site=site, step=step, view=view)

    def life(self, site: str, *, steps: tuple[int, int] | None, width: int) -> life.Life:
        """The exponents of a site over steps."""
        recorded = grid.recorded_steps(self.run.records(), "rms")
        found = life.load_life(self.run, site=site, recorded=recorded, steps=steps, width=width)
        if found is None:
            raise SettingError(f"{site} has no exponents in these steps; see run.records().")
        return found

    def curves(
        self, statistic: str, sites: Sequence[str], *, steps: tuple[int, int] | None, view: View
    ) -> curves.Curves:
        """A statistic of some sites over steps."""
        return curves.load_curves(self.run, statistic, sites=sites, steps=_span(steps), view=view)

    def fit(self, site: str, step: int) -> pd.DataFrame | None:
        """How a site would fit all formats; None where it has no histogram."""
        return spectrum.load_fit(self.run, site=site, step=step)

    def fits(
        self,
        sites: Sequence[str],
        *,
        steps: int | tuple[int, int] | None,
        formats: Sequence[str],
        scale: Scale,
        most: tuple[float, float],
    ) -> pd.DataFrame:
        """By site and format what is lost in the worst step."""
        found = self.run.format_table(
            steps,
            sites=list(sites),
            formats=formats,
            scale=scale,
            most_overflow=most[0],
            most_underflow=most[1],
        )
        names = [name for name in found.data_vars if found[name].dims == ("site", "format")]
        return found[names].to_dataframe().reindex(columns=names)

    def worst(
        self, sites: Sequence[str], steps: tuple[int, int], *, statistic: str
    ) -> tuple[str, int]:
        """The site and step to look at in one cell."""
        first, last = steps
        return grid.worst_of(
            self.run, sites=sites, first=first, last=last, statistic=statistic, view="merged"
        )

    def training(self, name: str) -> series.Lines:
        """A training statistic of the run."""
        found = self.run.training()
        names = series.training_names(found)
        if name not in names:
            there = ", ".join(names) or "none yet"
            raise SettingError(f"There is no training statistic {name!r}; there are: {there}.")
        return series.load_training(self.run, name, found)


def _span(steps: tuple[int, int] | None) -> slice | None:
    return None if steps is None else slice(*steps)
