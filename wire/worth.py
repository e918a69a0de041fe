"""Which frames give way first where there is no room: in an agent's window, in a relay's spool."""

from __future__ import annotations

from typing import Protocol

from .messages import FrameHeader

MOST_WORTH = 100
"""Of frames that say more than numbers: they give way last."""


class Stepped(Protocol):
    """The header of a frame, of a joined one, or what stands for it."""

    @property
    def step(self) -> int:
        """What it is of."""
        ...

    @property
    def final(self) -> bool:
        """Whether that is the state after the last step."""
        ...


def worth_of(said: Stepped) -> int:
    """How much a frame would be missed if there is no room: those of least worth go first.

    It follows from the step alone, so that all ranks, at all relays, lose the same steps: half of
    all steps are worth 0, a quarter 1, an eighth 2. Steps in which something went wrong are worth
    the most.
    """
    if said.final or (isinstance(said, FrameHeader) and _says_more(said)):
        return MOST_WORTH
    mixed = (said.step * 0x9E3779B97F4A7C15 >> 32) & 0xFFFFFFFF
    return (mixed & -mixed).bit_length() - 1 if mixed else MOST_WORTH - 1


def _says_more(header: FrameHeader) -> bool:
    told = header.reports or header.kept or header.partial or header.unmatched
    return bool(told or header.alarming)
