"""What lives in the training process: schedules, the step table, the agent's thread, frames out.

The one rule of this room: training comes first. Nothing here blocks the step, talks to another
rank, raises into the training loop or grows without bound; what is lost is counted. Each framework
has a sub-folder (`rankscope.agent.torch`, `.jax`, `.poptorch`) that is imported only by those who
use it.
"""

from .outbox import Outbox, OutboxStatistics
from .schedule import Schedule
from .selection import RankscopeWarning, Selection

__all__ = [
    "Outbox",
    "OutboxStatistics",
    "RankscopeWarning",
    "Schedule",
    "Selection",
]
