"""Files of settings: where one is, what tables it has, and whether a table holds what it may.

The one rule of this room: whoever wrote a file hears of all its faults at once, each with its
place, what is there, and what could be.
"""

from .checking import Read, check_names, fault_of, given, settings_of
from .file import TABLES, VARIABLE, read_settings, read_toml, settings_file

__all__ = [
    "TABLES",
    "VARIABLE",
    "Read",
    "check_names",
    "fault_of",
    "given",
    "read_settings",
    "read_toml",
    "settings_file",
    "settings_of",
]
