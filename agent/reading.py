"""How a tensor is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..sketch.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is wanted of a tensor, and what is known of it."""

    copies: int = 1
    """How often each element counts: those of an expanded tensor are in memory once."""
    lasting: bool = False
    """Whether it stays in memory, unchanged, until the next `barrier`."""
    sentinel: bool = False
    """Whether only its extremes are wanted, and how many elements are not finite."""
    stride: int = 1
    """Of so many clusters of elements one is read, see `sampling`."""


def strides_by_kind(
    sample: float | Mapping[str, float] | None, kinds: Iterable[str]
) -> dict[str, int]:
    """Of each kind, of how many clusters of elements one is read: `sample` is the share.

    Raises:
        SettingError: a share is none, or is for a kind that is not observed.
    """
    known = list(kinds)
    shares = (
        sample
        if isinstance(sample, Mapping)
        else dict.fromkeys(known, 1.0 if sample is None else sample)
    )
    for kind, share in shares.items():
        if kind not in known:
            raise SettingError(f"`sample` names {kind!r}; observed are {', '.join(known)}.")
        if not 0 < share <= 1:
            raise SettingError(f"`sample` must be a share of the elements as 1/8, got {share}.")
    return {kind: round(1 / share) for kind, share in shares.items()}
