"""What the jobs of the bench learn: each kind of batch without end of learning, but of steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from rankscope.examples.text import draw_batch, read_text

FEATURES, CLASSES = 64, 10
CONTEXT = 32
PIXELS, ANGLES = 16, 8
LETTERS = 4
USERS, THINGS = 4000, 2000


def generator_of(seed: int) -> torch.Generator:
    """Of this rank: ranks draw samples of their own."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    return torch.Generator().manual_seed(1000 * seed + rank)


def clusters(seed: int, steps: int, samples: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
    """float32 [samples, FEATURES] around the centres of overlapping classes, and these classes."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(seed))
    dice = generator_of(seed)
    for _ in range(steps):
        y = torch.randint(CLASSES, (samples,), generator=dice)
        yield 0.3 * centres[y] + torch.randn(samples, FEATURES, generator=dice), y


def signals(seed: int, steps: int, samples: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
    """float32 [samples, FEATURES] of few dimensions under little noise, and the same without it."""
    basis = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(seed)) / 8**0.5
    dice = generator_of(seed)
    for _ in range(steps):
        clean = torch.randn(samples, 8, generator=dice) @ basis
        yield clean + 0.1 * torch.randn(samples, FEATURES, generator=dice), clean


def text(seed: int, steps: int, samples: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    """int64 [samples, CONTEXT] bytes of Python's standard library, and the bytes one later."""
    every, dice = read_text(), generator_of(seed)
    for _ in range(steps):
        yield draw_batch(every, samples, CONTEXT, dice)


def gratings(seed: int, steps: int, samples: int = 32) -> Iterator[tuple[Tensor, Tensor]]:
    """float32 [samples, 1, PIXELS, PIXELS] stripes under noise, and the number of their angle."""
    dice = generator_of(seed)
    rows, columns = torch.meshgrid(torch.arange(PIXELS), torch.arange(PIXELS), indexing="ij")
    for _ in range(steps):
        y = torch.randint(ANGLES, (samples,), generator=dice)
        angle = (y * math.pi / ANGLES)[:, None, None]
        phase = 2 * math.pi * torch.rand(samples, 1, 1, generator=dice)
        stripes = torch.sin(angle.cos() * rows + angle.sin() * columns + phase)
        noise = 0.5 * torch.randn(samples, PIXELS, PIXELS, generator=dice)
        yield (stripes + noise)[:, None], y


def padded(seed: int, steps: int, samples: int = 16) -> Iterator[tuple[Tensor, Tensor]]:
    """int64 [samples, CONTEXT] bytes of texts of several lengths, then zeros, and which of a few
    letters is the most frequent in each."""
    letters = torch.tensor(list(b"etao")[:LETTERS])
    dice = generator_of(seed)
    for x, _ in text(seed, steps, samples):
        x = x.clamp(min=1)
        length = torch.randint(8, CONTEXT + 1, (samples, 1), generator=dice)
        x[torch.arange(CONTEXT) >= length] = 0
        yield x, (x[..., None] == letters).sum(1).argmax(-1)


def ratings(seed: int, steps: int, samples: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
    """int64 [samples, 2] users and things, few of them often and most rarely, and ratings."""
    taste = torch.Generator().manual_seed(seed)
    users = torch.randn(USERS, 4, generator=taste)
    things = torch.randn(THINGS, 4, generator=taste)
    dice = generator_of(seed)
    for _ in range(steps):
        chosen = [
            torch.multinomial(1 / torch.arange(1, most + 1), samples, True, generator=dice)
            for most in (USERS, THINGS)
        ]
        noise = 0.1 * torch.randn(samples, generator=dice)
        yield torch.stack(chosen, 1), (users[chosen[0]] * things[chosen[1]]).mean(1) + noise
