"""A job that reduces gradients, and what the collector finds in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.collector import Joiner, JoinerSettings
from rankscope.rules import RuleBook
from rankscope.store import Alert, SiteInfo
from rankscope.wire import Site
from rankscope.wire.messages import Kind, Placement

from .conftest import Rank

NAMES = ("a", "b", "c", "d", "e")
KINDS: list[tuple[Kind, dict[str, Placement]]] = [
    ("local_weight_gradient", {"dp": "partial"}),
    ("weight_gradient", {}),
]
SITES = [
    Site(kind=kind, name=name, placement=placement, dtype="float32")
    for kind, placement in KINDS
    for name in NAMES
]
INFOS = [SiteInfo(kind=one.kind, name=one.name, dtype="float32") for one in SITES]
MIXED = [
    SiteInfo(
        kind=one.kind,
        name=one.name,
        dtype="bfloat16" if one.kind == "local_weight_gradient" else "float32",
    )
    for one in SITES
]
"""As FSDP2 has them: a rank's own gradients are in the parameters' dtype, reduced ones are not."""
Gradients = NDArray[np.float32]


class Job:
    """Ranks that train together, and the alerts about them."""

    def __init__(self, ranks: int, infos: Sequence[SiteInfo] = INFOS) -> None:
        settings = JoinerSettings(rules=RuleBook(rules=()))
        self.joiner = Joiner(0, ranks, site=infos.__getitem__, settings=settings)
        self.ranks = [Rank(rank, {"dp": (ranks, rank)}, SITES) for rank in range(ranks)]
        self.step = 0
        self.told = list[tuple[str, str]]()
        """Kinds and texts of events."""

    def train(
        self,
        local: Gradients,
        factor: float,
        spoil: Callable[[Gradients], None] | None = None,
        copies: Callable[[int, Gradients], None] | None = None,
        **more: Any,
    ) -> list[Alert]:
        """A step with these gradients, [ranks, tensors, elements], reduced and then spoilt.

        Args:
            spoil: on all ranks alike.
            copies: on each rank, which is its first argument, by itself.
        """
        reduced = (local.astype(np.float64).sum(0) * factor).astype(np.float32)
        if spoil:
            spoil(reduced)
        for rank, own in zip(self.ranks, local, strict=True):
            copy = reduced.copy()
            if copies:
                copies(rank.rank, copy)
            frame = rank.frame(self.step, *own, *copy, **more)
            self.joiner.feed(rank.rank, rank.stream, frame, rank.layout, 0.0)
        self.step += 1
        batch = self.joiner.tick(0.1, 0)
        self.told += [(one.kind, one.text) for one in batch.events]
        return batch.alerts


def gradients(ranks: int, seed: int = 0) -> Gradients:
    """[ranks, tensors, elements]."""
    drawn = np.random.default_rng(seed).normal(size=(ranks, len(NAMES), 64))
    return drawn.astype(np.float32)
