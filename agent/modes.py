"""Modes: what is taken of the calls of one tensor in a step, as of its micro-batches."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..sketch.errors import SettingError

_EVERY = re.compile(r"every\((?P<period>[1-9]\d*)\)")


@dataclass(frozen=True, slots=True)
class Mode:
    """All calls, the last, their sum, or every so many."""

    name: str
    """`all`, `final`, `sum` or `every`."""
    period: int = 1
    """Of calls, where it is `every`: those numbered `period`, 2 `period`, … are taken."""

    @classmethod
    def parse(cls, text: str) -> Mode:
        """From `all`, `final`, `sum` or `every(N)`.

        Raises:
            SettingError: it is none of them.
        """
        # Users without a type checker may pass anything.
        every = _EVERY.fullmatch(text) if isinstance(text, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        if every is None and text not in ("all", "final", "sum"):
            raise SettingError(f"{text!r} is no mode; write all, final, sum or every(4).")
        return cls("every", int(every["period"])) if every else cls(text)

    def __str__(self) -> str:
        return f"every({self.period})" if self.name == "every" else self.name


ALL = Mode("all")
FINAL = Mode("final")
