"""Which frames give way first where there is no room: in an agent's window, in a relay's spool."""

from __future__ import annotations

from .messages import FrameHeader

MOST_WORTH = 100
"""Of frames that say more than numbers: they give way last."""


def worth_of(header: FrameHeader) -> int:
    """How much a frame would be missed if there is no room: those of least worth go first.

    It follows from the step alone, so that all ranks, at all relays, lose the same steps: half of
    all steps are worth 0, a quarter 1, an eighth 2. Steps in which something went wrong are worth
    the most.
    """
    says_more = header.reports or header.kept or header.partial or header.final
    if says_more or header.unmatched or header.alarming:
        return MOST_WORTH
    mixed = (header.step * 0x9E3779B97F4A7C15 >> 32) & 0xFFFFFFFF
    return (mixed & -mixed).bit_length() - 1 if mixed else MOST_WORTH - 1
