"""The models of the overhead figures: GPTs, of which the small one is that of the measurements of
the seed systems."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Size:
    """Of a model and its batches."""

    vocabulary: int
    context: int
    batch: int
    width: int
    heads: int
    layers: int


SMALL = Size(vocabulary=2048, context=128, batch=8, width=256, heads=4, layers=4)
"""4.2 million parameters in 53 tensors."""
LARGE = Size(vocabulary=32_000, context=2048, batch=4, width=2048, heads=16, layers=18)
"""1.04 billion parameters in 221 tensors."""


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self._heads = size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, width = x.shape
        q, k, v = (
            part.view(b, t, self._heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, width))


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.norm1, self.attention = nn.LayerNorm(width), Attention(size)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A decoder."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Job:
    """A model in training: `step` is one whole step on its own stream of random tokens."""

    def __init__(
        self,
        seed: int = 0,
        size: Size = SMALL,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        torch.manual_seed(seed)
        self._size, self._device = size, device
        with torch.device(device):
            self.model = Gpt(size).to(dtype)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, fused=device == "cuda" or None
        )
        self._tokens = torch.Generator(device).manual_seed(seed)

    def queue(self) -> torch.Tensor:
        """The loss of one step, which a GPU may have yet to run."""
        shape = (self._size.batch, self._size.context + 1)
        tokens = torch.randint(
            self._size.vocabulary, shape, generator=self._tokens, device=self._device
        )
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def step(self) -> float:
        """The loss of one step."""
        return self.queue().item()
