"""Packages that are imported only by those who ask for what they make: tables, plots, files."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...sketch.extras import brought_by


def imported(package: str, purpose: str) -> Any:
    """The module of that name. `Any`: what it has is known to its callers.

    Args:
        package: as it is imported.
        purpose: what it is needed for, as a part of a sentence.

    Raises:
        ImportError: it is not installed; the message says how to install it.
    """
    with brought_by("toolkit", purpose):
        return import_module(package)
