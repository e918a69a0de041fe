"""What `observe` makes of its arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...wire.keys import AgentKeys
from ..modes import Mode
from ..schedule import Schedule
from ..selection import Selection, Unchecked


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a loop is observed; each as of `observe`."""

    run: str
    to: str | None
    """None: a collector is started here."""
    keys: AgentKeys | None
    directory: Path
    schedules: Mapping[str, Schedule]
    """By kind that is observed."""
    hyperparameters: Schedule
    selection: Selection
    taps: Selection
    """Over PopART's names."""
    output_modes: Sequence[tuple[re.Pattern[str], Mode]]
    """What is asked for of sites, by a pattern in their labels; of several the last counts."""
    names: Sequence[str] | None
    on_device: bool
    unchecked: Unchecked
    start: int

    def mode_of(self, label: str) -> Mode | None:
        """What is asked for of a site; None: what the model's own mode gives."""
        found = [mode for pattern, mode in self.output_modes if pattern.search(label)]
        return found[-1] if found else None
