"""At which steps a kind is measured."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Self, get_args
from zlib import crc32

from ..sketch.errors import SettingError
from ..wire.messages import Kind

MAX_STRIDE = 1024
"""A sample has at least so small a part of the elements."""
KINDS: tuple[str, ...] = get_args(Kind)

logger = logging.getLogger(__name__)

_CALL = re.compile(r"\s*(?P<name>\w+)\s*(?:\((?P<arguments>[\d\s,]*)\)\s*)?")
_NAMES = ("linear", "logarithmic", "on_alert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Steps `offset`, `offset + every`, … that lie in one of the `ranges`, if `when` says so."""

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
    when: Callable[[int], bool] | None = None
    """Asked of each step that is due but for it. It must say the same on all ranks, whenever and on
    whichever thread it is asked. What it raises is logged, and the step is not due."""

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

    @classmethod
    def logarithmic(cls, per_decade: int = 10) -> Self:
        """Step 0, and so many steps in each decade, evenly spaced on a logarithmic axis.

        Raises:
            SettingError: `per_decade` is below 1.
        """
        if per_decade < 1:
            raise SettingError(f"`per_decade` must be a positive number, got {per_decade}.")
        return cls(when=lambda step: _is_on_logarithmic_axis(step, per_decade))

    @classmethod
    def on_alert(cls) -> Self:
        """No step but those in which the collector has all ranks look closer, for an alert."""
        return cls(when=never)

    @classmethod
    def parse(cls, text: str) -> Self:
        """A schedule in words: `linear(interval, offset)`, `logarithmic(per_decade)`, `on_alert`.

        Numbers may be left out from the right, and so may empty parentheses.

        Raises:
            SettingError: it is none of these.
        """
        found = _CALL.fullmatch(text)
        name = found["name"] if found else ""
        numbers = re.findall(r"\d+", found["arguments"] or "") if found else []
        match name, [int(number) for number in numbers]:
            case "linear", [] | [_] | [_, _] as given:
                return cls(**dict(zip(("every", "offset"), given, strict=False)))
            case "logarithmic", [] | [_] as given:
                return cls.logarithmic(*given)
            case "on_alert", []:
                return cls.on_alert()
            case _:
                near = get_close_matches(name, _NAMES, n=1) or _NAMES
                raise SettingError(
                    f"{text!r} is no schedule; write linear(interval, offset), "
                    f"logarithmic(per_decade) or on_alert (did you mean {' or '.join(near)}?)."
                )

    def due(self, step: int) -> bool:
        """Whether something is measured at `step`."""
        turn = self.staggered or (step - self.offset) % self.every == 0
        if step < self.offset or not turn:
            return False
        if self.ranges and not any(first <= step <= last for first, last in self.ranges):
            return False
        return self.when is None or _says(self.when, step)

    @property
    def is_whole(self) -> bool:
        """Whether everything is measured at every step."""
        return self.every == 1 and self.offset == 0 and not self.ranges and self.when is None

    def is_turn_of(self, name: str, step: int) -> bool:
        """Whether the sites of that name are measured at `step`, at which something is."""
        return not self.staggered or self.turn_of(name) == step % self.every

    def turn_of(self, name: str) -> int:
        """Of sites that take turns: the remainder of those steps, by `every`, that are theirs."""
        return (self.offset + _number(name)) % self.every


Scheduled = Schedule | int | str | Callable[[int], bool]
"""What stands for a schedule."""


def never(_: int) -> bool:
    """In no step."""
    return False


def _says(when: Callable[[int], bool], step: int) -> bool:
    try:
        return bool(when(step))
    except Exception as error:  # never into the training loop
        _log_once(f"The condition of a schedule has failed, and says no: {error!r}")
        return False


@lru_cache(maxsize=64)
def _log_once(sentence: str) -> None:
    logger.warning(sentence)


def _is_on_logarithmic_axis(step: int, per_decade: int) -> bool:
    if step < 1:
        return step == 0
    near = round(per_decade * math.log10(step))
    return any(round(10 ** (at / per_decade)) == step for at in (near - 1, near, near + 1))


@lru_cache(maxsize=1 << 16)
def _number(name: str) -> int:
    """The same in all processes, as Python's own hash is not."""
    return crc32(name.encode())


def schedules_by_kind(
    default: Schedule,
    by_kind: Mapping[str, Scheduled],
    kinds: str | Sequence[str],
    known: Sequence[str] = KINDS,
) -> dict[str, Schedule]:
    """The schedule of each kind: its own, or the default one.

    A number stands for its `every`, a text for what `Schedule.parse` makes of it, a function for
    its `when`. A kind that has one of its own is observed, too.

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
    return {kind: schedule_of(given, default, kind) for kind, given in chosen.items()}


def schedule_of(given: object, default: Schedule, whose: str) -> Schedule:
    """What stands for a schedule, as one; where a part is not said it is that of the default.

    Raises:
        SettingError: it cannot be used.
    """
    match given:
        case Schedule():
            return given
        case int():
            return replace(default, every=given)
        case str():
            return Schedule.parse(given)
        case _ if callable(given):
            return replace(default, when=given)
        case _:
            raise SettingError(
                f"The schedule of {whose!r} must be a Schedule, a number of steps, a text as "
                f"'linear(10)', or a function of the step, got {given!r}."
            )


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
