"""One open page: what is chosen, the figures that show it, and the texts beside them.

It asks the store, prepares, and brings figures and texts up to date. It knows no Panel and no
clock: both are given to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from bokeh.events import RangesUpdate, Reset
from bokeh.models import Range1d
from numpy.typing import NDArray

from ..sketch.derive import MAIN
from ..sketch.errors import RankscopeError
from . import findings, grid, markup, series, words
from .figures import HeatmapFigure, LinesFigure, colours, look
from .findings import Card
from .follow import Follower
from .selection import Selection
from .state import Choice, Told

RESIZED_PX = 8
"""A frame that changed by less keeps its cells."""


class Page:
    """The figures and texts for one `Choice` on one run."""

    def __init__(
        self,
        follower: Follower,
        choice: Choice,
        *,
        now: Callable[[], float],
        later: Callable[[Callable[[], None]], None] = lambda call: call(),
        index: bool = False,
    ) -> None:
        """Build the figures and show what is chosen.

        Args:
            follower: the run, shared with other pages.
            choice: what to look at; empty parts get their defaults here.
            now: seconds since 1970.
            later: runs a call when the user has paused, in place of one that waits already.
            index: whether there is a list of runs to go back to.
        """
        self.follower, self.run, self.choice = follower, follower.run, choice
        self.told = Told()
        self._now, self._later, self._index = now, later, index
        self.steps = Range1d(start=0, end=1)
        self._build()
        self._version = follower.version
        self._limits: tuple[object, colours.Limits] | None = None
        self._size = self.heatmap.size()
        with follower.lock:
            self._defaults()
            self.show()
        self._watch()

    def _build(self) -> None:
        self.crosshair, self.pinned = look.crosshair(), look.pinned()
        lines: dict[str, Any] = {
            "steps": self.steps,
            "crosshair": self.crosshair,
            "pinned": self.pinned,
        }
        self.training = LinesFigure("training", **lines, height=130)
        self.heatmap = HeatmapFigure(**lines)
        self.ranks = LinesFigure("ranks", **lines, height=150)
        self.selection = Selection(self.follower, self.choice, self.told, self.ranks)
        self.training.figure.xaxis.major_label_text_font_size = "0px"
        for fig in (self.training.figure, self.heatmap.figure, self.ranks.figure):
            fig.on_event(RangesUpdate, self._zoomed)
            fig.on_event(Reset, self._reset)
        self.heatmap.on_cell(self.select)
        self.training.on_step(lambda x: self._step_at(x, self._steps()))
        self.ranks.on_step(lambda x: self._step_at(x, self._drawn_steps()))
        for side in ("inner_width", "inner_height"):
            self.heatmap.figure.on_change(side, self._measured)

    def _watch(self) -> None:
        watch = self.choice.param.watch
        watch(
            lambda *_: self._locked(self.show_grid),
            ["kind", "statistic", "view", "pattern", "scale", "zoom"],
        )
        watch(
            lambda *_: self._locked(self.show_selection),
            ["site", "step", "format", "statistic", "view"],
        )
        watch(lambda *_: self._locked(self.show_training), ["training"])

    def _locked(self, call: Callable[[], None]) -> None:
        with self.follower.lock:
            call()

    # What can be chosen.

    @property
    def statistics(self) -> list[str]:
        """The statistics that the store keeps ready."""
        return list(MAIN)

    @property
    def world_size(self) -> int:
        """Ranks of the latest attempt."""
        sizes = self.follower.attempts()["world_size"]
        return int(sizes.iloc[-1]) if len(sizes) else 0

    def _options(self) -> None:
        """Tell what can be chosen now."""
        self.told.param.update(
            kinds=list(dict.fromkeys(self.follower.sites()["kind"])),
            views=[*words.VIEWS, *self.run.groups, *map(str, range(self.world_size))],
            names=series.training_names(self.run),
        )

    def _defaults(self) -> None:
        """Fill what the address left open: the first finding in a site, else the first kind."""
        self._options()
        choice, kinds, names = self.choice, self.told.kinds, self.told.names
        if not choice.site and choice.step is None and not choice.kind:
            found = next((one for one in self._cards() if one.site), None)
            if found is not None:
                choice.param.update(site=found.site, step=found.step)
        if choice.site and not choice.kind:
            choice.kind = choice.site.partition(":")[0]
        if not choice.kind and kinds:
            choice.kind = "activation" if "activation" in kinds else kinds[0]
        if not choice.training and names:
            choice.training = names[0]

    # What the user does.

    def select(self, row: int, column: int) -> None:
        """Select a cell; of several sites and steps in it, the worst."""
        shown = self.heatmap.grid
        if shown is None or shown.first[column] < 0:
            return
        with self.follower.lock:
            site, step = grid.worst_of(
                self.run,
                sites=shown.row_sites[row],
                first=int(shown.first[column]),
                last=int(shown.last[column]),
                statistic=self.choice.statistic,
                view=self.choice.view,
            )
        self.choice.param.update(site=site, step=step)

    def select_finding(self, number: int) -> None:
        """Go to the site of a finding, if it is of one, and the step in which it began.

        Args:
            number: its place in `told.cards`.
        """
        if number >= len(self.told.cards):
            return
        found: Card = self.told.cards[number]
        if found.site:
            self.choice.param.update(kind=found.site.partition(":")[0], pattern="", zoom=None)
            self.choice.param.update(site=found.site, step=found.step)
        else:
            self.choice.param.update(step=found.step, zoom=None)

    def move(self, by: int) -> None:
        """Select the next step that has the statistic, or the one before."""
        steps = self._drawn_steps()
        if not len(steps):
            return
        at = len(steps) - 1
        if self.choice.step is not None:
            side = "right" if by > 0 else "left"
            at = int(np.searchsorted(steps, self.choice.step, side)) + (by - 1 if by > 0 else by)
        self.choice.step = int(steps[np.clip(at, 0, len(steps) - 1)])

    def clear(self) -> None:
        """Select nothing."""
        self.choice.param.update(site="", step=None)

    def whole(self) -> None:
        """Show all steps, and new ones as they come."""
        self.choice.zoom = None

    def _step_at(self, x: float, steps: NDArray[np.int64]) -> None:
        if len(steps):
            self.choice.step = int(steps[np.abs(steps - x).argmin()])

    def _zoomed(self, event: RangesUpdate) -> None:
        if event.x0 is None or event.x1 is None:
            return
        start, end = float(event.x0), float(event.x1)

        def zoom() -> None:
            left, right = self._whole()
            covers = start <= left + 0.01 and end >= right - 0.01
            self.choice.zoom = None if covers else (round(start, 2), round(end, 2))

        self._later(zoom)

    def _reset(self, event: Reset) -> None:
        self._later(self.whole)

    def _measured(self, attr: str, old: object, new: object) -> None:
        self._later(self._resized)

    def _resized(self) -> None:
        size = self.heatmap.size()
        if max(abs(size[0] - self._size[0]), abs(size[1] - self._size[1])) > RESIZED_PX:
            self._size = size
            self._locked(self.show_grid)

    def tick(self) -> None:
        """Show what is new; the age of the last step in any case."""
        with self.follower.lock:
            if self._version != self.follower.version:
                self._version = self.follower.version
                self._defaults()
                self.show()
            else:
                self._tell_header()

    # What is shown.

    def show(self) -> None:
        """Bring everything up to date."""
        self._tell_header()
        self._tell_findings()
        self.show_training()
        self.show_grid()
        self.show_selection()

    def show_training(self) -> None:
        """Draw the chosen training statistic, loudly the rank that the first finding blames."""
        wrong = next((one.ranks[0] for one in self.told.cards if one.ranks), None)
        lines = replace(series.load_training(self.run, self.choice.training), worst=wrong)
        self.training.show(lines)
        self.told.training_summary = markup.summary(series.describe(lines))

    def show_grid(self) -> None:
        """Paint the heatmap."""
        choice = self.choice
        try:
            shown = self._load_grid()
        except re.error as error:
            self.told.problem = f"The name filter is no regular expression: {error}."
            return
        except RankscopeError as error:
            self.told.problem = str(error)
            return
        self.told.problem = ""
        if shown is None:
            self.told.problem = "No site has been recorded yet."
            return
        limits = self._stick(shown)
        self.heatmap.figure.height = int(np.clip(len(shown.names) * 16, 160, 400)) + 46
        self.heatmap.show(shown, limits, statistic=choice.statistic)
        self._follow()
        self._outline()
        what = f"{choice.statistic} of {markup.kind_name(choice.kind)}s"
        told = {
            "heatmap": markup.title(what, words.view_name(choice.view)),
            "legend": markup.legend(limits, logarithmic=shown.logarithmic, view=choice.view),
            "heatmap_summary": markup.summary(
                grid.describe(shown, statistic=choice.statistic, kind=choice.kind, view=choice.view)
            ),
        }
        self.told.param.update(**told)

    def _load_grid(self) -> grid.Grid | None:
        choice = self.choice
        re.compile(choice.pattern)
        if not choice.kind:
            return None
        width, height = self._size
        return grid.load_grid(
            self.run,
            statistic=choice.statistic,
            kind=choice.kind,
            pattern=choice.pattern,
            view=choice.view,
            scale=choice.scale,
            steps=self._zoom(),
            recorded=self._drawn_steps(),
            width=width,
            height=height,
        )

    def _zoom(self) -> tuple[float, float] | None:
        zoom = self.choice.zoom
        return None if zoom is None else (zoom[0], zoom[1])

    def _stick(self, shown: grid.Grid) -> colours.Limits:
        """Limits that stay while the same thing is looked at."""
        choice = self.choice
        key = (choice.kind, choice.statistic, choice.view in grid.RANK_VIEWS, shown.logarithmic)
        new = colours.limits(shown.usual(), diverging=shown.signed)
        if choice.view in grid.RANK_VIEWS:
            new = colours.Limits(low=0, high=max(1, self.world_size - 1), ranks=True)
        old = self._limits[1] if self._limits is not None and self._limits[0] == key else None
        limits = colours.stick(old, new)
        self._limits = (key, limits)
        return limits

    def _follow(self) -> None:
        """Set the visible steps, where they are not what the user zoomed to already."""
        start, end = self._zoom() or self._whole()
        if (self.steps.start, self.steps.end) != (start, end):
            self.steps.update(start=start, end=end)
        left, right = self._whole()
        if (self.steps.reset_start, self.steps.reset_end) != (left, right):
            self.steps.update(reset_start=left, reset_end=right)

    def _outline(self) -> None:
        choice, shown = self.choice, self.heatmap.grid
        if choice.step is not None:
            self.pinned.location = choice.step
        self.pinned.visible = choice.step is not None
        row = column = None
        if shown is not None and choice.site and choice.step is not None:
            row, column = shown.row(choice.site), shown.column(choice.step)
        self.heatmap.outline(row, column)

    def show_selection(self) -> None:
        """Draw the selected site at the selected step."""
        self._outline()
        try:
            self.selection.show()
        except RankscopeError as error:
            self.told.problem = str(error)

    # What the run says of itself.

    def _tell_header(self) -> None:
        records = self.follower.records()
        # The one appended last: after a rewind that is not the highest step.
        last = records.loc[records.index.max()] if len(records) else None
        self.told.header = markup.header(
            run=self.run.name,
            attempt=len(self.follower.attempts()) - 1 if last is None else int(last["attempt"]),
            finished=bool(self.run.finished),
            step=None if last is None else int(last["step"]),
            age_s=0.0 if last is None else max(self._now() - last["time"].timestamp(), 0.0),
            present=0 if last is None else int(last["ranks"]),
            missing=[] if last is None else last["missing"],
            index=self._index,
        )

    def _tell_findings(self) -> None:
        why, bad = self.follower.why(), self.follower.unjudged()
        self.told.param.update(
            state=findings.state(why, bad, looked=self._looked()),
            cards=self._cards(),
            grounds=findings.grounds(why),
            events=markup.events(self.run.events(), now_s=self._now()),
        )

    def _cards(self) -> list[Card]:
        why, bad = self.follower.why(), self.follower.unjudged()
        return findings.cards(why, bad, attempts=len(self.follower.attempts()))

    def _looked(self) -> str:
        """At how much of the run, in words; empty if nothing has been recorded."""
        steps = self._steps()
        if not len(steps):
            return ""
        sites = words.count(len(self.follower.sites()), "site")
        ranks = words.count(self.world_size, "rank")
        return f"{sites} × {ranks} over steps {steps[0]}–{steps[-1]}"

    def _steps(self) -> NDArray[np.int64]:
        return np.unique(np.asarray(self.follower.records()["step"], np.int64))

    def _drawn_steps(self) -> NDArray[np.int64]:
        """The steps that may have the chosen statistic."""
        return grid.recorded_steps(self.follower.records(), self.choice.statistic)

    def _whole(self) -> tuple[float, float]:
        """The range that holds all steps, be they in the heatmap or left to the sentinel."""
        shown, steps = self.heatmap.grid, self._steps()
        left, right = (float(steps[0]), float(steps[-1])) if len(steps) else (0.0, 0.0)
        left, right = left - 0.5, right + 0.5
        if self.choice.zoom is None and shown is not None:
            return min(left, shown.left), max(right, shown.right)
        return left, right
