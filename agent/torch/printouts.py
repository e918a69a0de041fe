"""`scope.print`: from a tensor to what of it is printed, without waiting for its device."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch

from ..printing import Printer, PrintOptions, Printout
from ..sitebook import Key
from .device import has_passed
from .local import dtype_name

AS_BY_DEFAULT = PrintOptions()


def in_words(mode: object, **options: object) -> str:
    """A mode and options in one text, as an operator of a compiled graph can take them."""
    return "\n".join([str(mode), *[f"{name} {value}" for name, value in options.items()]])


@cache
def options_of(words: str) -> PrintOptions:
    """The options of `in_words`.

    Raises:
        SettingError: one of them cannot be used.
    """
    pairs = [line.partition(" ") for line in words.splitlines()[1:]]
    options: dict[str, Any] = {name: _value(text) for name, _, text in pairs}
    return PrintOptions(**options)


def _value(text: str) -> object:
    known = {"None": None, "True": True, "False": False}
    if text in known:
        return known[text]
    return int(text) if text.removeprefix("-").isdecimal() else text


class Printouts:
    """Of one agent.

    Args:
        printer: prints what has come from its device.
        rank: who prints.
    """

    def __init__(self, printer: Printer, rank: int) -> None:
        self._printer, self._rank = printer, rank
        self._words: dict[tuple[str, int], str] = {}
        """By name and occurrence, in the step that is open."""

    def print_as(self, name: str, occurrence: int, words: str) -> None:
        """Say how a tensor and its gradient are printed until the step ends."""
        self._words[name, occurrence] = words

    def show(self, step: int, key: Key, piece: torch.Tensor) -> None:
        """Have a rank's own elements printed.

        Raises:
            SettingError: the options cannot be used.
        """
        _, name, slot, occurrence = key
        words = self._words.get((name, occurrence))
        how = options_of(words) if words is not None else AS_BY_DEFAULT
        call, suffix = f"#{occurrence}" if occurrence else "", f" {slot}" if slot else ""
        home, there = _sent_home(_chosen(piece, how))
        self._printer.put(
            Printout(
                title=f"{name}{call}{suffix} (step {step}, rank {self._rank})",
                shape=tuple(piece.shape),
                dtype=dtype_name(piece.dtype),
                how=how,
                nbytes=home.nbytes,
                elements=home.numpy,
                is_there=_at_once if there is None else partial(has_passed, there, piece.device),
            )
        )

    def forget(self) -> None:
        """The step ends."""
        self._words = {}


def _at_once() -> bool:
    return True


def _chosen(piece: torch.Tensor, how: PrintOptions) -> torch.Tensor:
    """What is printed of a tensor: all of it, or the ends of its axes."""
    if how.is_summary(piece.numel()):
        for axis in how.cuts(piece.shape):
            first = piece.narrow(axis, 0, how.edgeitems + 1)
            last = piece.narrow(axis, piece.shape[axis] - how.edgeitems, how.edgeitems)
            piece = torch.cat([first, last], axis)
    return piece


def _sent_home(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """A copy on the host, in float64; and when it has come."""
    if chosen.device.type != "cuda":
        return chosen.to("cpu", torch.float64, copy=True), None
    home = torch.empty(chosen.shape, dtype=torch.float64, device="cpu", pin_memory=True)
    home.copy_(chosen, non_blocking=True)
    there = torch.cuda.Event()
    there.record(torch.cuda.current_stream(chosen.device))
    return home, there
