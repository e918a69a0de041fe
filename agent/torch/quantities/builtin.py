"""The quantities that there are without anybody registering them."""

from __future__ import annotations

from . import activity, attention, batchnorm, changes, covariances, weights
from .quantity import Quantity
from .registry import known

MODULES = activity, attention, batchnorm, changes, covariances, weights
"""What registers them."""


def known_quantities() -> dict[str, Quantity]:
    """All quantities by name, the user's own with them."""
    return known()
