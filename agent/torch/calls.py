"""Calls of taps in a step that are not all measured: of some the last is, every n-th, or their sum.

What is not to be measured at its call is kept until the step ends, as a copy: the job may go on to
change it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import torch

from ...sketch.errors import SettingError
from ...wire.messages import Placement
from ..modes import ALL, Mode
from ..sitebook import Key
from .local import local_tensor

_parse = cache(Mode.parse)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """What was kept of one site."""

    tensor: torch.Tensor
    """A copy, or a sum; a DTensor where the calls' are."""
    placed: Mapping[str, Placement] | None
    used: torch.cuda.Event | None
    """When the device is through with what was queued on it."""


class Calls:
    """Of the step that is open.

    Args:
        report: tells a sentence in the run.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._modes: dict[tuple[str, str, int], Mode] = {}
        """By kind, name and occurrence; all that are not here: `all`."""
        self._counts = Counter[Key]()
        self._held: dict[Key, Held | None] = {}
        """None: calls that cannot be added up."""
        self._told = set[object]()

    def take_as(self, kind: str, name: str, occurrence: int, mode: str) -> None:
        """Say what is taken of a tap, or a print, and its gradient until the step ends."""
        try:
            parsed = _parse(mode)
        except SettingError as error:  # never into the training loop: told in the run
            self._tell_once(mode, f"All calls of the {kind} {name} are taken: {error}")
            parsed = ALL
        if parsed != ALL:
            self._modes[kind, name, occurrence] = parsed
        else:
            self._modes.pop((kind, name, occurrence), None)

    def passes(
        self, key: Key, tensor: torch.Tensor, placed: Mapping[str, Placement] | None
    ) -> bool:
        """Whether this call is measured now; what is measured at the step's end is kept.

        Args:
            tensor: what `local_tensor` can read, itself if it is no DTensor.
        """
        mode = self._modes.get((key[0], key[1], key[3]))
        if mode is None:
            return True
        if mode.name == "every":
            self._counts[key] += 1
            return self._counts[key] % mode.period == 0
        # What is made in inference mode could be changed only there.
        with torch.no_grad(), torch.inference_mode(mode=False):
            before = self._held.get(key) if mode.name == "sum" else None
            if before is not None:
                self._held[key] = self._added(key, before, tensor)
            elif mode.name == "final" or key not in self._held:
                copy = _copied(tensor, widened=mode.name == "sum")
                self._held[key] = Held(copy, placed, _event_after(copy))
        return False

    def end(self) -> list[tuple[Key, Held]]:
        """What was kept, ready to be read; nothing is from now on."""
        held = [(key, one) for key, one in self._held.items() if one is not None]
        self.forget()
        for _, one in held:
            _wait_for(one)
        return held

    def forget(self) -> None:
        """Keep nothing, and have all calls measured."""
        self._held, self._modes, self._counts = {}, {}, Counter()

    def _added(self, key: Key, before: Held, tensor: torch.Tensor) -> Held | None:
        kept, new = _form(before.tensor), _form(tensor)
        total, addend = local_tensor(before.tensor), local_tensor(tensor)
        if kept != new or total is None or addend is None:
            self._tell_once(
                key,
                f"No sum of {key[0]}:{key[1]} is measured where its calls cannot be added up: "
                f"one has the shape {list(before.tensor.shape)}, another {list(tensor.shape)}",
            )
            return None
        _wait_for(before)
        total.add_(addend)
        return Held(before.tensor, before.placed, _event_after(total))

    def _tell_once(self, what: object, sentence: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._report(sentence)
            logger.warning("%s.", sentence.rstrip("."))


def _form(tensor: torch.Tensor) -> object:
    """What tensors must have in common to be added up without a word to other ranks."""
    return tensor.shape, getattr(tensor, "placements", None), tensor.device


def _copied(tensor: torch.Tensor, *, widened: bool) -> torch.Tensor:
    """A copy of the elements; in float32 where those of a sum have fewer bits."""
    narrow = widened and tensor.is_floating_point() and tensor.element_size() < 4
    dtype = torch.float32 if narrow else tensor.dtype
    return tensor.detach().to(dtype, copy=True)


def _event_after(tensor: torch.Tensor) -> torch.cuda.Event | None:
    """When the current stream is where it is now, of a tensor on a CUDA device."""
    if tensor.device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(tensor.device))
    return event


def _wait_for(held: Held) -> None:
    """Have the current stream wait for it, and keep its memory until that is through, too."""
    piece = local_tensor(held.tensor)
    if held.used is not None and piece is not None:
        stream = torch.cuda.current_stream(piece.device)
        stream.wait_event(held.used)
        piece.record_stream(stream)
