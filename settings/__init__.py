"""Files of settings and variables: where a file is, what tables it has, and what either may say.

The one rule of this room: whoever wrote a file hears of all its faults at once, each with its
place, what is there, and what could be.
"""

from .checking import Read, check_names, fault_of, given, settings_of
from .environment import (
    BEGINS,
    CONFIGURED,
    OF_COMMANDS,
    VARIABLES,
    meant_by,
    ours,
    strangers,
)
from .file import TABLES, VARIABLE, read_settings, read_toml, settings_file

__all__ = [
    "BEGINS",
    "CONFIGURED",
    "OF_COMMANDS",
    "TABLES",
    "VARIABLE",
    "VARIABLES",
    "Read",
    "check_names",
    "fault_of",
    "given",
    "meant_by",
    "ours",
    "read_settings",
    "read_toml",
    "settings_file",
    "settings_of",
    "strangers",
]
