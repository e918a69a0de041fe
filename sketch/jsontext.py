"""JSON of numbers that need not be finite."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any


def json_number(value: float) -> float | str:
    """JSON has no NaN and no infinity: they are the words that Python's `float` reads."""
    return value if isfinite(value) else str(float(value))


def json_text(value: object) -> str:
    """Indented JSON of mappings, sequences, words and numbers."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return json_number(value) if isinstance(value, float) else value
