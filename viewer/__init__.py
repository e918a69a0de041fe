"""The browser view of a run: what is wrong, where, when, and on which rank.

The one rule of this room: every number comes from the store's query API; nothing is computed from
tensors here. Plots for notebooks are in `rankscope.viewer.plots`, which needs HoloViews.
"""

from ..sketch.extras import brought_by as _brought_by

with _brought_by("viewer", "The viewer"):
    from .server import Server, serve

__all__ = ["Server", "serve"]
