"""The text that the demo learns: the source of Python's own standard library, byte by byte."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

from rankscope.sketch import RankscopeError

MOST_BYTES = 4 << 20


def read_text(folder: Path | None = None) -> Tensor:
    """uint8 [bytes]: the modules in `folder`, else the standard library's, ordered by name.

    Raises:
        RankscopeError: there is too little.
    """
    folder = folder or Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for file in sorted(folder.glob("*.py")):
        if len(text) < MOST_BYTES:
            text += file.read_bytes()
    if len(text) < 1 << 16:
        raise RankscopeError(
            f"The demo learns the source of Python's standard library, but {folder} holds "
            f"{len(text)} bytes of it; use a Python that came with its source."
        )
    return torch.frombuffer(text[:MOST_BYTES], dtype=torch.uint8)


def draw_batch(
    text: Tensor, samples: int, context: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """int64 [samples, context] twice: bytes from random places, and the same one byte later."""
    places = torch.randint(len(text) - context, (samples, 1), generator=generator)
    windows = text[places + torch.arange(context + 1)].long()
    return windows[:, :-1], windows[:, 1:]
