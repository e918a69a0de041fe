"""What tests need that is not installed by pip: without it they skip, or fail in CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def do_without(reason: str, required: str) -> NoReturn:
    """Skip a test, or fail it where it may not skip.

    Args:
        required: the variable that says so, which `.ci/run` sets.
    """
    if os.environ.get(required):
        pytest.fail(reason)
    pytest.skip(reason)
