"""The environment in which a Python process observes what it trains."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OPTIONS = "RANKSCOPE_OBSERVE"
"""The variable that switches observing on: a JSON object of options of `observe`."""
LAUNCH = "RANKSCOPE_LAUNCH"
"""The variable that is alike in all processes of one start of a job, and in no other's."""
CONFIG = "RANKSCOPE_CONFIG"
"""The variable that names the file of settings."""
STARTUP = Path(__file__).parent / "startup"
"""The folder whose `sitecustomize` Python imports when it starts, if it is in PYTHONPATH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is to be observed, and where it goes."""

    run: str
    to: str
    """Address of the collector or relay; empty: the first process starts one."""
    keys: str = ""
    """Folder of the agents' keys; empty: there are none."""
    directory: str = ""
    """Where a collector keeps its runs that is started for the job; empty: the default."""
    launch: str = ""
    """What this start of the job is called; empty: its processes agree on a name."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further options of `observe`."""


def environment_of(observation: Observation, given: Mapping[str, str]) -> dict[str, str]:
    """The variables to be set for a job, beside those that are given."""
    path = [str(STARTUP), *given.get("PYTHONPATH", "").split(os.pathsep)]
    named = {
        "RANKSCOPE_RUN": observation.run,
        "RANKSCOPE_TO": observation.to,
        "RANKSCOPE_KEYS": observation.keys,
        "RANKSCOPE_DIR": observation.directory,
        LAUNCH: observation.launch,
        CONFIG: given.get(CONFIG, ""),
    }
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, path))),
        OPTIONS: json.dumps(dict(observation.options)),
        **{name: value for name, value in named.items() if value},
    }
