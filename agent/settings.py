"""What all agents are told alike: the name of the run, its collector, and the keys for that."""

from __future__ import annotations

import os

from ..sketch.errors import SettingError
from ..wire.keys import AgentKeys
from ..wire.messages import RUN_NAME


def run_name(run: str | None) -> str:
    """The run's name, or that of the environment.

    Raises:
        SettingError: there is none, or it cannot name a folder.
    """
    name = run or os.environ.get("RANKSCOPE_RUN", "")
    if not name:
        raise SettingError('A run needs a name: observe(…, run="my-run"), or set RANKSCOPE_RUN.')
    if not RUN_NAME.fullmatch(name):
        raise SettingError(f"A run's name is letters, digits and ._+=@ -, got {name!r}.")
    return name


def destination_of(to: str | None) -> str | None:
    """The address of the collector or relay, or that of the environment; None: there is none."""
    return to or os.environ.get("RANKSCOPE_RELAY") or os.environ.get("RANKSCOPE_TO") or None


def keys_of(folder: str | os.PathLike[str] | None, to: str | None) -> AgentKeys | None:
    """The keys in the folder that was given, or in that of the environment; None: there is none.

    Raises:
        SettingError: they cannot be used, or were given without the collector that they are for.
    """
    place = folder or os.environ.get("RANKSCOPE_KEYS")
    if not place:
        return None
    if not to:
        raise SettingError(
            "`keys` (or RANKSCOPE_KEYS) are for the collector that `to` (or RANKSCOPE_TO) names, "
            "and there is none: a collector that rank 0 starts makes keys of its own."
        )
    return AgentKeys.load(place)
