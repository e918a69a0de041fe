"""How far each rank is from its peers, over steps."""

from __future__ import annotations

from ...sketch.errors import SettingError
from .. import words
from ..figures import colours
from ..rank_map import FAR, FURTHEST, load_rank_map
from . import look
from .exponents import MOST, chosen
from .opening import source_of
from .scalars import picture
from .source import Data, Many, Training, run_of
from .training import alongside


def rank_heatmap(
    data: Data,
    statistic: str = "rms",
    *,
    site: Many = None,
    kind: Many = None,
    name: str | None = None,
    steps: tuple[int, int] | None = None,
    width: int = 800,
    columns: int = 1,
    training: Training = "",
) -> look.Plot:
    """Each rank's statistic against the median of the ranks that hold the same part of the model.

    Ranks come in the order of the mesh; the colour is log2 of the ratio, zero in the middle,
    and reaches 1.4 times at least and 8 times at most, as on the page Ranks. Magenta is what is not
    finite, hatched what was not observed. A plot for each site.

    Args:
        data: a run.
        statistic: a main statistic.
        site: labels.
        kind: only these kinds; activations by default, unless `site` or `name` is given.
        name: only sites in whose name this regular expression is found.
        steps: first and last step; all by default.
        width: cells across at most; of several steps in one the furthest from the median is kept.
        columns: how many plots stand in a row.
        training: a training statistic to draw below, over the same steps.

    Raises:
        SettingError: nothing matches, too much does, no rank has another to compare with, or it is
            a LogFrame.
    """
    run = run_of(data, "`rank_heatmap`")
    source = source_of(run)
    across = look.WIDE if columns == 1 else look.WIDTH
    plots: list[look.Plot] = []
    ends = None
    for one in chosen(source, site, kind, name, most=MOST):
        found = load_rank_map(run, statistic, site=one, steps=steps, width=width)
        if found.peers < 2:
            raise SettingError(
                f"No rank holds the same part of {one} as another, so there is nothing to compare "
                "it with; `scalar_lines` draws it, with `ranks=True` on each rank."
            )
        limits = colours.ratio_limits(found.grid.shade, least=FAR, most=FURTHEST)
        title = f"{words.shorten(one, 60)}: {statistic} of each rank against its peers"
        plots.append(picture(found.grid, limits, unit="log2 ratio", title=title, across=across))
        ends = found.grid.left, found.grid.right
    plot = look.facets(plots, columns=columns, shared=True, width=across)
    return alongside(plot, source, training, steps=steps, width=across, ends=ends)
