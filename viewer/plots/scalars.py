"""Statistics over steps: as lines, and as a picture of all sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import holoviews as hv
import numpy as np
from numpy.typing import NDArray

from ...sketch.errors import SettingError
from .. import grid, series, words
from ..columns import MISSING, NONFINITE, UNDEFINED, ZERO
from ..curves import Curves
from ..figures import colours
from ..figures.lines import lonely
from . import look
from .exponents import MOST, chosen
from .opening import naming, source_of, sources_of
from .source import Data, Many, Source, Training, one_kind, run_of
from .training import STEP, alongside, around, beneath, of_runs, ranks_drawn, spanning

Style = Literal["line", "points", "both"]
Facet = Literal["site", "kind", "statistic", ""]
MOST_LINES = 40
"""In one plot."""
POINTS = 2000
"""Of one line; of more steps the extremes are kept."""
OTHER_RANKS = tuple(colour for colour in look.CYCLE if colour != colours.WORST)
"""Colours of ranks beside that to look at."""
ROW_HEIGHT = 16
"""Pixels of a site's row, where there is room."""
STATES = {
    ZERO: ("zero", colours.LIGHT.zero),
    UNDEFINED: ("undefined", colours.LIGHT.undefined),
    NONFINITE: ("non-finite", colours.LIGHT.nonfinite),
}
"""Cells that no shade is for: their name, and colour."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """One line of a plot."""

    run: str
    """Its name, where there are several."""
    site: str
    statistic: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    bad: NDArray[np.int64]
    """Steps in which elements were not finite."""
    turns: list[tuple[int, int]]
    """(step, attempt) where the records of another attempt begin."""


def scalar_lines(
    data: Data | Mapping[str, Data],
    statistic: str | Sequence[str] = "rms",
    *,
    site: Many = None,
    kind: Many = None,
    name: str | None = None,
    steps: tuple[int, int] | None = None,
    view: str | int = "merged",
    ranks: bool = False,
    facet: Facet = "site",
    style: Style = "line",
    scale: str = "",
    columns: int = 2,
    training: Training = "",
) -> look.Plot:
    """Statistics of some sites over steps.

    Diamonds mark steps with non-finite elements, hollow ones a statistic that is zero where the
    axis has no zero.

    Args:
        data: a run, or a LogFrame; or several by the names to tell them apart by.
        statistic: one, or several.
        site: labels.
        kind: only these kinds; activations by default, unless `site` or `name` is given.
        name: only sites in whose name this regular expression is found.
        steps: first and last step; all by default.
        view: `merged`; `min`, `max` over ranks; a rank; or coordinates as "tp=1".
        ranks: a line for each rank that is kept, up to eight in colours of their own; in vermilion
            the one that was not finite last, else that differs most at the last step. Of one
            statistic.
        facet: a plot for each site, kind or statistic; empty: all in one.
        style: a line, points, or both.
        scale: `log2` or `linear` axis; empty chooses by statistic.
        columns: how many plots stand in a row.
        training: a training statistic to draw below; of several runs in a colour for each.

    Raises:
        SettingError: nothing matches, in one of the runs, or too much does.
    """
    if facet not in ("site", "kind", "statistic", "") or style not in ("line", "points", "both"):
        raise SettingError(
            "`facet` must be site, kind, statistic or empty, and `style` line, points or both; "
            f"got {facet!r}, {style!r}."
        )
    wanted = [statistic] if isinstance(statistic, str) else [*statistic]
    logarithmic = all(grid.is_logarithmic(one, str(view), scale) for one in wanted)
    sources = sources_of(data)
    most, whose = MOST if facet == "site" else MOST_LINES, dict[str, list[str]]()
    for run, source in sources.items():
        with naming(run):
            whose[run] = chosen(source, site, kind, name, most)
    if ranks:
        found = [
            _rank_lines(data, wanted, one, steps, logarithmic)
            for sites in whose.values()
            for one in sites
        ]
        plots, ends = [plot for plot, _ in found], around([kept for _, kept in found])
    else:
        lines = [
            line
            for one in wanted
            for run, sites in whose.items()
            for line in _lines(run, sources[run].curves(one, sites, steps=steps, view=view), sites)
        ]
        ends = around([line.steps for line in lines])
        plots = _facets(lines, facet, style=style, logarithmic=logarithmic)
    plots = [look.styled(one, xlim=ends or (None, None)) for one in plots]
    plot = look.facets(plots, columns=columns, shared=True)
    if isinstance(training, str) and training and len(sources) > 1:
        return beneath(
            plot, [look.styled(of_runs(sources, training, steps), xlim=ends or (None, None))]
        )
    return alongside(plot, next(iter(sources.values())), training, steps=steps, ends=ends)


def _lines(run: str, found: Curves, sites: Sequence[str]) -> list[Line]:
    return [
        Line(run=run, site=site, statistic=found.statistic, steps=found.steps[kept],
             values=found.values[kept, column], bad=found.bad[column], turns=found.turns)
        for column, site in enumerate(sites)
        for kept in [series.thin(found.steps, [found.values[:, column]], POINTS)]
    ]  # fmt: skip


def _facets(
    lines: Sequence[Line], facet: Facet, *, style: Style, logarithmic: bool
) -> list[look.Plot]:
    """A plot for each value of what they are told apart by."""

    def key(line: Line) -> str:
        match facet:
            case "site":
                return line.site
            case "kind":
                return line.site.partition(":")[0]
            case "statistic":
                return line.statistic
            case "":
                return ""

    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(key(line), []).append(line)
    most = max(len(group) for group in groups.values())
    if most > MOST_LINES or len(groups) > MOST:
        raise SettingError(
            f"That is {most} lines in one of {len(groups)} plots, and at most {MOST_LINES} lines "
            f"and {MOST} plots can be read: choose by `site`, `kind`, `name` or `facet`."
        )
    return [
        _plot(title, group, style=style, logarithmic=logarithmic) for title, group in groups.items()
    ]


def _plot(title: str, lines: Sequence[Line], *, style: Style, logarithmic: bool) -> look.Plot:
    statistics = list(dict.fromkeys(line.statistic for line in lines))
    sites = list(dict.fromkeys(line.site for line in lines))
    runs = {line.run for line in lines}
    value = hv.Dimension(statistics[0] if len(statistics) == 1 else "value")
    parts: list[look.Plot] = []
    for number, line in enumerate(lines):
        told = [line.run] * (len(runs) > 1)
        told += [line.site] * (len(sites) > 1) + [line.statistic] * (len(statistics) > 1)
        colour = look.CYCLE[number % len(look.CYCLE)]
        parts += _line(line, " ".join(told), colour, value, style, logarithmic)
    turns = lines[0].turns if len(runs) == 1 else []
    parts += look.turns(turns)
    if len(sites) == 1:
        title = sites[0]
    heights = np.concatenate([line.values for line in lines])
    heights = np.abs(heights) if logarithmic else heights
    return look.sized(
        hv.Overlay(parts),
        title=title or ", ".join(statistics),
        xlabel=look.steps_label(turns),
        ylabel=value.name,
        logy=logarithmic,
        ylim=spanning(heights, heights, logarithmic=logarithmic),
        entries=len({part.label for part in parts if part.label}),
    )


def _line(
    line: Line, label: str, colour: str, value: hv.Dimension, style: Style, logarithmic: bool
) -> list[look.Plot]:
    dims = (STEP, value)
    shown = np.abs(line.values) if logarithmic else line.values
    drawn = np.where(shown > 0, shown, np.nan) if logarithmic else shown
    parts: list[look.Plot] = []
    if style != "points":
        parts.append(look.line(line.steps, drawn, label, colour=colour, dims=dims))
    alone = lonely(drawn)
    if style != "line":
        parts.append(look.dots(line.steps, drawn, label, colour=colour, dims=dims))
    elif len(alone):  # of which no line is drawn
        parts.append(look.dots(line.steps[alone], drawn[alone], label, colour=colour, dims=dims))
    zero = line.steps[line.values == 0] if logarithmic else []
    if len(zero):
        heights = [series.level(line.steps, drawn, int(at), otherwise=1.0) for at in zero]
        parts.append(
            look.marks(zero, heights, "zero", colour=colours.LIGHT.muted, dims=dims, hollow=True)
        )
    if len(line.bad):
        heights = [series.level(line.steps, drawn, int(at), otherwise=1.0) for at in line.bad]
        parts.append(
            look.marks(
                line.bad,
                heights,
                f"{label} non-finite".lstrip(),
                dims=dims,
                colour=colours.LIGHT.nonfinite,
                edge=colour if label else "",
            )
        )
    return parts


def _rank_lines(
    data: Data | Mapping[str, Data],
    statistics: Sequence[str],
    site: str,
    steps: tuple[int, int] | None,
    logarithmic: bool,
) -> tuple[look.Plot, NDArray[np.int64]]:
    """A line for each rank, and the steps that it is drawn at."""
    if len(statistics) != 1:
        raise SettingError(f"`ranks` draws one statistic, got {', '.join(statistics)}.")
    if isinstance(data, Mapping):
        raise SettingError("`ranks` draws one run, without a name: its ranks are what is compared.")
    run, statistic = run_of(data, "`ranks`"), statistics[0]
    found = series.load_ranks(run, statistic, site=site)
    kept = np.ones(len(found.steps), bool)
    if steps is not None:
        kept = (found.steps >= steps[0]) & (found.steps <= steps[1])
    step = _step_to_judge(found, found.steps[kept])
    found = series.at_step(run, found, site=site, step=step)
    value = hv.Dimension(statistic)
    # More than there are colours are told apart by nothing but the worst.
    few = len(found.drawn) <= len(OTHER_RANKS) + 1
    quiet = OTHER_RANKS if few else (colours.RANK,)
    parts = ranks_drawn(found, kept, value, quiet=quiet, logarithmic=logarithmic)
    why = _since(found, found.steps[kept]) or found.why
    turns = [one for one in found.turns if one[0] in found.steps[kept]]
    plot = look.sized(
        hv.Overlay([*parts, *look.turns(turns)]), title=f"{site}: {why}" if why else site,
        xlabel=look.steps_label(turns), ylabel=statistic, logy=logarithmic,
        ylim=spanning(found.low[kept], found.high[kept], logarithmic=logarithmic),
        entries=min(len({part.label for part in parts}), 8),
    )  # fmt: skip
    return plot, found.steps[kept]


def _since(lines: series.Lines, steps: NDArray[np.int64]) -> str:
    """From which step to which the rank to look at is not finite; empty where it is."""
    bad = np.intersect1d([at for at, rank in lines.bad if rank == lines.worst], steps)
    seen = lines.steps[np.isfinite(lines.high)]
    if not bad.size:
        return ""
    end = int(max([bad[-1], *seen[-1:]]))
    return f"rank {lines.worst} not finite {words.span(int(bad[0]), int(bad[-1]), end)}"


def _step_to_judge(lines: series.Lines, steps: NDArray[np.int64]) -> int | None:
    """The last of the steps in which a rank is not finite, else that has a number at all.

    The very last record may have none: that after training has the weights alone.
    """
    seen = lines.steps[np.isfinite(lines.high)]
    for some in ([at for at, _ in lines.bad], seen):
        there = np.intersect1d(some, steps)
        if there.size:
            return int(there[-1])
    return None


def scalar_heatmap(
    data: Data,
    statistic: str = "rms",
    *,
    kind: Many = None,
    name: str = "",
    view: str | int = "merged",
    scale: str = "",
    steps: tuple[int, int] | None = None,
    width: int = 800,
    height: int = 400,
    columns: int = 1,
    training: Training = "",
) -> look.Plot:
    """A statistic of all sites of a kind over steps, sites in the order of execution.

    Magenta is what is not finite, hatched what was not observed, and the colours of the rest lie
    between quantiles. A plot for each kind, and of the optimizer for each state: some are squares
    of others.

    Args:
        data: a run, or a LogFrame.
        statistic: which one.
        kind: one, or several; activations by default, or with `name` all that have such sites.
        name: only sites in whose name this regular expression is found.
        view: `merged`, `max`, `min`, `argmax`, `argmin` over ranks, a rank, or coordinates.
        scale: `log2` or `linear`; empty chooses by statistic.
        steps: first and last step; all by default.
        width: cells across at most; of several steps in one the worst is kept.
        height: cells down at most; of several sites in one the worst is kept.
        columns: how many plots stand in a row.
        training: a training statistic to draw below, over the same steps.

    Raises:
        SettingError: nothing matches.
    """
    source = source_of(data)
    across = look.WIDE if columns == 1 else look.WIDTH
    plots: list[look.Plot] = []
    ends = None
    for what, sites in _pictured(source, kind, name).items():
        found = source.grid(
            statistic, sites=sites, view=str(view), scale=scale, steps=steps, size=(width, height)
        )
        title = f"{statistic} of {what}, {words.view_name(str(view))}"
        limits = colours.limits(found.usual(), diverging=found.signed)
        unit = f"log2 {statistic}" if found.logarithmic else statistic
        plots.append(picture(found, limits, unit=unit, title=title, across=across))
        ends = found.left, found.right
    plot = look.facets(plots, columns=columns, shared=True, width=across)
    return alongside(plot, source, training, steps=steps, width=across, ends=ends)


def _kinds(source: Source, kind: Many, name: str) -> list[str]:
    """Those that are asked for, or that have sites of such names; else one."""
    if kind is not None:
        return [kind] if isinstance(kind, str) else [*kind]
    if not name:
        return [one_kind(source, "")]
    sites = source.choose(kind=None, name=name, site=None)
    return list(dict.fromkeys(site.partition(":")[0] for site in sites))


def _pictured(source: Source, kind: Many, name: str) -> dict[str, list[str]]:
    """The sites of each picture, by what they are: those of a kind, or of a state of it."""
    found: dict[str, list[str]] = {}
    for one in _kinds(source, kind, name):
        of = f"{one.replace('_', ' ')}s"
        for site in source.choose(kind=one or None, name=name or None, site=None):
            state = ""
            if one == "optimizer_state" and "[" in site:
                state = site.rpartition("[")[2].partition("]")[0]
            found.setdefault(f"{of} {state}" if state else of, []).append(site)
    if not found:
        raise SettingError("No site has been recorded yet.")
    return found


def picture(
    cells: grid.Grid, limits: colours.Limits, *, unit: str, title: str, across: int = look.WIDE
) -> look.Plot:
    """A grid as a picture: shades, what has none, and a hatch where nothing was observed."""
    rows = len(cells.names)
    if not cells.first.size:
        raise SettingError(f"There is nothing to draw of {title} in these steps.")
    # Dimensions of its own: HoloViews gives those of one label one range in all plots.
    row = hv.Dimension(f"row of {title}")
    bounds = (cells.left, 0.0, cells.right, float(rows))
    tips = look.cell_tips(cells, unit)
    shade = hv.Dimension(f"{unit}: {title}", range=(limits.low, limits.high))
    # HoloViews puts the first row at the top of its bounds.
    shades = look.styled(
        hv.Image(cells.shade, bounds=bounds, kdims=[STEP, row], vdims=[shade]),
        bokeh={"tools": [tips]},
        mpl={"hooks": [look.bar_beside] * limits.shading},
        cmap=limits.palette,
        colorbar=limits.shading,
        clabel=unit,
    )
    hatch = look.hatch(cells.left, 0.0, cells.right, float(rows), (STEP, row))
    ground, *apart = _apart(cells, row, bounds)
    parts = [hatch, ground, shades, *apart]
    names = [(rows - at - 0.5, words.shorten(name, 30)) for at, name in enumerate(cells.names)]
    size = int(np.clip(rows * ROW_HEIGHT, 160, 480)) + 60
    return look.sized(
        hv.Overlay(parts), width=across, height=size, title=title, xlabel="step", ylabel="",
        xlim=(cells.left, cells.right), ylim=(0, rows),
        bokeh={"yticks": look.sparse(names, max((size - 60) // 13, 1))},
        mpl={"yticks": look.sparse(names, 24)},
        entries=len({part.label for part in parts if part.label}),
    )  # fmt: skip


def _apart(
    cells: grid.Grid, row: hv.Dimension, bounds: tuple[float, float, float, float]
) -> list[look.Plot]:
    """White where something was observed, and the colours of cells without a number."""
    seen = np.where(cells.state != MISSING, 0.0, np.nan).astype(np.float32)
    parts = [_flat(seen, colours.LIGHT.surface, "observed", row, bounds)]
    for state, (label, colour) in STATES.items():
        where = cells.state == state
        if where.any():
            layer = np.where(where, 0.0, np.nan).astype(np.float32)
            parts.append(_flat(layer, colour, label, row, bounds))
            parts.append(look.key(label, colour, (STEP, row)))
    return parts


def _flat(
    layer: NDArray[np.float32],
    colour: str,
    name: str,
    row: hv.Dimension,
    bounds: tuple[float, float, float, float],
) -> look.Plot:
    """One colour where the layer is a number."""
    value = hv.Dimension(name, range=(-1.0, 1.0))
    image = hv.Image(layer, bounds=bounds, kdims=[STEP, row], vdims=[value])
    return look.styled(image, cmap=[colour, colour], colorbar=False)
