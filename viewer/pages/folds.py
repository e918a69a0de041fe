"""Which modules of the map are folded: one at a time, or all to a depth."""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple, Protocol, runtime_checkable

import param

from .. import markup, modules
from ..grid import Grid
from ..session import Session
from .page import Drawn


class Made(NamedTuple):
    """What the rows are of."""

    of: tuple[str, str, int] = ("", "", 0)
    """Kind, pattern, and how many sites the run has."""
    fold: str = ""


class Told(param.Parameterized):
    """What is said of it."""

    beside = param.String(doc="HTML: the modules beside their rows.")
    levels = param.Dict(
        {"as fits": ""}, doc="What can be chosen as `Choice.fold`, by what a menu says."
    )
    level = param.String(doc="The one that is chosen.")


class Folds:
    """The rows of the sites that are chosen by kind and name, under `Choice.fold`."""

    def __init__(self, session: Session) -> None:
        self.session, self.told = session, Told()
        self.root = modules.tree_of({})
        self.levels = modules.levels_of(self.root)
        self.rows: list[modules.Row] = []
        self._made = Made()
        self._drawn = Drawn()

    @property
    def folding(self) -> modules.Folding:
        """What is folded, with the depth that fits where none is chosen."""
        chosen = modules.Folding.read(self.session.choice.fold)
        return chosen if chosen.depth is not None else modules.Folding(depth=self.fitting)

    @property
    def fitting(self) -> int:
        """The depth that fits."""
        return modules.fitting(self.levels)

    def load(self) -> list[modules.Row]:
        """The rows to ask for.

        Raises:
            SettingError: no site is chosen.
        """
        choice = self.session.choice
        # A run's sites grow in number, and never change.
        of = choice.kind, choice.pattern, len(self.session.follower.sites())
        if of != self._made.of:
            sites = self.session.run.sites(kind=choice.kind, name=choice.pattern or None)
            self.root = modules.tree_of(dict(zip(sites.index, sites["name"], strict=True)))
            self.levels = modules.levels_of(self.root)
        if (of, choice.fold) != self._made:
            self.rows = list(modules.rows_of(self.root, self.folding))
            self._made = Made(of, choice.fold)
        return self.rows

    def tell(self, shown: Grid, *, height: int) -> None:
        """Tell the modules beside the rows that are shown, in a frame so many pixels high."""
        if not self._drawn.due("told", self._made, shown.row_sites, height):
            return
        brackets = modules.brackets_of(self.root, self.folding, shown.row_sites)
        self.told.beside = markup.modules(brackets, rows=len(shown.row_sites), height=height)
        fits = next(level for level in self.levels if level.depth == self.fitting)
        menu = {markup.level(fits, "as fits"): ""}
        menu |= {markup.level(one): str(one.depth) for one in self.levels}
        chosen = self.session.choice.fold
        if chosen not in menu.values():
            menu[modules.in_words(chosen)] = chosen
        self.told.param.update(levels=menu, level=chosen)

    # What the user does.

    def choose(self, level: str) -> None:
        """Fold as one of the levels says."""
        self.session.choice.fold = level

    def toggle(self, path: str) -> None:
        """Fold a module that is unfolded, or the other way round."""
        found = modules.module_at(self.root, path)
        if found is not None:
            self.session.choice.fold = self.folding.touched(found).write()

    def fold(self) -> None:
        """Fold the module around the selected site; where none is selected, all by a level."""
        above = modules.path_to(self.root, self.session.choice.site)
        unfolded = list(takewhile(lambda module: not self.folding.folds(module), above))
        if unfolded:
            self.toggle(unfolded[-1].path)
        elif not above:
            self._to_level(1)

    def unfold(self) -> None:
        """Unfold the module in whose row the selected site is; where there is none, all."""
        above = modules.path_to(self.root, self.session.choice.site)
        folded = [module for module in above if self.folding.folds(module)]
        if folded:
            self.toggle(folded[0].path)
        elif not above:
            self._to_level(-1)

    def _to_level(self, by: int) -> None:
        """So many levels further from the sites."""
        depths = [level.depth for level in self.levels]
        at = depths.index(self.folding.depth) if self.folding.depth in depths else 0
        to = min(max(at + by, 0), len(depths) - 1)
        self.session.choice.fold = modules.Folding(depth=depths[to]).write()


@runtime_checkable
class WithFolds(Protocol):
    """A page whose modules can be folded."""

    folds: Folds
