"""What to write instead of a command that cannot be run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

RUNS = {".py": "python", ".sh": "bash"}
"""By the end of a script's name what runs it."""


def hint_for(command: Sequence[str]) -> str:
    """What may have been meant, as a sentence; empty where nothing comes to mind."""
    first, *rest = command
    file = Path(first)
    if file.is_dir():
        return "That is a folder."
    if not file.exists():
        apart = _apart(first)
        return (
            f"Say its words apart, without quotes: {shlex.join([*apart, *rest])}" if apart else ""
        )
    runs = RUNS.get(file.suffix)
    if runs is not None:
        return f"It is a script; say what runs it: {shlex.join([runs, *command])}"
    if os.access(file, os.X_OK):
        is_bare = os.sep not in first
        here = shlex.join([f"./{first}", *rest])
        return f"Say where it is: {here}" if is_bare else "Say what runs it, before its name."
    return f"It may not be executed: chmod +x {shlex.quote(first)}, or say what runs it before it."


def _apart(word: str) -> list[str]:
    """The words of a command that was said as one; none where it is one."""
    try:
        words = shlex.split(word)
    except ValueError:  # a quote that does not end
        words = word.split()
    return words if len(words) > 1 else []
