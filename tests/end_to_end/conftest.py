"""What tests of several ranks share."""

from __future__ import annotations

import pytest

from rankscope.store import Run


@pytest.fixture(params=["float32", "float64"])
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    """One of a job's `runs`, of which there is one in each dtype; see `one_process.DTYPES`."""
    return runs[request.param]
