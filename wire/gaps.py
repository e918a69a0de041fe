"""Gaps: which steps of a stream will never come, joined so that there are few."""

from __future__ import annotations

from collections.abc import Iterable

from .messages import MAX_GAPS, Gap


def joined(gaps: Iterable[Gap], *, thinned: bool = False) -> list[Gap]:
    """The same losses in as few gaps as tell cause and steps; in at most `MAX_GAPS`, whatever.

    Args:
        gaps: in the order of their steps.
        thinned: whether steps that came may lie within a gap: where every other is left out, a gap
            each would be as many as there were steps.
    """
    told = list[Gap]()
    for gap in gaps:
        last = told[-1] if told else None
        joins = last and last.cause == gap.cause and gap.first_step >= last.first_step
        near = last and (thinned or gap.first_step <= last.last_step + 1)
        if last and ((joins and near) or len(told) >= MAX_GAPS):
            told[-1] = Gap(
                first_step=min(last.first_step, gap.first_step),
                last_step=max(last.last_step, gap.last_step),
                frames=last.frames + gap.frames,
                cause=last.cause,
            )
        else:
            told.append(gap)
    return told
