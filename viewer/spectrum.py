"""One site at one step as data: its histogram of exponents, and how it would fit the formats."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..sketch.distribution import SPREAD
from ..sketch.errors import SettingError
from ..sketch.formats import FORMATS, NumberFormat, number_format
from . import words

if TYPE_CHECKING:
    import pandas as pd

    from ..store.query import Run
    from ..store.views import View

ASIDE: tuple[str, ...] = ("zero", "under", "over", "neg_inf", "pos_inf", "nan")
"""What has no bin, in the order in which it is drawn."""
ASIDE_NAMES = ("zero", "below", "above", "−∞", "+∞", "NaN")
NOT_FINITE = ("neg_inf", "pos_inf", "nan")
SIGMA = 0.7
"""Binary exponents that a smooth line blurs by."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spectrum:
    """The elements of one site at one step, counted by their exponent."""

    site: str
    step: int
    exponents: NDArray[np.int64]
    """int64 [bins]: from the first to the last bin that holds anything."""
    counts: NDArray[np.int64]
    """int64 [bins]: elements with 2^e <= |x| < 2^(e+1)."""
    aside: dict[str, int]
    """Elements without a bin, by `ASIDE`."""
    total: int
    unseen: int = 0
    """Elements that a sample left out, or of which a LogFrame does not tell."""
    is_imported: bool = False
    """Whether the run was made of a LogFrame."""
    view: View = "merged"
    """The ranks that they are of."""

    @property
    def casts(self) -> bool:
        """Whether any element is finite and not zero, so that a format could lose it."""
        return bool(self.counts.any()) or any(self.aside[name] for name in ("under", "over"))

    @property
    def shares(self) -> NDArray[np.float64]:
        """float64 [bins]: parts of all elements."""
        return self.counts / max(self.total, 1)


def load_seen(run: Run, *, site: str, step: int, view: View) -> Spectrum | None:
    """The histogram in that view where there are exact columns of it, else of all ranks."""
    return load_all_seen(run, sites=[site], step=step, view=view)[site]


def load_all_seen(
    run: Run, *, sites: Sequence[str], step: int, view: View
) -> dict[str, Spectrum | None]:
    """The same of several sites; None where one was not observed."""
    if view not in SPREAD:
        with suppress(SettingError):
            return load_spectra(run, sites=sites, step=step, view=view)
    return load_spectra(run, sites=sites, step=step)


def load_spectrum(run: Run, *, site: str, step: int, view: View = "merged") -> Spectrum | None:
    """The histogram of a site at a step; None where it was not observed.

    Raises:
        SettingError: there are no exact columns of the view.
    """
    return load_spectra(run, sites=[site], step=step, view=view)[site]


def load_spectra(
    run: Run, *, sites: Sequence[str], step: int, view: View = "merged"
) -> dict[str, Spectrum | None]:
    """The histogram of each site at a step; None where it was not observed.

    Raises:
        SettingError: there are no exact columns of the view.
    """
    found = run.exponents(sites=list(sites), steps=slice(step, step), view=view)
    if found.sizes["step"] == 0:
        return dict.fromkeys(sites)
    table = found.isel(step=-1)
    exponents = np.asarray(table["exponent"].values, np.int64)
    counts = np.asarray(table["count"].transpose("site", "exponent").values, np.int64)
    names = (*ASIDE, "observed", "total", "unseen")
    columns = {name: table[name].values.tolist() for name in names}
    spectra: dict[str, Spectrum | None] = dict.fromkeys(sites)
    for place, site in enumerate(sites):
        if not columns["observed"][place]:
            continue
        held = np.flatnonzero(counts[place])
        span = slice(held[0], held[-1] + 1) if held.size else slice(0, 0)
        spectra[site] = Spectrum(
            site=site,
            step=step,
            exponents=exponents[span],
            counts=counts[place, span],
            aside={name: int(columns[name][place]) for name in ASIDE},
            total=int(columns["total"][place]),
            unseen=int(columns["unseen"][place]),
            is_imported=run.is_imported,
            view=view,
        )
    return spectra


