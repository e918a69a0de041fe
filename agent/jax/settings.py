"""What `observe` makes of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.sharding import Mesh

from ...sketch.errors import SettingError
from ...wire.keys import AgentKeys
from ..schedule import Schedule
from ..selection import Counting, Placing, Selection, Unchecked


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a loop is observed; each as of `observe`."""

    run: str
    to: str | None
    """None: process 0 starts a collector."""
    keys: AgentKeys | None
    directory: Path
    schedules: Mapping[str, Schedule]
    """By kind that is observed."""
    selection: Selection
    counting: Counting
    mesh: Mesh | None
    axes: Mapping[str, str]
    in_program: bool | None
    """None: everywhere but on the CPU."""
    placing: Placing
    unchecked: Unchecked
    start: int

    def sketches_in_program(self) -> bool:
        """Whether programs on the devices make the sketches.

        Raises:
            SettingError: they do, and exact counts are asked for.
        """
        by_default = jax.default_backend() != "cpu"
        in_program = by_default if self.in_program is None else self.in_program
        if in_program and self.counting.asked:
            raise SettingError(
                "`exact_counts` are counted on the host, and here programs on the devices make the "
                "sketches; pass in_program=False, or leave `exact_counts` out."
            )
        return in_program
