"""What all tests of relays need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..collector.serving import stop_collectors


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    """Whatever happens to a test."""
    yield
    stop_collectors()
