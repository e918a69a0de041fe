"""What a check finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line."""

    state: Literal["ok", "note", "bad"]
    text: str


Check = Iterator[Finding]
