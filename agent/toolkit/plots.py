"""Plots of the elements of tensors, as HoloViews objects, from arrays by name.

Elements that are not finite are left out. Plots carry options for Bokeh, and for Matplotlib where
it is installed; a notebook shows them after `hv.extension("bokeh")` or "matplotlib".
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from numbers import Integral
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...sketch.errors import SettingError
from ...sketch.table import Floats
from .extras import imported

Operation = Literal["identity", "abs", "square"]
"""What is drawn of an element: itself, |x| or x²."""

WORDS: Mapping[str, str] = {"identity": "x", "abs": "|x|", "square": "x²"}
"""What the axis of an operation is called."""

Arrays = Mapping[str, NDArray[Any]]
"""By name: arrays of any real dtype."""

Plot = Any
"""A HoloViews object. `Any`: HoloViews has no types."""

POINTS = 1000
"""Of one curve at most."""
CELLS = 400
"""Of a picture at most, along each side: of more, each stands for several elements."""
MOST = 40
"""Tensors in one plot, or pictures."""


def hist(arrays: Arrays, *, operation: Operation, bins: int, logx: bool, logy: bool) -> Plot:
    """How many elements lie in each of `bins` bins, the same for all arrays.

    Raises:
        SettingError: there is nothing to draw, or too much, or `bins` is no number of bins.
        ImportError: HoloViews is not installed.
    """
    hv = _holoviews()
    # Users without a type checker may pass anything, as the edges of bins.
    if not isinstance(bins, Integral) or bins < 1:
        raise SettingError(f"`bins` must be a whole number of at least 1, got {bins!r}.")
    drawn = {name: _elements(array, operation, logx) for name, array in _checked(arrays).items()}
    every = [edge for values in drawn.values() if values.size for edge in (values[0], values[-1])]
    if not every:
        raise SettingError(_nothing(logx))
    low, high = min(every), max(every)
    if low == high:
        low, high = (low / 2, high * 2) if logx else (low - 0.5, high + 0.5)
    edges = np.geomspace(low, high, bins + 1) if logx else np.linspace(low, high, bins + 1)
    edges[0], edges[-1] = low, high  # not what rounding makes of them
    axis = hv.Dimension(WORDS[operation])
    made = {
        name: _styled(
            hv,
            hv.Histogram((edges, np.histogram(values, edges)[0]), kdims=[axis], vdims=["elements"]),
            logx=logx,
            logy=logy,
            ylim=(0.5 if logy else 0, None),
            bokeh={"line_alpha": 0},
            mpl={"linewidth": 0},
        )
        for name, values in drawn.items()
    }
    return _overlaid(hv, made, alpha=0.5)


def ecdf(arrays: Arrays, *, operation: Operation, logx: bool) -> Plot:
    """Which share of the elements is at most x; of many elements at evenly spaced shares.

    Raises:
        SettingError: there is nothing to draw, or too much.
        ImportError: HoloViews is not installed.
    """
    hv = _holoviews()
    made = dict[str, Plot]()
    for name, array in _checked(arrays).items():
        values = _elements(array, operation, logx)
        if not values.size:
            raise SettingError(f"{_nothing(logx)} The tensor is {name}.")
        at = np.unique(np.linspace(0, values.size - 1, POINTS).round().astype(np.intp))
        curve = hv.Curve(
            (values[at], (at + 1) / values.size), kdims=[WORDS[operation]], vdims=["share"]
        )
        made[name] = _styled(hv, curve, logx=logx, interpolation="steps-post")
    return _overlaid(hv, made)


def heatmap(
    arrays: Arrays,
    *,
    operation: Operation,
    vmin: float | None,
    vmax: float | None,
    log: bool,
    columns: int,
) -> Plot:
    """Elements as pictures, one an array; of more than two axes all but the first are one.

    A cell that stands for several elements shows the one of the largest magnitude. An array in
    which there is nothing to draw has cells without a colour.

    Raises:
        SettingError: there is nothing to draw in any, or too much, or `vmin` is above `vmax`.
        ImportError: HoloViews is not installed.
    """
    hv = _holoviews()
    if vmin is not None and vmax is not None and not vmin <= vmax:
        raise SettingError(f"`vmin` must not be above `vmax`, got {vmin} and {vmax}.")
    pictures, is_any_known = list[Plot](), False
    for name, array in _checked(arrays).items():
        if not array.size:
            raise SettingError(f"{name} has no elements to draw.")
        table = _operated(array.reshape(array.shape[0] if array.ndim > 1 else 1, -1), operation)
        cells = _pooled(_pooled(table, 0), 1)
        if log:
            cells = np.where(cells > 0, cells, np.nan)
        known = cells[np.isfinite(cells)]
        is_any_known |= known.size > 0
        image = hv.Image(
            cells[::-1],  # HoloViews puts the first row at the top of the bounds
            bounds=(0, 0, table.shape[1], table.shape[0]),
            kdims=["column", "row"],
            vdims=[hv.Dimension(WORDS[operation], range=_limits(known, vmin, vmax))],
            label=name,
        )
        pictures.append(
            _styled(
                hv,
                image,
                mpl={"aspect": "square"},
                invert_yaxis=True,
                colorbar=True,
                cmap="RdBu_r" if (known < 0).any() else "viridis",
                cnorm="log" if log else "linear",
            )
        )
    if not is_any_known:
        raise SettingError(f"{_nothing(log)} The tensors are {', '.join(arrays)}.")
    if len(pictures) == 1:
        return pictures[0]
    return _styled(hv, hv.Layout(pictures).cols(columns), shared_axes=False)


def _limits(known: Floats, vmin: float | None, vmax: float | None) -> tuple[float, float]:
    """The values of the first shade and of the last."""
    low, high = 1.0, 10.0  # where nothing is known any will do, also for a logarithm
    if known.size:
        high = float(np.abs(known).max())
        low = -high if known.min() < 0 else float(known.min())
    if vmin is not None:
        low, high = vmin, max(high, vmin)
    return (low if vmax is None else min(low, vmax)), (high if vmax is None else vmax)


def _checked(arrays: Arrays) -> Arrays:
    if not 0 < len(arrays) <= MOST:
        raise SettingError(
            f"A plot takes 1 to {MOST} tensors, got {len(arrays)}; choose some with `include`."
        )
    return arrays


def _operated(array: NDArray[Any], operation: Operation) -> Floats:
    if operation not in WORDS:
        raise SettingError(f"`operation` must be {', '.join(WORDS)}; got {operation!r}.")
    values = np.where(np.isfinite(array), array, np.nan).astype(np.float64)
    if operation == "identity":
        return values
    return np.abs(values) if operation == "abs" else values * values


def _elements(array: NDArray[Any], operation: Operation, positive: bool) -> Floats:
    """The finite ones, sorted; only those above 0 where an axis has no other."""
    values = _operated(array, operation).reshape(-1)
    return np.sort(values[values > 0] if positive else values[~np.isnan(values)])


def _pooled(table: Floats, axis: int) -> Floats:
    """At most so many cells along an axis, each the element of the largest magnitude of several."""
    length = table.shape[axis]
    if length <= CELLS:
        return table
    starts = np.linspace(0, length, CELLS, endpoint=False).astype(np.intp)
    most = np.fmax.reduceat(table, starts, axis=axis)
    least = np.fmin.reduceat(table, starts, axis=axis)
    return np.where(-least > most, least, most)


def _nothing(positive: bool) -> str:
    what = "element above 0, which a logarithmic axis needs" if positive else "finite element"
    return f"There is no {what}."


def _holoviews() -> Any:
    hv = imported("holoviews", "A plot")
    imported("holoviews.plotting.bokeh", "A plot")  # which registers its backend
    with suppress(ImportError):  # without Matplotlib there is Bokeh
        imported("holoviews.plotting.mpl", "A plot")
    return hv


def _styled(
    hv: Any,
    plot: Plot,
    *,
    bokeh: dict[str, Any] | None = None,
    mpl: dict[str, Any] | None = None,
    **both: Any,
) -> Plot:
    """The plot with options for each backend that there is."""
    for backend in hv.Store.loaded_backends():
        own = bokeh if backend == "bokeh" else mpl
        plot = plot.opts(**both, **(own or {}), backend=backend)
    return plot


def _overlaid(hv: Any, plots: Mapping[str, Plot], **options: Any) -> Plot:
    """The plot alone, or one over the other, by the dimension `tensor`."""
    if len(plots) == 1:
        return next(iter(plots.values()))
    each = {name: _styled(hv, plot, **options) if options else plot for name, plot in plots.items()}
    return hv.NdOverlay(each, kdims=["tensor"], sort=False)
