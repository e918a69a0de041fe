"""The store of runs: one writer a run, any number of readers, nothing ever half written.

The one rule of this room: a snapshot says itself what it holds. Readers trust its attributes,
never an array's shape.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..sketch.extras import brought_by as _brought_by
from .record import (
    Alert,
    Event,
    ExactCountInfo,
    QuantityInfo,
    RankFrame,
    RankFrames,
    RankInfo,
    Record,
    SiteInfo,
)

with _brought_by("collector", "The store of runs"):
    from .writer import RunWriter

if TYPE_CHECKING:
    from .compare import Comparison, Parting
    from .ending import Ending
    from .origin import FirstBad
    from .pooling import Heatmap
    from .query import Run, open_run
    from .rank_ratios import RankRatios
    from .recipes import recipe
    from .runs import RunSummary, list_runs

__all__ = [
    "Alert",
    "Comparison",
    "Ending",
    "Event",
    "ExactCountInfo",
    "FirstBad",
    "Heatmap",
    "Parting",
    "QuantityInfo",
    "RankFrame",
    "RankFrames",
    "RankInfo",
    "RankRatios",
    "Record",
    "Run",
    "RunSummary",
    "RunWriter",
    "SiteInfo",
    "list_runs",
    "open_run",
    "recipe",
]

_FOR_READERS = {
    "Comparison": "compare",
    "Parting": "compare",
    "Ending": "ending",
    "FirstBad": "origin",
    "Heatmap": "pooling",
    "Run": "query",
    "open_run": "query",
    "RankRatios": "rank_ratios",
    "recipe": "recipes",
    "RunSummary": "runs",
    "list_runs": "runs",
}


def __getattr__(name: str) -> Any:
    # Not imported before they are used: a collector writes, and needs neither pandas nor xarray,
    # which take 50 MiB and half a second.
    if name in _FOR_READERS:
        with _brought_by("collector", "The store of runs"):
            return getattr(import_module(f".{_FOR_READERS[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
