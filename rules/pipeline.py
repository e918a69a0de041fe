"""Rules about the telemetry itself: what agents cost, and what they had to leave out."""

from __future__ import annotations

import numpy as np

from .rule import Memory, Rule, Told, Verdict, of_run
from .seen import Seen

SETTLED_S = 60.0
"""Of training before what an agent costs is judged: the first steps compile and allocate."""
LOST = "steps_dropped", "ring_steps_dropped", "frames_dropped"
"""Counters of what was measured, or was to be, and did not leave the agent."""


def overhead(seen: Seen, _: Memory) -> Verdict | None:
    """Which share of the training thread's time the agent's hooks take, on the worst rank."""
    shares = {
        rank: said.get("hook_seconds", 0.0) / said["wall_seconds"]
        for rank, said in seen.record.health.items()
        if said.get("wall_seconds", 0.0) >= SETTLED_S
    }
    if not shares:
        return None
    rank = max(shares, key=shares.__getitem__)

    def tell() -> Told:
        text = f"The agent's hooks take {shares[rank]:.0%} of the training thread on rank {rank}."
        return Told(text=text, ranks=(rank,), evidence={"share": shares[rank]})

    return of_run(shares[rank], tell)


def losses(seen: Seen, memory: Memory) -> Verdict | None:
    """How many steps and frames agents have dropped since the record before."""
    now = {
        rank: sum(said.get(name, 0.0) for name in LOST) for rank, said in seen.record.health.items()
    }
    if not now:
        return None
    before = memory.column("dropped", max(now) + 1)
    ranks, count = np.array(list(now)), np.array(list(now.values()))
    new = np.nan_to_num(count - before[ranks])
    before[ranks] = count
    worse = tuple(sorted(ranks[new > 0].tolist()))
    lost = float(new[new > 0].sum())

    def tell() -> Told:
        text = f"Agents dropped {lost:.0f} steps or frames since the record before."
        return Told(text=text, ranks=worse, evidence={"dropped": lost})

    return of_run(lost, tell)


PIPELINE = (
    Rule(
        name="agent-losses",
        severity="warning",
        meaning="Agents cannot send all that they measure: those steps are not observed.",
        advice=(
            "See `run.gaps()`. Measure less often (`every=10`), start a relay on each node, or "
            "give the collector more."
        ),
        threshold=0.0,
        clear=0.0,
        calm=16,
        measure=losses,
    ),
    Rule(
        name="agent-overhead",
        severity="notice",
        meaning="Observing takes more of the training's time than it should.",
        advice=(
            "Measure less often (`every=10`) or observe fewer sites; under PyTorch `budget=0.02` "
            "does it."
        ),
        threshold=0.2,
        clear=0.1,
        records=4,
        calm=16,
        measure=overhead,
    ),
)
