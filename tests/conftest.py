"""What all tests share."""

from pathlib import Path

import pytest
from hypothesis import settings

# A law that holds slowly still holds: how long an example takes is the machine's affair.
settings.register_profile("rankscope", deadline=None)
settings.load_profile("rankscope")

HERE = Path(__file__).parent
LONG = "rules/test_bench.py", "chaos", "end_to_end", "examples", "relay", "object_store", "agent"
"""What takes longest, which is begun first: where files run side by side none is left for last."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files, and leave the tests of each in their order."""
    items.sort(key=lambda item: _place(item.path.relative_to(HERE).as_posix()))


def _place(file: str) -> int:
    """Where a file comes, counted from the first."""
    return next((at for at, start in enumerate(LONG) if file.startswith(start)), len(LONG))
