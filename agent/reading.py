"""How a tensor is read."""

from __future__ import annotations

from dataclasses import dataclass

from ..sketch.elements import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is wanted of a tensor, and what is known of it."""

    copies: int = 1
    """How often each element counts: those of an expanded tensor are in memory once."""
    lasting: bool = False
    """Whether it stays in memory, unchanged, until the next `barrier`."""
    sentinel: bool = False
    """Whether only its extremes are wanted, and how many elements are not finite."""
    compared: bool = False
    """Whether the sentinel takes its checksum, too: of copies, which are there to be compared."""
    brief: bool = False
    """Whether it stays as it is only until `read_briefs`, which whoever noted it calls."""
    stride: int = 1
    """Of so many clusters of elements one is read, see `sampling`."""
    region: Region | None = None
    """Where the tensor, in C order, lies in the whole of which it is a piece; None: it is whole."""
