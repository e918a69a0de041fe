"""A closed step until it is a frame: what it gave, and what was made of that."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .due import nothing_due
from .layout import Sketched
from .telemetry import Telemetry

Number = float | jax.Array


@dataclass(slots=True, eq=False)
class Parcel:
    """A closed step."""

    step: int
    telemetry: Telemetry
    numbers: Mapping[str, Number]
    time_ns: int = field(default_factory=time.time_ns)
    partial: bool = False
    reader: int | None = None
    """The thread that reads it, or has."""
    is_read: bool = False
    sketched: Sketched | None = None
    """Once it is read; None: there is nobody to tell it to."""

    @property
    def is_computed(self) -> bool:
        """Whether to read it waits for nothing."""
        leaves = (*self.telemetry.leaves, *self.numbers.values())
        # `is_ready` is not in JAX's types; whoever fetches a telemetry hands NumPy's arrays over.
        arrays: list[Any] = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        # To ask a deleted array whether it is ready crashes jaxlib 0.10.2.
        return all(array.is_deleted() or array.is_ready() for array in arrays)


def copy_of(number: Number) -> Number:
    """The number in a buffer of our own, on its way to the host: its own may be donated next.

    Raises:
        Exception: it is no number, or is deleted; whatever JAX and NumPy say of that.
    """
    if not isinstance(number, jax.Array):
        return value_of(number)
    with nothing_due():
        copy = jnp.copy(number.addressable_data(0))
    copy.copy_to_host_async()
    return copy


def value_of(number: Number) -> float:
    """The one element of what may be an array; waits for it.

    Raises:
        Exception: there is not one, or it is no number.
    """
    return float(np.asarray(number).item())
