"""What leaves a jitted step for us: arrays, sketches and numbers, and what they are of.

A `Telemetry` is a pytree: jit, grad and friends pass it through. All its leaves are outputs of the
program that made them, in buffers of their own: whatever is donated later, nothing of it is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import jax
from jax.sharding import PartitionSpec

from ...wire.messages import Kind
from ..sitebook import Key
from .printouts import PrintedSite


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSite:
    """One thing observed, as `wire.messages.Site` has it."""

    kind: Kind
    name: str
    slot: str = ""
    occurrence: int = 0
    module: str = ""

    @property
    def key(self) -> Key:
        """By which its row is found."""
        return self.kind, self.name, self.slot, self.occurrence


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchedSite:
    """A site that the program itself has sketched."""

    site: NamedSite
    dtype: str
    shape: tuple[int, ...]
    """Of the whole array, or, where nobody knows how that is cut, of a part."""
    axes: tuple[str, ...] = ()
    """The axes of the mesh that its rows lie along: each device has sketched its own part."""
    spec: PartitionSpec | None = None
    """How the whole is cut along them; None: nobody knows."""
    varies: tuple[str, ...] = ()
    """Those of the axes along which devices hold different parts, where there is no `spec`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the leaves of a telemetry are; the static part of the pytree."""

    arrays: tuple[NamedSite, ...] = ()
    rows: tuple[tuple[SketchedSite, ...], ...] = ()
    running: tuple[NamedSite, ...] = ()
    """All of these sites, in the order in which they run."""
    numbers: tuple[str, ...] = ()
    prints: tuple[PrintedSite, ...] = ()
    unsupported: int = 0
    """Leaves that hold no floating-point numbers, and were passed over."""
    unseen: tuple[str, ...] = ()
    """Names of taps and numbers that nothing is known of, and why."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays", "rows", "numbers", "prints"],
    meta_fields=["plan"],
)
@dataclass(frozen=True, slots=True)
class Telemetry:
    """What one step says of itself; made by `Scope.sketch`, taken by `Scope.step`."""

    arrays: tuple[jax.Array, ...] = ()
    """By site of the plan: elements that are still to be sketched."""
    rows: tuple[jax.Array, ...] = ()
    """By group of the plan: uint32 [*sizes of the mesh's axes, sites, WORDS], see `rows`."""
    numbers: tuple[jax.Array, ...] = ()
    """One array of all numbers of the plan, or none."""
    prints: tuple[jax.Array, ...] = ()
    """By print of the plan: rows [calls, *sizes of the mesh's axes, elements + 1]."""
    plan: Plan = field(default=Plan())

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing: the step is not due."""
        return not self.leaves

    @property
    def leaves(self) -> tuple[jax.Array, ...]:
        """All arrays of it."""
        return (*self.arrays, *self.rows, *self.numbers, *self.prints)
