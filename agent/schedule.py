"""At which steps a kind is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import get_args
from zlib import crc32

from ..sketch.errors import SettingError
from ..wire.messages import Kind

MAX_STRIDE = 1024
"""A sample has at least so small a part of the elements."""
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Steps `offset`, `offset + every`, … that lie in one of the `ranges`."""

    every: int = 1
    """Distance in steps, at least 1."""
    offset: int = 0
    """First step, at least 0."""
    ranges: tuple[tuple[int, int], ...] = ()
    """Inclusive (first, last) pairs of steps; none: all steps."""
    staggered: bool = False
    """Whether sites take turns: each is measured every `every` steps, at every step some of them.

    The turn follows from the name alone, so that all ranks measure the same, and a module's
    gradients are measured with its activations, a parameter's with the parameter."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.every % 1:
            raise SettingError(f"`every` must be a positive number of steps, got {self.every}.")
        if self.offset < 0:
            raise SettingError(f"`offset` must not be negative, got {self.offset}.")
        for first, last in self.ranges:
            if first > last:
                raise SettingError(
                    f"A range of steps must not end before it begins: ({first}, {last})."
                )

    def due(self, step: int) -> bool:
        """Whether something is measured at `step`."""
        turn = self.staggered or (step - self.offset) % self.every == 0
        if step < self.offset or not turn:
            return False
        return not self.ranges or any(first <= step <= last for first, last in self.ranges)

    @property
    def is_whole(self) -> bool:
        """Whether everything is measured at every step."""
        return self.every == 1 and self.offset == 0 and not self.ranges

    def is_turn_of(self, name: str, step: int) -> bool:
        """Whether the sites of that name are measured at `step`, at which something is."""
        return not self.staggered or (step - self.offset - _number(name)) % self.every == 0


@lru_cache(maxsize=1 << 16)
def _number(name: str) -> int:
    """The same in all processes, as Python's own hash is not."""
    return crc32(name.encode())


def schedules_by_kind(
    default: Schedule,
    by_kind: Mapping[str, Schedule | int],
    kinds: str | Sequence[str],
    known: Sequence[str] = KINDS,
) -> dict[str, Schedule]:
    """The schedule of each kind: its own, or the default one; a number stands for its `every`.

    A kind that has one of its own is observed, too.

    Args:
        kinds: what is observed; one, or several.
        known: what there is.

    Raises:
        SettingError: a schedule cannot be used, or is for a kind that does not exist.
    """
    kinds = [kinds] if isinstance(kinds, str) else kinds
    for kind in (*by_kind, *kinds):
        if kind not in known:
            near = get_close_matches(kind, known, n=3, cutoff=0.4) or list(known)
            raise SettingError(f"There is no kind {kind!r}; did you mean {', '.join(near)}?")
    chosen = {kind: by_kind.get(kind, default) for kind in dict.fromkeys((*kinds, *by_kind))}
    return {
        kind: replace(default, every=schedule) if isinstance(schedule, int) else schedule
        for kind, schedule in chosen.items()
    }


def strides_by_kind(
    sample: float | Mapping[str, float] | None, kinds: Sequence[str]
) -> dict[str, int]:
    """Of each kind, of how many clusters of elements one is read: `sample` is the share.

    Raises:
        SettingError: a share cannot be used, or is for a kind that is not observed.
    """
    shares = (
        sample
        if isinstance(sample, Mapping)
        else dict.fromkeys(kinds, 1.0 if sample is None else sample)
    )
    for kind, share in shares.items():
        if kind not in kinds:
            raise SettingError(f"`sample` names {kind!r}; observed are {', '.join(kinds)}.")
        if share != 1 and not 1 / MAX_STRIDE <= share <= 1 / 2:
            raise SettingError(
                f"`sample` must be a share of the elements from 1/{MAX_STRIDE} to 1/2, got {share}."
            )
    return {kind: round(1 / share) for kind, share in shares.items()}
