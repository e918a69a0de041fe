"""The store of runs: one writer a run, any number of readers, nothing ever half written.

The one rule of this room: a snapshot says itself what it holds. Readers trust its attributes,
never an array's shape.
"""

from .origin import FirstNonfinite
from .pooling import Heatmap
from .query import Run, open_run
from .record import SPREAD, Event, RankInfo, Record, SiteInfo
from .runs import RunSummary, list_runs
from .writer import RunWriter

__all__ = [
    "SPREAD",
    "Event",
    "FirstNonfinite",
    "Heatmap",
    "RankInfo",
    "Record",
    "Run",
    "RunSummary",
    "RunWriter",
    "SiteInfo",
    "list_runs",
    "open_run",
]
