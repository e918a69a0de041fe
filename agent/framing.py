"""From a closed step to a frame."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from ..wire.codec import Frame, Packed, pack_frame
from .steptable import StepTable


def pack_step(
    step: StepTable,
    *,
    health: Mapping[str, float],
    partial: bool = False,
    kept: bool = False,
    alarming: bool = False,
    reports: Sequence[str] = (),
) -> Packed:
    """A frame of what was measured in a step, without its number in the stream.

    Args:
        health: counters of the rank.
        partial, kept, alarming, reports: as of `wire.codec.Frame`.
    """
    rows = np.flatnonzero(step.present)
    return pack_frame(
        Frame(
            step=step.step,
            time_ns=step.time_ns or time.time_ns(),
            sites=rows.astype(np.uint32),
            table=step.table.take(rows),
            exact_counts=dict(step.counts),
            series=dict(step.series),
            training=dict(step.training),
            health=dict(health),
            reports=list(reports),
            partial=partial,
            final=step.final,
            unmatched=step.unmatched,
            kept=kept,
            alarming=alarming,
        )
    )
