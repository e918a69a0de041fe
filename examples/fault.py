"""The planted fault: on one rank, the kernel before one float16 activation uses a wrong scale.

Like kernels for narrow formats do, it scales by a power of two that it takes from the tensor's
largest element. The scale drifts up for some steps; then float16 overflows; later it recovers.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rankscope.sketch import SettingError

from .job import Size

if TYPE_CHECKING:
    from torch import Tensor

OVERFLOWS = 16
"""2^16 is the first power of two beyond float16's largest number, 65504."""
DRIFT = 3
"""Binary exponents that the scale drifts each step."""
STEPS_BEFORE = 5
"""Steps of drift before the first overflow."""
FEWEST_STEPS = 12
"""A shorter run has no room for before, during and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Where, on which rank, and when."""

    block: int
    """The block of the model whose MLP suffers."""
    rank: int
    step: int
    """The first with an infinity."""
    lasts: int
    """Steps until the kernel is right again."""

    @classmethod
    def plan(cls, seed: int, *, size: Size, ranks: int, steps: int) -> Self:
        """The fault that belongs to a seed, in the middle of a run.

        Raises:
            SettingError: the run is too short for it.
        """
        if steps < FEWEST_STEPS:
            raise SettingError(
                f"A run with a fault needs at least {FEWEST_STEPS} steps, got {steps}; "
                "take more, or --no-fault."
            )
        dice = random.Random(seed)
        return cls(
            block=dice.randrange(size.layers),
            rank=dice.randrange(ranks),
            step=dice.randint(max(STEPS_BEFORE + 1, round(0.4 * steps)), round(0.6 * steps)),
            lasts=max(2, steps // 6),
        )

    @property
    def module(self) -> str:
        """The module whose output overflows, by its name in the model."""
        return f"blocks.{self.block}.mlp.act"

    @property
    def site(self) -> str:
        """The site that shows it first."""
        return f"activation:{self.module}"

    def exponent(self, step: int) -> int | None:
        """The binary exponent that the largest element is brought to; None while all is well."""
        if not -STEPS_BEFORE <= step - self.step < self.lasts:
            return None
        return OVERFLOWS + DRIFT * min(step - self.step, 1)

    def spoil(self, x: Tensor, step: int) -> Tensor:
        """What the kernel hands on instead of `x` at `step`."""
        wanted = self.exponent(step)
        if wanted is None:
            return x
        _, above = math.frexp(float(x.detach().max()))
        return x * math.ldexp(1.0, wanted + 1 - above)
