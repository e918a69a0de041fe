"""What the chaos tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import Processes


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """The processes of a test, in its folder; whatever happens, none stays."""
    every = Processes(tmp_path)
    yield every
    every.close()
