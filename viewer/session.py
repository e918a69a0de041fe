"""What all pages of one session share: the run, what is chosen, the step axis, the clock.

It knows no page, no Panel and no clock: page, user and time come from outside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import param
from bokeh.events import RangesUpdate, Reset
from bokeh.models import Range1d
from numpy.typing import NDArray

from ..sketch.derive import MAIN
from . import findings, grid, series, words
from .beside import FULL, MOST
from .choosing import Choosing
from .figures import Crosshair, colours, look
from .findings import Card
from .follow import Follower
from .pipeline import intervals
from .state import Choice

if TYPE_CHECKING:
    from ..store import Run


Move = Literal["first", "previous", "next", "last"]
MOST_OTHERS = 3
"""Runs beside this one: the lines and maps of more could not be told apart."""
RECENT = 50
"""What was found in as many of the last records is called now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """The other runs that this reader may see."""

    names: Callable[[], Sequence[str]] = lambda: ()
    """Names of their folders, the latest first."""
    find: Callable[[str], Follower | None] = lambda name: None
    """What follows one of them."""


class Options(param.Parameterized):
    """What can be chosen now."""

    kinds = param.List(item_type=str)
    others = param.List(item_type=str, doc="Folders of the runs to compare with.")
    views = param.List(item_type=str)
    names = param.List(item_type=str, doc="The training statistics.")
    refused = param.String(doc="Plain text: why a site was not put beside; empty if it was.")


