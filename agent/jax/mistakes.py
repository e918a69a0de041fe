"""What was probably not meant: seen while steps are traced, and told when training has ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import jax
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state

from .gathering import Trees

MOST_NAMED = 3


@dataclass(slots=True)
class Mistakes:
    """Of one scope."""

    steps_untold: int = 0
    """Due steps that brought no telemetry."""
    has_told: bool = False
    """Whether a step ever did."""
    is_in_program: bool = False
    """Whether a program was made with a sketch in it."""
    _trace: object = None
    """That in which `sketch` was called last."""
    _twice: bool = False
    _strays: dict[str, None] = field(default_factory=dict[str, None])
    """Names of gradients and updates that no weight has."""

    def note(self, trees: Trees) -> None:
        """What `sketch` was given."""
        self._strays |= dict.fromkeys(trees.strays())
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees.given())):
            trace = get_opaque_trace_state()
            self._twice, self._trace = self._twice or trace == self._trace, trace
            self.is_in_program = True

    def sentences(self) -> Iterator[str]:
        """What to warn of."""
        if self.steps_untold and not self.has_told:
            yield (
                f"{self.steps_untold} steps were due, and none brought telemetry: return from the "
                "jitted step what this block's scope.sketch(…) makes in it, and hand it to "
                "scope.step(telemetry)."
            )
        if self._twice:
            yield (
                "scope.sketch(…) was called more than once in a program: give it all of a step in "
                "one call, for each scope.step(…) is a step of its own."
            )
        if self._strays:
            yield (
                "No weight has the name of what was given as gradients or updates, as "
                f"{', '.join([*self._strays][:MOST_NAMED])}: rules compare them by their names, so "
                "give them in a tree of the shape of `weights`."
            )
