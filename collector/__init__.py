"""Receives what the ranks send, joins it by placement into records, and commits it to the store.

The one rule of this room: what is acknowledged is durable, and what is durable is stored once.
"""

from .command import collect
from .health import Health
from .joiner import Batch, Joiner, JoinerSettings
from .ranks import Place
from .service import Service
from .session import Collector
from .settings import CollectorSettings
from .statistics import CollectorStatistics

__all__ = [
    "Batch",
    "Collector",
    "CollectorSettings",
    "CollectorStatistics",
    "Health",
    "Joiner",
    "JoinerSettings",
    "Place",
    "Service",
    "collect",
]
