"""Exponents: one step as bars or a line, and a whole life as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2
from operator import index
from typing import Literal

import holoviews as hv
import numpy as np

from ...sketch.errors import SettingError
from ...sketch.formats import FORMATS, NumberFormat
from ...sketch.shared_scales import number_formats_named
from ...store.selection import nearest
from .. import words
from ..figures import colours
from ..figures.exponents import NEAR, ZONE_COLOURS
from ..life import Life
from ..spectrum import ASIDE, NOT_FINITE, Spectrum, outline, site_format, zones
from . import look
from .opening import naming, source_of, sources_of
from .source import Data, Many, Source, Training, one_kind
from .training import alongside, beneath, of_runs

Style = Literal["bars", "line", "smooth"]
Of = Literal["share", "count"]
Formats = str | Sequence[str] | None
MOST = 24
"""Plots side by side."""
AXIS = hv.Dimension("exponent", label="|x|")
STEP = hv.Dimension("step")
MOST_OUTLINED = 120
"""Exponents: bars of more are as narrow as the lines around them, which would hide them."""
ROOM = 3
"""Exponents left free beside the data."""
BEYOND = ("under", "over")
"""Bars that are drawn only where there is something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What all histograms side by side have in common."""

    start: int
    end: int
    left: list[str]
    """What stands apart on the left, by `ASIDE`."""
    right: list[str]
    floor: float
    """Where bars begin."""
    top: float

    @property
    def spacing(self) -> float:
        """Between two bars that stand apart."""
        return max(1.5, (self.end - self.start) / 12)

    def place(self, name: str) -> float:
        """Where such a bar stands."""
        if name in self.left:
            return self.start - self.spacing * (len(self.left) - self.left.index(name))
        return self.end + self.spacing * (1 + self.right.index(name))

    @property
    def limits(self) -> tuple[float, float]:
        """First and last place of the axis."""
        left, right = len(self.left), len(self.right)
        return self.start - self.spacing * (left + 0.7), self.end + self.spacing * (right + 0.7)


@dataclass(frozen=True, slots=True)
class Slot:
    """Which of the runs is drawn, and of how many."""

    number: int
    of: int

    @property
    def colour(self) -> str:
        """That of the run; empty where it is alone: then parts have colours of their own."""
        return look.CYCLE[self.number % len(look.CYCLE)] if self.of > 1 else ""


def exponent_histogram(
    data: Data | Mapping[str, Data],
    *,
    site: Many = None,
    kind: Many = None,
    name: str | None = None,
    step: int | None = None,
    style: Style = "bars",
    of: Of = "share",
    formats: Formats = None,
    view: str | int = "merged",
    logarithmic: bool = True,
    columns: int = 2,
    training: Training = "",
) -> look.Plot:
    """How many elements have which exponent, beside where number formats end.

    Bin n holds 2^n <= |x| < 2^(n+1). Zeros, NaN, infinities and what is beyond all bins stand
    apart. A plot for each site that is chosen, side by side on the same axes; of several runs each
    is a line in it.

    Args:
        data: a run, or a LogFrame; or several by the names to tell them apart by.
        site: labels.
        kind: only these kinds; activations by default, unless `site` or `name` is given.
        name: only sites in whose name this regular expression is found.
        step: a recorded step; of each site the last one by default.
        style: bars; a line; or a smooth line, blurred by 0.7 of a power of two.
        of: parts of all elements, or how many.
        formats: whose ends are drawn (largest, smallest normal and smallest subnormal number): a
            name, or several; each site's own by default, where its ends are near; () draws none.
        view: `merged`; or a rank or coordinates as "tp=1", where `run.kept_ranks()` has them.
        logarithmic: whether small shares are to be seen, too.
        columns: how many plots stand in a row.
        training: a training statistic to draw below, with the step; of several runs in a colour
            for each.

    Raises:
        SettingError: nothing matches, or a site was not observed at the step, in one of the runs.
    """
    if style not in ("bars", "line", "smooth") or of not in ("share", "count"):
        raise SettingError(
            f"`style` must be bars, line or smooth, and `of` share or count; got {style!r}, {of!r}."
        )
    sources = sources_of(data)
    first, *others = sources.values()
    found = _spectra(sources, site, kind, name, step, view)
    drawn = [_formats_of(sources, one, by_run, formats) for one, by_run in found.items()]
    every = [one for by_run in found.values() for one in by_run.values()]
    frame = _frame(every, drawn, of=of, explicit=formats is not None, logarithmic=logarithmic)
    names = _aside_names(first)
    slots = {run: Slot(number, len(sources)) for number, run in enumerate(sources)}
    plots = [
        _histogram(by_run, slots, some, frame, names, style=style, of=of, logarithmic=logarithmic)
        for by_run, some in zip(found.values(), drawn, strict=True)
    ]
    plot = look.facets(plots, columns=columns, shared=True)
    if others and isinstance(training, str) and training:
        return beneath(plot, [of_runs(sources, training, None)])
    return alongside(plot, first, training, step=every[0].step)


def chosen(source: Source, site: Many, kind: Many, name: str | None, most: int = MOST) -> list[str]:
    """The sites that are drawn, at most so many; where nothing chooses them, those of one kind.

    Raises:
        SettingError: there are none, or too many.
    """
    among = ""
    if site is None and kind is None and name is None:
        kind = one_kind(source, "")
        among = f" among those of kind {kind} (`kind` chooses others)"
    found = source.choose(kind=kind, name=name, site=site)
    if len(found) > most:
        raise SettingError(
            f"{len(found)} sites match{among}, and at most {most} can be told apart: "
            "choose by `site`, `kind` or `name`."
        )
    if not found:
        raise SettingError("No site has been recorded yet.")
    return found


def _spectra(
    sources: Mapping[str, Source],
    site: Many,
    kind: Many,
    name: str | None,
    step: int | None,
    view: str | int,
) -> dict[str, dict[str, Spectrum]]:
    """By site, and by run that has it."""
    found: dict[str, dict[str, Spectrum]] = {}
    for run, source in sources.items():
        with naming(run):
            for one in chosen(source, site, kind, name):
                found.setdefault(one, {})[run] = _spectrum(source, one, step, view)
    return found


def _spectrum(source: Source, site: str, step: int | None, view: str | int) -> Spectrum:
    try:
        step = None if step is None else index(step)
    except TypeError:
        raise SettingError(f"`step` must be a whole number, got {step!r}.") from None
    at = source.last_step(site) if step is None else step
    found = None if at is None else source.spectrum(site, at, view=view)
    if found is None:
        if at is None:
            raise SettingError(f"{site} was not observed; see run.records().")
        others = np.setdiff1d(source.steps_of(site), [at])
        raise SettingError(f"{site} was not observed at step {at}; {nearest(others, at)}.")
    return found


def _formats(source: Source, site: str, formats: Formats) -> list[NumberFormat]:
    if formats is None:
        own = source.dtype(site)
        return [site_format(own)] if own in FORMATS else []
    return number_formats_named(formats)


def _formats_of(
    sources: Mapping[str, Source], site: str, runs: Iterable[str], formats: Formats
) -> list[NumberFormat]:
    """Those of all runs, each once."""
    found = [one for run in runs for one in _formats(sources[run], site, formats)]
    return list({one.name: one for one in found}.values())


def ends(target: NumberFormat) -> dict[str, float]:
    """Where a format ends, in powers of two."""
    return {
        "max": log2(target.max),
        "smallest normal": log2(target.smallest_normal),
        "smallest subnormal": log2(target.smallest_subnormal),
    }


def _frame(
    found: Sequence[Spectrum],
    drawn: Sequence[Sequence[NumberFormat]],
    *,
    of: Of,
    explicit: bool,
    logarithmic: bool,
) -> Frame:
    """Axes that hold all of them."""
    held = [one.exponents for one in found if one.exponents.size]
    low = min((int(one[0]) for one in held), default=-4)
    high = max((int(one[-1]) + 1 for one in held), default=4)
    start, end = low - ROOM, high + ROOM
    for edge in (at for some in drawn for target in some for at in ends(target).values()):
        if explicit or low - NEAR <= edge <= high + NEAR:
            start, end = min(start, floor(edge) - 1), max(end, ceil(edge) + 1)
    every = {name for one in found for name in one.aside}
    seen = {name for one in found for name, number in one.aside.items() if number}
    kept = [name for name in ASIDE if name in seen or (name in every and name not in BEYOND)]
    total = max((one.total for one in found), default=1)
    unit = 1.0 if of == "share" else float(total)
    least = 0.5 if of == "count" else 10.0 ** floor(np.log10(0.5 / max(total, 2)))
    return Frame(
        start=start,
        end=end,
        left=[name for name in kept if name in ("zero", "under")],
        right=[name for name in kept if name not in ("zero", "under")],
        floor=least if logarithmic else 0.0,
        top=2.0 * unit if logarithmic else _highest(found, of) * 1.15,
    )


def _highest(found: Sequence[Spectrum], of: Of) -> float:
    numbers = [
        max([0, *one.counts.tolist(), *one.aside.values()]) / (one.total if of == "share" else 1)
        for one in found
        if one.total
    ]
    return max(numbers, default=1.0) or 1.0


def _aside_names(source: Source) -> dict[str, str]:
    low, high = source.beyond
    names = ("zero", f"< {words.power(low)}", f"≥ {words.power(high + 1)}", "−∞", "+∞", "NaN")
    return dict(zip(ASIDE, names, strict=True))


def _histogram(
    by_run: Mapping[str, Spectrum],
    slots: Mapping[str, Slot],
    formats: Sequence[NumberFormat],
    frame: Frame,
    names: dict[str, str],
    *,
    style: Style,
    of: Of,
    logarithmic: bool,
) -> look.Plot:
    height = hv.Dimension(f"{of} of elements" if of == "share" else "elements")
    several, parts = len(slots) > 1, list[look.Plot]()
    steps = {one.step for one in by_run.values()}
    for run, one in by_run.items():
        unit, slot = max(one.total, 1) if of == "share" else 1, slots[run]
        inside = style == "bars" and not several
        parts += _bars(one, formats, frame, names, unit, slot, inside=inside)
        if not inside:
            label = f"{run}, step {one.step}" if len(steps) > 1 else run
            parts.append(_outline(one, unit, frame, height, slot, label, smooth=style == "smooth"))
    parts += _edges(formats, frame, height, first=len(slots))
    one = next(iter(by_run.values()))
    text = one.site if len(steps) > 1 else f"{one.site}, step {one.step}"
    text += f", {words.view_name(str(one.view))}" if one.view != "merged" else ""
    text += ", a sample" if any(one.unseen for one in by_run.values()) else ""
    return look.sized(
        hv.Overlay(parts),
        title=text,
        xlim=frame.limits,
        ylim=(frame.floor, frame.top),
        logy=logarithmic,
        xticks=_ticks(frame, names),
        xlabel="|x|",
        ylabel=height.name,
        entries=3 * len(formats) + len(by_run) * several,
    )


def _bars(
    one: Spectrum,
    formats: Sequence[NumberFormat],
    frame: Frame,
    names: dict[str, str],
    unit: int,
    slot: Slot,
    *,
    inside: bool,
) -> list[look.Plot]:
    """A bar for each exponent, by its zone of the format where there is one; and those apart."""
    rows: list[tuple[float, float, float, float, str, int, str]] = []
    if inside:
        zone = zones(one, formats[0]) if len(formats) == 1 else ["normal"] * len(one.counts)
        for low, number, name in zip(
            one.exponents.tolist(), one.counts.tolist(), zone, strict=True
        ):
            what = f"{words.power(low)} ≤ |x| < {words.power(low + 1)}"
            told = f"{what}, {name}" if len(formats) == 1 else what
            rows.append(
                (low, frame.floor, low + 1, max(number / unit, frame.floor), ZONE_COLOURS[name],
                 number, told)
            )  # fmt: skip
    for name, number in one.aside.items():
        if name in (*frame.left, *frame.right):
            wide = frame.spacing * 2 / 3 / slot.of
            left = frame.place(name) + wide * (slot.number - slot.of / 2)
            colour = colours.LIGHT.nonfinite if name in NOT_FINITE else colours.ASIDE
            rows.append(
                (left, frame.floor, left + wide, max(number / unit, frame.floor),
                 slot.colour or colour, number, names[name])
            )  # fmt: skip
    if not rows:  # Matplotlib cannot draw nothing
        return []
    bars = hv.Rectangles(rows, vdims=["colour", "count", "what"])
    tip = look.hover([("", "@what"), ("elements", "@count{0,0}")])
    line = 0.5 if frame.end - frame.start < MOST_OUTLINED else 0.0
    drawn = look.styled(
        bars,
        bokeh={"color": "colour", "line_color": "#ffffff", "line_width": line, "tools": [tip]},
        mpl={"color": "colour", "edgecolor": "#ffffff", "linewidth": line},
    )
    return [drawn]


def _outline(
    one: Spectrum,
    unit: int,
    frame: Frame,
    height: hv.Dimension,
    slot: Slot,
    label: str,
    *,
    smooth: bool,
) -> look.Plot:
    x, y = outline(one, smooth=smooth)
    y = y / unit
    if frame.floor:
        y = np.maximum(y, frame.floor)
    if not len(x):  # which Matplotlib's legend would not name
        x, y = np.array([frame.start]), np.array([np.nan])
    return look.line(x, y, label, colour=slot.colour or colours.NORMAL, dims=(AXIS, height))


def _edges(
    formats: Sequence[NumberFormat], frame: Frame, height: hv.Dimension, *, first: int
) -> list[look.Plot]:
    """A line for each end of a format, its place and number in the legend; `first` is a colour."""
    lines: list[look.Plot] = []
    for number, target in enumerate(formats):
        colour = look.CYCLE[(first + number) % len(look.CYCLE)]
        for name, at in ends(target).items():
            text = edge_words(target, name)
            there = frame.start <= at <= frame.end
            y = [frame.floor, frame.top] if there else [np.nan, np.nan]
            text += "" if there else (" ←" if at < frame.start else " →")
            lines.append(
                look.line([at, at], y, text, colour=colour, dash=look.DASHES[name],
                          dims=(AXIS, height))
            )  # fmt: skip
    return lines


def edge_words(target: NumberFormat, end: str) -> str:
    """An end of a format in words: its power of two, and the number."""
    value = {
        "max": target.max,
        "smallest normal": target.smallest_normal,
        "smallest subnormal": target.smallest_subnormal,
    }[end]
    return f"{target.name} {end} {words.as_power(value)} = {words.exact(value)}"


def _ticks(frame: Frame, names: dict[str, str]) -> list[tuple[float, str]]:
    numbers = [(float(at), words.power(at)) for at in range(frame.start + 1, frame.end)]
    apart = [(frame.place(name), names[name]) for name in (*frame.left, *frame.right)]
    return [*look.sparse(numbers, 9), *apart]


def exponent_heatmap(
    data: Data,
    *,
    site: Many = None,
    kind: Many = None,
    name: str | None = None,
    steps: tuple[int, int] | None = None,
    formats: Formats = None,
    width: int = 800,
    columns: int = 1,
    training: Training = "",
) -> look.Plot:
    """Which exponents a tensor had over its whole life: the share of its elements, by step.

    A diamond on top marks steps with non-finite elements; hatched is what was not observed.
    A plot for each site that is chosen.

    Args:
        data: a run, or a LogFrame.
        site: labels.
        kind: only these kinds; activations by default, unless `site` or `name` is given.
        name: only sites in whose name this regular expression is found.
        steps: first and last step; all by default.
        formats: whose ends are drawn, as in `exponent_histogram`.
        width: columns at most; neighbouring steps are added up.
        columns: how many plots stand in a row.
        training: a training statistic to draw below.

    Raises:
        SettingError: nothing matches.
    """
    source = source_of(data)
    lives = [source.life(one, steps=steps, width=width) for one in chosen(source, site, kind, name)]
    drawn = [_formats(source, life.site, formats) for life in lives]
    rows = _rows(lives, drawn, explicit=formats is not None)
    across = look.WIDE if columns == 1 else look.WIDTH
    plots = [_life(life, some, rows, across) for life, some in zip(lives, drawn, strict=True)]
    plot = look.facets(plots, columns=columns, shared=True, width=across)
    ends = lives[0].grid.left, lives[0].grid.right
    return alongside(plot, source, training, steps=steps, width=across, ends=ends)


def _rows(
    lives: Sequence[Life], drawn: Sequence[Sequence[NumberFormat]], *, explicit: bool
) -> tuple[int, int]:
    """The lowest and the highest exponent of pictures side by side."""
    low, high = min(one.low for one in lives) - 1, max(one.high + 1 for one in lives) + 1
    start, end = low, high
    for edge in (at for some in drawn for target in some for at in ends(target).values()):
        if explicit or low - NEAR <= edge <= high + NEAR:
            start, end = min(start, floor(edge) - 1), max(end, ceil(edge) + 1)
    return start, end


def _life(
    life: Life, formats: Sequence[NumberFormat], rows: tuple[int, int], across: int
) -> look.Plot:
    (low, high), grid = rows, life.grid
    bounds = (grid.left, float(life.low), grid.right, float(life.high + 1))
    share = hv.Dimension("share", label="share of elements", range=(_least(life), 1.0))
    filled = np.where(life.share > 0, life.share, np.nan)
    cells = hv.Image(filled[::-1], bounds=bounds, kdims=[STEP, AXIS], vdims=[share])
    tip = look.hover([("step", "$x{0}"), ("|x|", "2^$y{0}"), ("share of elements", "@image")])
    cells = look.styled(
        cells, bokeh={"tools": [tip]}, mpl={"hooks": [look.bar_beside]}, cmap=colours.LIGHT.ramp,
        cnorm="log", colorbar=True,
    )  # fmt: skip
    parts: list[look.Plot] = [*_unseen(life, low, high), cells]
    wrong = np.flatnonzero(life.nonfinite)
    if wrong.size:
        at = grid.left + (wrong + 0.5) * grid.stride
        top = np.full(len(at), high - 0.5)
        bad = colours.LIGHT.nonfinite
        parts.append(look.marks(at, top, "non-finite", colour=bad, dims=(STEP, AXIS)))
    for number, target in enumerate(formats):
        colour = look.CYCLE[1 + number % (len(look.CYCLE) - 1)]
        for name, edge in ends(target).items():
            if low <= edge <= high:
                parts.append(
                    look.line([grid.left, grid.right], [edge, edge], edge_words(target, name),
                              colour=colour, dash=look.DASHES[name], dims=(STEP, AXIS))
                )  # fmt: skip
    ticks = [(float(at), words.power(at)) for at in range(low, high + 1)]
    empty = "" if (life.share > 0).any() else ": no element is in a bin"
    return look.sized(
        hv.Overlay(parts), width=across, title=f"{life.site}{empty}", ylim=(low, high),
        xlabel="step", ylabel="|x|", yticks=look.sparse(ticks, 12), xlim=(grid.left, grid.right),
        entries=sum(bool(part.label) for part in parts),
    )  # fmt: skip


def _least(life: Life) -> float:
    seen = life.share[life.share > 0]
    return float(min(seen.min(), 0.5)) if seen.size else 1e-3


def _unseen(life: Life, low: int, high: int) -> list[look.Plot]:
    """White where it was observed, hatched where it was not."""
    grid = life.grid
    parts = [look.hatch(grid.left, low, grid.right, high, (STEP, AXIS))]
    seen = np.flatnonzero((grid.first >= 0) & (life.total > 0))
    rows = [(grid.left + at * grid.stride, low, grid.left + (at + 1) * grid.stride, high)
            for at in seen]  # fmt: skip
    cells = hv.Rectangles(rows, kdims=[STEP, AXIS, "step end", "exponent end"])
    parts.append(
        look.styled(
            cells,
            bokeh={"color": colours.LIGHT.surface, "line_color": None},
            mpl={"facecolor": colours.LIGHT.surface, "linewidth": 0},
        )
    )
    return parts
