"""The line under the mouse: at a recorded step, in all figures, with what is read off there.

It moves in the browser alone: the server hears nothing of it.
"""

from __future__ import annotations

from bokeh.events import MouseLeave, MouseMove
from bokeh.models import ColumnDataSource, CustomJS

from ..reading import Readings
from . import look
from .colours import LIGHT, Theme
from .lines import update

STYLE = (
    "position: fixed; left: 10px; bottom: 8px; z-index: 20; max-width: 94vw; padding: 3px 10px; "
    "border: 1px solid {muted}; border-radius: 7px; background: {surface}; color: {ink}; "
    "font: 12px {font}; font-variant-numeric: tabular-nums; pointer-events: none;"
)
READ = """
const {step: steps, ...columns} = numbers.data;
const tell = (location, text) => {
  line.setv({location}, {sync: false});
  let place = document.getElementById("readout");
  if (place === null) {
    place = document.createElement("output");
    place.id = "readout";
    place.ariaLive = "off";
    document.body.append(place);
  }
  // As text: names come from a run.
  place.textContent = text;
  place.style = text ? style : "display: none";
};
if (leaves) return tell(NaN, "");
const {x, origin: {x_range}} = cb_obj;
if (!steps.length || x < x_range.start || x > x_range.end) return tell(NaN, "");
let at = 0, end = steps.length - 1;
while (at < end) {
  const middle = (at + end) >> 1;
  if (steps[middle] < x) at = middle + 1; else end = middle;
}
if (at > 0 && x - steps[at - 1] < steps[at] - x) at -= 1;
if (line.location === steps[at]) return;
const far = (v) => v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5);
const finite = (v) => far(v) ? v.toExponential(3).replace("e+", "e") : String(+v.toPrecision(4));
const number = (v) => Number.isFinite(v) ? finite(v).replaceAll("-", "−") : "not finite";
const {label, missing} = names.data;
const told = label.map((name, place) => {
  const value = columns[place][at];
  const text = value === null || Number.isNaN(value) ? missing[place] : number(value);
  return text && `${name} ${text}`;
});
tell(steps[at], [`step ${steps[at]}`, ...told.filter((one) => one)].join(" · "));
"""


class Crosshair:
    """One vertical line for all figures that it follows the mouse in; what it says stands below."""

    def __init__(self, theme: Theme = LIGHT) -> None:
        self.line = look.crosshair(theme)
        self.numbers = ColumnDataSource({"step": []}, name="readings")
        """The steps, and by its place in `names` what can be read there."""
        self.names = ColumnDataSource({"label": [], "missing": []})
        self._style = STYLE.format(
            muted=theme.muted, surface=theme.surface, ink=theme.ink, font=look.FONT
        )
        self._moves, self._leaves = (self._script(leaves) for leaves in (False, True))
        self._times_left = 0
        self.names.js_on_change("tags", self._leaves)

    def _script(self, leaves: bool) -> CustomJS:
        args = {
            "line": self.line, "numbers": self.numbers, "names": self.names, "style": self._style,
        }  # fmt: skip
        return CustomJS(args=args, code=f"const leaves = {str(leaves).lower()};{READ}")

    def follow(self, *figures: look.Figure) -> None:
        """Move with the mouse over these, which have the line."""
        for figure in figures:
            figure.js_on_event(MouseMove, self._moves)
            figure.js_on_event(MouseLeave, self._leaves)

    def leave(self) -> None:
        """Take both away: the mouse is over another page, and tells of no leave."""
        self._times_left += 1
        self.names.tags = [self._times_left]

    def show(self, found: Readings) -> None:
        """Read these from now on, sending no more than new steps where that is enough."""
        found = found.thinned()
        columns = {str(place): one.values for place, one in enumerate(found.of)}
        update(self.numbers, {"step": found.steps} | columns)
        names: look.Data = {
            "label": [one.label for one in found.of], "missing": [one.missing for one in found.of],
        }  # fmt: skip
        if dict(self.names.data) != names:
            self.names.data = names
