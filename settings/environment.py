"""The variables of the environment that say something."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from difflib import get_close_matches

from .file import VARIABLE

BEGINS = "RANKSCOPE_"
"""How all of ours begin."""
CONFIGURED = ("collect", "relay", "view")
"""Commands that have a table of their name, and variables for their options."""
OF_COMMANDS = tuple(f"{BEGINS}{name.upper()}_" for name in CONFIGURED)
"""How those begin that say the options of commands."""
VARIABLES = (
    VARIABLE,
    "RANKSCOPE_DIR",
    "RANKSCOPE_HOST",
    "RANKSCOPE_KEYS",
    "RANKSCOPE_LAUNCH",
    "RANKSCOPE_OBSERVE",
    "RANKSCOPE_RELAY",
    "RANKSCOPE_RUN",
    "RANKSCOPE_SINKS",
    "RANKSCOPE_TO",
    "RANKSCOPE_VIEW_TOKEN",
    "RANKSCOPE_WEBHOOK",
)
"""Those that are no option's."""
NEAR = 0.75
"""How alike, from 0 to 1, a name is that was probably meant."""
KUBERNETES = re.compile(
    r"_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$"
)
"""How the variables end that Kubernetes sets for a service; `…_PORT` alone is an address."""


def ours() -> list[str]:
    """The variables that are set and begin as ours."""
    return [name for name in os.environ if name.startswith(BEGINS)]


def strangers(names: Collection[str], known: Collection[str] = ()) -> list[str]:
    """Those of these variables, which are set, that are neither known nor among `VARIABLES`."""
    others = (name for name in names if name not in known and name not in VARIABLES)
    return [name for name in others if not _is_of_kubernetes(name)]


def meant_by(name: str, could: Collection[str]) -> str:
    """Which of these, without how ours begin, a variable probably means; empty: none is near."""
    near = get_close_matches(name.removeprefix(BEGINS).lower(), could, n=1, cutoff=NEAR)
    return near[0] if near else ""


def _is_of_kubernetes(name: str) -> bool:
    """Whether a variable that is set tells of a service that is called as we are."""
    end = KUBERNETES.search(name)
    return end is not None and (end[0] != "_PORT" or "://" in os.environ.get(name, ""))
