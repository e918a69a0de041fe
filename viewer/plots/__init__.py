"""Plots of a run, or of a LogFrame, as HoloViews objects: for notebooks, papers and reports.

They draw the prepared data that the pages draw. Call `hv.extension("bokeh")` (or "matplotlib")
first, as for any HoloViews plot; `save` needs neither.
"""

from ...sketch.extras import brought_by as _brought_by

with _brought_by("notebook", "Plots of runs"):
    from .explorer import Explorer, explore
    from .exponents import exponent_heatmap, exponent_histogram
    from .formats import format_table
    from .ranks import rank_heatmap
    from .saving import save
    from .scalars import scalar_heatmap, scalar_lines

__all__ = [
    "Explorer",
    "explore",
    "exponent_heatmap",
    "exponent_histogram",
    "format_table",
    "rank_heatmap",
    "save",
    "scalar_heatmap",
    "scalar_lines",
]
