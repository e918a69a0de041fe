"""What `observe` makes of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jax.sharding import Mesh

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
