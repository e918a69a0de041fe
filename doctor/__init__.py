"""`rankscope doctor`: whether all that a job, its relays and its collector need is there.

The one rule of this room: it leaves nothing behind, and each line says what to do.
"""

from .command import doctor
from .finding import Check, Finding

__all__ = ["Check", "Finding", "doctor"]
