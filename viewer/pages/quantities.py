"""Quantities: what was derived of modules and parameters, over steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pandas as pd
import param

from ...sketch.errors import SettingError
from .. import beside, markup, quantities, series, site_lists, words
from ..curves import Curves
from ..figures import HeatmapFigure, QuantityFigure, VectorFigure, colours, looks_of
from ..quantities import Part, Vector
from ..session import Session
from ..twins import grid_table, lines_table
from .fitted import Fitted
from .page import Drawn
from .training import Training
from .twins import Twin, Twins

NONE = (
    "No quantity was derived in this run. Ask for some where it is observed, as "
    '`observe(…, quantities={"Linear": ["input_cov_max_eig"]})`.'
)


class Told(param.Parameterized):
    """The texts of the page, each as HTML unless said otherwise."""

    names = param.List([""], item_type=str, doc="The quantities there are; empty: the first.")
    modules = param.List([""], item_type=str, doc="What a vector is of; empty: the first.")
    shown = param.String(doc="`lines`, `vector`, or empty.")
    problem = param.String(doc="Plain text: what cannot be shown, and why.")
    title = param.String()
    legend = param.String()
    summary = param.String()


class Quantities:
    """A quantity of modules or parameters: lines over steps; of a vector a heatmap."""

    name: ClassVar[str] = "quantities"
    title: ClassVar[str] = "Quantities"
    watched: ClassVar[Sequence[str]] = (
        "quantity", "module", "pattern", "scale", "site", "step", "zoom", "training",
    )  # fmt: skip

    def __init__(self, session: Session) -> None:
        self.session, self.told = session, Told()
        self.training = Training(session, "quantities_training", height=110, labelled=False)
        self.lines = QuantityFigure("quantity", **session.axis())
        self.heatmap = HeatmapFigure("quantity_map", **session.axis(), undefined="not known")
        self.vector = VectorFigure("quantity_vector", theme=session.theme)
        session.on_axis(self.lines.figure, self.heatmap.figure)
        self.lines.on_step(lambda x: session.select_at(x, session.recorded()))
        self.heatmap.on_cell(self._select)
        self.first = self.first_part = ""
        """The quantity, and of a vector the part, that is shown where none is chosen."""
        self.curves: Curves | None = None
        self.held: Vector | None = None
        self.twins = Twins({
            "quantities_training": Twin("Training", lambda: lines_table(self.training.shown)),
            "quantity": Twin("The quantity", lambda: beside.curves_table(self.curves)),
            "quantity_map": Twin("The vector", lambda: grid_table(self.heatmap.grid)),
            "quantity_vector": Twin("The vector at the step", self._at_step),
        })  # fmt: skip
        self._frame = Fitted(session, self, self.heatmap)
        self._drawn = Drawn()

    def _select(self, row: int, column: int) -> None:
        shown = self.heatmap.grid
        if shown is not None and shown.first[column] >= 0:
            self.session.choice.step = int(shown.first[column])

    def _at_step(self) -> pd.DataFrame:
        place = self._place()
        if self.held is None or place is None:
            return pd.DataFrame()
        values = self.held.values[:, place]
        index = pd.RangeIndex(len(values), name="index")
        return pd.DataFrame({f"step {int(self.held.steps[place])}": values}, index=index)

    def _place(self) -> int | None:
        steps = np.empty(0, np.int64) if self.held is None else self.held.steps
        return quantities.nearest(steps, self.session.choice.step)

    def show(self) -> None:
        """Bring everything up to date."""
        self.training.show()
        choice, version = self.session.choice, self.session.follower.version
        asked = version, choice.quantity, choice.module, choice.pattern, choice.scale
        asked = *asked, self._selected
        if self._drawn.due("quantity", *asked, self._frame.size):
            try:
                self._load()
                self.told.problem = ""
            except (SettingError, re.error) as error:
                self._drawn.forget("quantity")
                text = str(error) if isinstance(error, SettingError) else _no_pattern(error)
                self.told.param.update(problem=text, shown="", title="", legend="", summary="")
        if self.told.shown == "vector" and self._drawn.due("at", *asked, choice.step):
            self._show_at_step()
        self.session.follow()
        self.twins.show()

    @property
    def _selected(self) -> str:
        """The name of the selected site; empty where none is that the run has."""
        sites, site = self.session.follower.sites(), self.session.choice.site
        return str(sites.loc[site, "name"]) if site in sites.index else ""

    def _load(self) -> None:
        """Ask for the chosen quantity.

        Raises:
            SettingError: there is none, or of nothing of that name.
        """
        choice, listed = self.session.choice, self.session.run.quantities()
        if not len(listed):
            raise SettingError(NONE)
        names = list(dict.fromkeys(listed["quantity"]))
        self.first = names[0]
        self.told.names = ["", *names[1:]]
        name = choice.quantity or names[0]
        parts = quantities.parts_of(listed, name, choice.pattern)
        if not parts:
            what = f" of {choice.pattern!r}" if choice.pattern else ""
            raise SettingError(f"No {name}{what} was derived. There is {', '.join(names)}.")
        sizes = listed.loc[listed["quantity"] == name, "numbers"]
        if int(sizes.max()) > 1:
            self._show_vector(name, parts)
        else:
            self._show_lines(name, parts)

    def _show_lines(self, name: str, parts: Sequence[Part]) -> None:
        session, choice = self.session, self.session.choice
        drawn = quantities.drawn(parts, self._selected)
        self.held, self.curves = None, quantities.load_curves(session.run, name, drawn)
        logarithmic = choice.scale == "log2" or (
            not choice.scale and quantities.is_wide(self.curves.values)
        )
        self.lines.show(self.curves, logarithmic=logarithmic)
        marks = self._marks(name)
        self.lines.mark(marks)
        told = beside.describe_curves(self.curves)
        left_out = len(parts) - len(drawn)
        if left_out:
            told += f" {words.thousands(left_out)} more not drawn: a name filter chooses others."
        told += "".join(f" ▲ step {one.step}: {one.text}" for one in marks)
        rows = [(one.name, self._site_of(one)) for one in drawn]
        self.told.param.update(
            shown="lines",
            title=markup.title(name, f"{len(drawn)} of {words.count(len(parts), 'part')}"),
            legend=site_lists.parts(rows, looks=looks_of(session.theme)),
            summary=markup.summary(told),
        )

    def _marks(self, name: str) -> list[series.Mark]:
        alerts = self.session.follower.alerts()
        own = alerts.loc[alerts["rule"].isin([f"{name} above", f"{name} below"])]
        columns = (own[column].tolist() for column in ("first_step", "text", "severity"))
        return [
            series.Mark(step=int(step), text=str(text), severe=severity == "error")
            for step, text, severity in zip(*columns, strict=True)
        ]

    def _site_of(self, part: Part) -> str:
        """The label of a site of that module or parameter; empty where there is none."""
        sites = self.session.follower.sites()
        name = quantities.bare(part.of)
        pairs = zip(sites.index, sites["name"], strict=True)
        return next((str(label) for label, own in pairs if own == name), "")

    def _show_vector(self, name: str, parts: Sequence[Part]) -> None:
        session, width = self.session, self._frame.size[0]
        self.first_part = parts[0].name
        self.told.modules = ["", *(one.name for one in parts[1:])]
        wanted = session.choice.module
        part = next((one for one in parts if one.name == wanted), parts[0])
        self.curves, self.held = None, quantities.load_vector(session.run, name, part)
        shown = quantities.grid_of(self.held, width=width)
        limits = colours.limits(shown.usual(), diverging=shown.signed, theme=session.theme)
        self.heatmap.figure.height = int(np.clip(len(shown.names) * 13, 120, 400)) + 46
        self.heatmap.show(shown, limits, statistic=name)
        legend = markup.legend(limits, logarithmic=shown.logarithmic, undefined="not known")
        rows = [(part.name, self._site_of(part))]
        self.told.param.update(
            shown="vector",
            title=markup.title(name, f"of {part.name}, by index and step"),
            legend=legend + site_lists.parts(rows, looks=looks_of(session.theme)),
        )

    def _show_at_step(self) -> None:
        place = self._place()
        if self.held is None:
            return
        values = np.empty(0) if place is None else self.held.values[:, place]
        scale = self.session.choice.scale
        logarithmic = scale == "log2" or (not scale and quantities.is_wide(values))
        self.vector.show(values, logarithmic=logarithmic)
        self.vector.figure.yaxis[0].axis_label = (
            "" if place is None else f"step {int(self.held.steps[place])}"
        )
        name = self.session.choice.quantity or self.first
        told = quantities.describe(self.held, name=name, place=place)
        self.told.summary = markup.summary(told)


def _no_pattern(error: re.error) -> str:
    return f"The name filter is no regular expression: {error}."
