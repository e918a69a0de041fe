"""Plots of named tensors; nothing is loaded for them before the first."""

from __future__ import annotations

from typing import Any

from . import plots
from .arithmetic import Patterns
from .named import Named
from .plots import Operation, Plot
from .sketches import By


def hist(
    tensors: Named[Any],
    *,
    by: By = "whole",
    include: Patterns = None,
    exclude: Patterns = None,
    operation: Operation = "identity",
    bins: int = 100,
    logx: bool = False,
    logy: bool = False,
) -> Plot:
    """A histogram of finite elements, of several by the dimension `tensor`, in the same bins.

    Args:
        tensors: of any devices and dtypes.
        by: one for all, for each tensor, or for those that a function of their names calls alike.
        include: regular expressions, of which one must be found in a name (`re.search`).
        exclude: and of which none may be.
        operation: what is drawn of each element.
        bins: how many there are between the extremes; a whole number.
        logx: bins of equal ratio; only what is above 0 is drawn.
        logy: whether the axis of counts is logarithmic.

    Raises:
        SettingError: there is nothing to draw, or too much, or an argument cannot be used.
        ImportError: HoloViews is not installed.
    """
    arrays = tensors.filter(include, exclude).numpy(by=by)
    return plots.hist(arrays, operation=operation, bins=bins, logx=logx, logy=logy)


def ecdf(
    tensors: Named[Any],
    *,
    by: By = "whole",
    include: Patterns = None,
    exclude: Patterns = None,
    operation: Operation = "identity",
    logx: bool = False,
) -> Plot:
    """The empirical distribution function: which share of the finite elements is at most x.

    The arguments, and what it raises, are those of `hist`.
    """
    arrays = tensors.filter(include, exclude).numpy(by=by)
    return plots.ecdf(arrays, operation=operation, logx=logx)


def heatmap(
    tensors: Named[Any],
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    operation: Operation = "identity",
    vmin: float | None = None,
    vmax: float | None = None,
    log: bool = False,
    columns: int = 2,
) -> Plot:
    """The elements of each tensor as a picture: one, or several as a Layout.

    Of more than two axes all but the first are drawn as one; of large tensors a cell shows the
    element of the largest magnitude of those that it stands for. Where nothing is finite there
    is no colour.

    Args:
        tensors: as of `hist`.
        include: as of `hist`.
        exclude: as of `hist`.
        operation: as of `hist`.
        vmin: value of the first shade; by default the least, or where some are negative minus the
            largest magnitude.
        vmax: value of the last shade, not below the first; by default the largest.
        log: whether shades are of the logarithm; only what is above 0 is drawn.
        columns: how many pictures stand in a row.

    Raises:
        SettingError: there is nothing to draw in any, or too much, or an argument cannot be used.
        ImportError: HoloViews is not installed.
    """
    arrays = tensors.filter(include, exclude).numpy()
    return plots.heatmap(
        arrays, operation=operation, vmin=vmin, vmax=vmax, log=log, columns=columns
    )
