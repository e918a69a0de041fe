"""Passes on what the collector has stored or found wrong: to files, TensorBoard, W&B, Prometheus.

The one rule of this room: nobody waits for a sink. What a sink does not take in time is tried
again, then dropped and counted; the store has it all the same.
"""

from .fanout import Sinks, Stored
from .feed import Feed, FeedCounts
from .news import Alarm, Ended, Found, News, Numbers, Rejected, Sink, Table, Trouble
from .numbers import FORMATS, exponents_of, group_of, numbers_of, table_of
from .opening import Metrics, open_sinks

__all__ = [
    "FORMATS",
    "Alarm",
    "Ended",
    "Feed",
    "FeedCounts",
    "Found",
    "Metrics",
    "News",
    "Numbers",
    "Rejected",
    "Sink",
    "Sinks",
    "Stored",
    "Table",
    "Trouble",
    "exponents_of",
    "group_of",
    "numbers_of",
    "open_sinks",
    "table_of",
]
