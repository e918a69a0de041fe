"""Derived quantities: what is computed of a module's or parameter's tensors when it is due.

A quantity says what it needs and how it is computed (`quantity`). What is computed leaves the
device as an array, and is merged over ranks and decomposed in the collector: here nobody waits for
a device, and nothing talks to another rank.
"""

from .builtin import known_quantities
from .configuration import Configuration
from .quantity import Quantity
from .registry import known_aliases, named, quantity, remove
from .taking import Quantities, Taken

__all__ = [
    "Configuration",
    "Quantities",
    "Quantity",
    "Taken",
    "known_aliases",
    "known_quantities",
    "named",
    "quantity",
    "remove",
]