def outline(
    spectrum: Spectrum, *, smooth: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The histogram as a line: exponents, and how many elements are there; 0 at both ends.

    A smooth one has the same area: each bin becomes a bell of `SIGMA`.
    """
    if not spectrum.exponents.size:
        return np.empty(0), np.empty(0)
    centres = np.arange(spectrum.exponents[0] - 1, spectrum.exponents[-1] + 2) + 0.5
    heights = np.concatenate([[0], spectrum.counts, [0]]).astype(np.float64)
    if not smooth:
        return centres, heights
    x = np.arange(centres[0] - 2, centres[-1] + 2 + 1e-9, 0.125)
    bells = np.exp(-0.5 * ((x[:, None] - centres[None, :]) / SIGMA) ** 2)
    return x, bells @ heights / (SIGMA * np.sqrt(2 * np.pi))


def infinite(spectrum: Spectrum, *, own: str) -> str:
    """What to know of infinities beside what formats would lose; empty where there is none."""
    count = spectrum.aside["pos_inf"] + spectrum.aside["neg_inf"]
    if not count:
        return ""
    share = words.share(count / spectrum.total)
    return (
        f"{share} of the elements are infinite already, as where {own} overflowed before: "
        "the table is of the others."
    )


def site_format(dtype: str) -> NumberFormat:
    """The format of a site's own dtype; float32 where that is no floating-point format we know."""
    return number_format(dtype if dtype in FORMATS else "float32")


def zones(spectrum: Spectrum, target: NumberFormat) -> list[str]:
    """For each bin where it falls in a format: `normal`, `overflow`, `subnormal` or `flushed`."""
    low = np.ldexp(1.0, spectrum.exponents)
    zone = np.full(len(low), "normal", object)
    zone[low < target.smallest_normal] = "subnormal"
    zone[low < target.smallest_subnormal / 2] = "flushed"
    zone[low > target.max] = "overflow"
    return [str(name) for name in zone]


def load_fit(run: Run, *, site: str, step: int, view: View = "merged") -> pd.DataFrame | None:
    """How the site would fit each format; None where it was not observed."""
    try:
        return run.formats(site=site, step=step, formats=FORMATS, view=view)
    except SettingError:
        return None


def load_block_fit(run: Run, *, site: str, step: int) -> pd.DataFrame | None:
    """How the site would fit formats with a scale by block; None where no blocks were counted."""
    try:
        return run.block_formats(site=site, step=step)
    except SettingError:
        return None


def describe(spectrum: Spectrum, target: NumberFormat) -> str:
    """The histogram in one sentence, for those who do not see it."""
    text = f"{words.count(spectrum.total, 'element')}"
    if spectrum.view != "merged":
        text += f" of {words.view_name(str(spectrum.view))}"
    if spectrum.unseen:
        every = words.thousands(spectrum.total + spectrum.unseen)
        if spectrum.is_imported:
            text += f" of {every}, of the others the LogFrame does not tell enough. They lie"
        else:
            text = f"A sample of {text} of {every}: extremes are bounds, sums estimates. They lie"
    if spectrum.counts.size:
        low, high = int(spectrum.exponents[0]), int(spectrum.exponents[-1]) + 1
        text += f" between {words.power(low)} and {words.power(high)}"
        text += f", most near {words.power(int(spectrum.exponents[spectrum.counts.argmax()]))}"
    names = dict(zip(ASIDE, ASIDE_NAMES, strict=True))
    aside = [f"{words.thousands(n)} {names[name]}" for name, n in spectrum.aside.items() if n]
    if aside:
        text += "; aside: " + ", ".join(aside)
    reach = f"{words.as_power(target.smallest_subnormal)} to {words.as_power(target.max)}"
    return f"{text}. {target.name} holds {reach}."
