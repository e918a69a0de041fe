"""The page's figures as HoloViews objects, for notebooks and papers; the same prepared data.

The only file that imports HoloViews. Call `hv.extension("bokeh")` (or "matplotlib") first, as for
any HoloViews plot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import holoviews as hv
import numpy as np

from ..sketch.errors import SettingError
from ..sketch.formats import number_format
from . import grid, series, spectrum, words

if TYPE_CHECKING:
    from ..store.query import Run
    from ..store.views import View

WIDTH, HEIGHT = 1000, 500
"""Cells that a heatmap has at most, unless asked otherwise."""


def heatmap(
    run: Run,
    *,
    kind: str = "activation",
    statistic: str = "rms",
    view: str = "merged",
    name: str = "",
    scale: str = "",
    steps: tuple[int, int] | None = None,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> hv.Overlay:
    """A statistic over steps and sites: its shades, and a second image of what is not finite.

    Args:
        run: an open run.
        kind: which kind of site.
        statistic: which statistic.
        view: `merged`, `max`, `min`, `argmax`, `argmin` over ranks, or a rank.
        name: a regular expression that names must match.
        scale: `log2` or `linear`; empty chooses by statistic.
        steps: first and last step; all by default.
        width: columns at most; of several steps in one the worst is kept.
        height: rows at most; of several sites in one the worst is kept.
    """
    found = grid.load_grid(
        run,
        statistic=statistic,
        kind=kind,
        pattern=name,
        view=view,
        scale=scale,
        steps=steps,
        width=width,
        height=height,
    )
    rows = len(found.names)
    bounds = (found.left, 0.0, found.right, float(rows))
    unit = f"log2 {statistic}" if found.logarithmic else statistic
    # HoloViews puts the first row at the top of its bounds.
    shades = hv.Image(found.shade, bounds=bounds, kdims=["step", "row"], vdims=[unit])
    wrong = np.where(found.state == grid.NONFINITE, 1.0, np.nan).astype(np.float32)
    bad = hv.Image(wrong, bounds=bounds, kdims=["step", "row"], vdims=["non-finite"])
    return shades * bad


def exponents(
    run: Run, *, site: str, step: int, format: str = "", view: View = "merged"
) -> hv.Overlay:
    """The exponents of one site at one step, with lines where a number format ends.

    Args:
        run: an open run.
        site: label of the site, such as `activation:blocks.0.mlp`.
        step: a recorded step.
        format: a number format; the site's own by default.
        view: `merged`; or a rank, or coordinates as "tp=1", where `run.kept_ranks()` has them.

    Raises:
        SettingError: the site was not observed at that step, or there are no exact columns of the
            view.
    """
    found = spectrum.load_spectrum(run, site=site, step=step, view=view)
    if found is None:
        raise SettingError(f"{site} was not observed at step {step}; see run.records().")
    own = str(run.sites().loc[site, "dtype"])
    target = number_format(format) if format else spectrum.site_format(own)
    edges = np.append(found.exponents, found.exponents[-1] + 1) if found.exponents.size else [0, 1]
    shares = found.shares if found.shares.size else np.zeros(1)
    histogram = hv.Histogram((edges, shares), kdims=["log2 |x|"], vdims=["share of elements"])
    lines = [
        hv.VLine(float(np.log2(edge)))
        for edge in (target.max, target.smallest_normal, target.smallest_subnormal)
    ]
    title = f"{site}, step {step}, {target.name}"
    return hv.Overlay([histogram, *lines], label=title)


def lines(run: Run, *, site: str, statistic: str = "rms", step: int | None = None) -> hv.NdOverlay:
    """A statistic of one site over steps, a curve for each rank that is kept."""
    found = series.load_ranks(run, statistic, site=site, step=step)
    return _curves(found, statistic, f"{site}: {found.why}" if found.why else site)


def training(run: Run, *, name: str = "loss") -> hv.NdOverlay:
    """A training statistic over steps, a curve for each rank."""
    return _curves(series.load_training(run, name), name, name)


def _curves(found: series.Lines, value: str, title: str) -> hv.NdOverlay:
    curves = {
        rank: hv.Curve((found.steps, line), kdims=["step"], vdims=[value])
        for rank, line in found.values.items()
    }
    if not curves:
        raise SettingError(f"No {words.shorten(value, 60)} has been recorded yet.")
    return hv.NdOverlay(curves, kdims=["rank"], label=title)
