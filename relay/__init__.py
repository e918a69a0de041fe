"""Stores and forwards: takes in the streams of agents and of other relays, and sends them on.

The one rule of this room: a frame is acknowledged once it is on disk here, or durable upstream.
"""

from .command import relay
from .service import Service
from .session import Relay
from .settings import RelaySettings
from .spool import Spool
from .statistics import RelayStatistics

__all__ = [
    "Relay",
    "RelaySettings",
    "RelayStatistics",
    "Service",
    "Spool",
    "relay",
]
