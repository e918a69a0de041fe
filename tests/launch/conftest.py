"""What `rankscope run` says depends on variables: those of whoever runs the tests are not there."""

import os

import pytest


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the variables `RANKSCOPE_…` away, as those by which CI asks for a browser."""
    for name in [name for name in os.environ if name.startswith("RANKSCOPE_")]:
        monkeypatch.delenv(name)