class Session:
    """A run as one reader looks at it: every page shows this `Choice`, on this step axis."""

    def __init__(
        self,
        follower: Follower,
        choice: Choice,
        *,
        now: Callable[[], float],
        later: Callable[[Callable[[], None]], None] = lambda call: call(),
        gather: Callable[[Callable[[], None]], None] = lambda call: call(),
        index: bool = False,
        others: Others | None = None,
    ) -> None:
        """Fill what the choice left open.

        Args:
            follower: the run, shared with other sessions.
            choice: what to look at; empty parts get their defaults here.
            now: seconds since 1970.
            later: runs a call when the user has paused, in place of one that waits already.
            gather: runs a call soon, once however often it is asked for until then.
            index: whether there is a list of runs to go back to.
            others: what it can be compared with.
        """
        self._others = others or Others()
        self.in_folder = False
        """Whether a folder of runs is open, and not this run alone."""
        self.live = self.follower = follower
        """What follows the run, and what answers: another one while the session stands still."""
        self.choice = choice
        self.now, self.later, self.index = now, later, index
        self._gather, self._scrubbed = gather, 0
        self._cards: tuple[tuple[Follower, int], list[Card]] | None = None
        self.options = Options()
        self.steps = Range1d(start=0, end=1)
        """The visible steps of every figure that has a step axis."""
        self._all = (0.0, 1.0)
        self.theme = colours.THEMES[choice.theme]
        self.crosshair, self.pinned = Crosshair(self.theme), look.pinned(self.theme)
        with follower.lock:
            self.defaults()
        self._land()
        self._pin()
        choice.param.watch(lambda *_: self._land(), ["site"])
        choice.param.watch(lambda *_: self._pin(), ["step"])

    def defaults(self) -> None:
        """Tell what can be chosen, and fill what the address left open.

        That is the first finding in a site, else the first kind.
        """
        self._tell_options()
        choice, kinds, names = self.choice, self.options.kinds, self.options.names
        is_open = not choice.site and choice.step is None and not choice.kind
        if is_open and (found := self.proposed()) is not None:
            choice.param.update(site=found[0], step=found[1])
        if choice.site and not choice.kind:
            choice.kind = choice.site.partition(":")[0]
        if not choice.kind and kinds:
            choice.kind = "activation" if "activation" in kinds else kinds[0]
        if not choice.training and names:
            choice.training = names[0]

    def _land(self) -> None:
        """Select the last step with the statistic, where a site is selected and no step is."""
        if not self.choice.site or self.choice.step is not None:
            return
        with self.follower.lock:
            records = self.follower.records()
            # The record after training has the weights alone.
            steps = grid.recorded_steps(records.loc[~records["final"]], self.choice.statistic)
        if len(steps):
            self.choice.step = int(steps[-1])

    def _tell_options(self) -> None:
        self.options.param.update(
            kinds=self.follower.sites()["kind"].unique().tolist(),
            views=[*words.VIEWS, *self.run.groups, *map(str, range(self.world_size))],
            names=self.follower.training_names(),
        )

    # The run.

    @property
    def run(self) -> Run:
        """The run, as of the snapshot that is shown."""
        return self.follower.run

    @property
    def title(self) -> str:
        """The run's name, and the folder of runs that it lies in: two stores may have one name."""
        return f"{self.run.name} in {words.place(self.run.path.parent)}"

    def tell_others(self) -> None:
        """Tell which runs there are to compare with."""
        own, names = self.run.path.name, self._others.names()
        self.in_folder = bool(names)
        self.options.others = [name for name in names if name != own]

    def others(self) -> list[Follower]:
        """The runs to compare with: the chosen one, else the latest, and those beside it."""
        names = self.options.others
        chosen = [self.choice.other or (names[0] if names else ""), *self.choice.also]
        found = [self._others.find(name) for name in dict.fromkeys(chosen) if name]
        return [one for one in found if one not in (None, self.live)][:MOST_OTHERS]

    @property
    def paused(self) -> bool:
        """Whether the session stands still, at the snapshot at which it was told to."""
        return self.follower is not self.live

    def pause(self) -> None:
        """Stand still: all that is shown or asked from now on is of the present snapshot."""
        self.follower = self.live.standing()

    def resume(self) -> None:
        """Follow the run again."""
        self.follower = self.live

    @property
    def statistics(self) -> list[str]:
        """The statistics that the store keeps ready."""
        return list(MAIN)

    @property
    def world_size(self) -> int:
        """Ranks of the latest attempt."""
        sizes = self.follower.attempts()["world_size"]
        return int(sizes.iloc[-1]) if len(sizes) else 0

    def recorded(self) -> NDArray[np.int64]:
        """int64 [steps]: all that have a record, ascending."""
        return self.follower.steps()

    def drawn(self) -> NDArray[np.int64]:
        """int64 [steps]: those that may have the chosen statistic, ascending."""
        return self.follower.steps_with(self.choice.statistic)

    def choosing(self) -> Choosing:
        """What finds sites."""
        return self.follower.choosing()

    def record_of(self, step: int | None) -> tuple[int | None, ...]:
        """What changes when the record of a step is patched or superseded."""
        records = self.follower.records()
        found = np.flatnonzero(records["step"] == step)
        if not len(found):
            return (step,)
        facts = ("attempt", "ranks", "sites")
        return (step, *(int(records[fact].iloc[found[0]]) for fact in facts))

    def cards(self) -> list[Card]:
        """The findings, what goes on and is worst first."""
        snapshot = self.follower, self.follower.version
        if self._cards is None or self._cards[0] != snapshot:
            self._cards = snapshot, findings.cards(self.follower.why(), since=self.since())
        return self._cards[1]

    def proposed(self) -> tuple[str, int] | None:
        """Site and step of the first finding in a site, which is where one lands."""
        return next(((one.site, one.step) for one in self.cards() if one.site), None)

    def training(self) -> series.Lines:
        """The chosen training statistic; the rank to look at is the first that is blamed."""
        return replace(self.follower.training(self.choice.training), worst=self.blamed())

    def interval_s(self) -> float | None:
        """What usually is between two records of the run, as it is live; None if nobody can say."""
        between = intervals(self.live.records())
        return float(np.median(between)) if len(between) else None

    def recent(self) -> NDArray[np.int64]:
        """int64 [steps]: those of the last attempt's last records, in the order of recording."""
        records = self.follower.records()
        is_last = records["attempt"].to_numpy() == len(self.follower.attempts()) - 1
        order = np.argsort(records.index.to_numpy()[is_last])
        return records["step"].to_numpy(np.int64)[is_last][order][-RECENT:]

    def since(self) -> findings.Since:
        """From where on the run is called now."""
        recent = self.recent()
        return findings.Since(
            attempt=len(self.follower.attempts()) - 1,
            step=int(recent.min()) if len(recent) else 0,
            newest=int(recent.max()) if len(recent) else -1,
        )

    def blamed(self) -> int | None:
        """The rank that the first finding that blames any blames."""
        return next((one.ranks[0] for one in self.cards() if one.ranks), None)

    # What the user does.

    def visit(self, page: str) -> None:
        """Go to a page."""
        self.choice.page = page

    def open(self, site: str, step: int | None) -> None:
        """Go to a tensor at a step, and make the map show its neighbours."""
        kind = site.partition(":")[0]
        self.choice.param.update(page="tensor", kind=kind, site=site, step=step)

    def choose(self, row: str) -> None:
        """Select what a row of a table is of, and stay on the page.

        Args:
            row: JSON: a site, and a step if there is one, as `tables.name_of` wrote them.
        """
        asked = json.loads(row)
        site, step = str(asked["site"]), asked.get("step")
        self.choice.param.update(
            kind=site.partition(":")[0],
            site=site,
            step=self.choice.step if step is None else int(step),
        )

    def select_site(self, site: str) -> None:
        """Select a site, and stay at the step."""
        self.choice.param.update(kind=site.partition(":")[0], site=site)

    def move_site(self, by: int) -> None:
        """Select the next site of its kind in the order of execution, or the one before."""
        site = self.choosing().neighbour(self.choice.site, by)
        if site:
            self.select_site(site)

    def put_beside(self, site: str) -> None:
        """Put a site beside the selected one, or take it away; no more than can be told apart."""
        beside = self.choice.beside
        if site in beside:
            beside = [one for one in beside if one != site]
        elif len(beside) < MOST:
            beside = [*beside, site]
        self.options.refused = "" if beside != self.choice.beside else FULL
        self.choice.beside = beside

    def select_cell(self, shown: grid.Grid | None, row: int, column: int, **asked: Any) -> None:
        """Select a cell of a map; of several sites and steps in it, the worst.

        Args:
            shown: the map.
            row, column: of the cell.
            asked: `run` and `view`, as `grid.worst_of` takes them.
        """
        if shown is None or shown.first[column] < 0:
            return
        with self.follower.lock:
            site, step = grid.worst_of(
                sites=shown.row_sites[row],
                first=int(shown.first[column]),
                last=int(shown.last[column]),
                statistic=self.choice.statistic,
                **asked,
            )
        self.choice.param.update(site=site, step=step)

    def select_at(self, x: float, steps: NDArray[np.int64]) -> None:
        """Select the nearest of some steps."""
        if len(steps):
            self.choice.step = int(steps[np.abs(steps - x).argmin()])

    def scrub(self, step: int) -> None:
        """Select a step while a slider is dragged: of many in a short time the last."""
        self._scrubbed = step
        self._gather(self._select_scrubbed)

    def _select_scrubbed(self) -> None:
        self.choice.step = self._scrubbed

    def move(self, by: int) -> None:
        """Select the next step that has the statistic, or the one before."""
        steps = self.drawn()
        if not len(steps):
            return
        at = len(steps) - 1
        if self.choice.step is not None:
            side = "right" if by > 0 else "left"
            at = int(np.searchsorted(steps, self.choice.step, side)) + (by - 1 if by > 0 else by)
        self.choice.step = int(steps[np.clip(at, 0, len(steps) - 1)])

    def alert_steps(self) -> NDArray[np.int64]:
        """int64 [steps]: those in which an alert at the selected site began or ended, ascending."""
        return self.follower.alert_steps(self.choice.site)

    def to_alert(self, which: Move) -> None:
        """Select a step in which an alert at the selected site began or ended."""
        steps = self.alert_steps()
        step = self.choice.step
        if step is not None and which in ("previous", "next"):
            steps = steps[steps < step][-1:] if which == "previous" else steps[steps > step][:1]
        if len(steps):
            self.choice.step = int(steps[-1 if which == "last" else 0])

    def clear(self) -> None:
        """Select nothing."""
        self.choice.param.update(site="", step=None)

    def back(self) -> None:
        """What Escape does: from a page to the map, and there to nothing selected."""
        if self.choice.page == "map":
            self.clear()
        else:
            self.visit("map")

    # The step axis.

    def axis(self) -> dict[str, Any]:
        """What a figure takes that has it: `steps`, `crosshair`, `pinned`, `theme`."""
        return {
            "steps": self.steps,
            "crosshair": self.crosshair.line,
            "pinned": self.pinned,
            "theme": self.theme,
        }

    def on_axis(self, *figures: look.Figure) -> None:
        """Let a drag or the reset tool of these figures change the steps that all show.

        The cross-hair of all moves with the mouse over any of them.
        """
        self.crosshair.follow(*figures)
        for figure in figures:
            figure.on_event(RangesUpdate, self._zoomed)
            figure.on_event(Reset, lambda _: self.later(self.show_all_steps))

    def show_all_steps(self) -> None:
        """Show all steps, and new ones as they come."""
        self.choice.zoom = None

    @property
    def zoom(self) -> tuple[float, float] | None:
        """The steps that the user zoomed to."""
        zoom = self.choice.zoom
        return None if zoom is None else (zoom[0], zoom[1])

    @property
    def steps_in_view(self) -> tuple[int, int] | None:
        """The first and last step that the user zoomed to; between two steps the nearer one."""
        if self.zoom is None:
            return None
        first, last = ceil(self.zoom[0]), floor(self.zoom[1])
        return (first, last) if first <= last else (nearest := round(sum(self.zoom) / 2), nearest)

    def follow(self, left: float = inf, right: float = -inf) -> None:
        """Make the steps visible that are zoomed to, else all, and as far as a page draws."""
        self._all = whole = self._whole(left, right)
        start, end = self.zoom or whole
        if (self.steps.start, self.steps.end) != (start, end):
            self.steps.update(start=start, end=end)
        if (self.steps.reset_start, self.steps.reset_end) != whole:
            self.steps.update(reset_start=whole[0], reset_end=whole[1])

    def _whole(self, left: float, right: float) -> tuple[float, float]:
        steps = self.recorded()
        first, last = (float(steps[0]), float(steps[-1])) if len(steps) else (0.0, 0.0)
        return min(first - 0.5, left), max(last + 0.5, right)

    def _zoomed(self, event: RangesUpdate) -> None:
        if event.x0 is None or event.x1 is None:
            return
        start, end = float(event.x0), float(event.x1)

        def zoom() -> None:
            left, right = self._all
            covers = start <= left + 0.01 and end >= right - 0.01
            self.choice.zoom = None if covers else (round(start, 2), round(end, 2))

        self.later(zoom)

    def _pin(self) -> None:
        """Draw the line at the selected step."""
        if self.choice.step is not None:
            self.pinned.location = self.choice.step
        self.pinned.visible = self.choice.step is not None
