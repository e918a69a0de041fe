"""A small GPT: blocks of attention and MLP on a residual stream, as in nanoGPT.

All is float32 but one thing: the MLP's hidden activation is held in float16, as mixed precision
would, and float16 ends at 65504.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from .job import Size

# Shapes: B samples, T positions, D width, V symbols.


class HalfGelu(nn.Module):
    """GELU, kept in float16 for the backward, as on an accelerator."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x).half()


class Mlp(nn.Module):
    """What a block thinks about each position alone."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.up = nn.Linear(size.width, 4 * size.width, bias=False)
        self.act = HalfGelu()
        self.down = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)).float())


class Attention(nn.Module):
    """What a block looks up at earlier positions."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention, then MLP; each adds to the residual stream what it makes of it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size.width, bias=False)
        self.attention = Attention(size)
        self.norm2 = nn.LayerNorm(size.width, bias=False)
        self.mlp = Mlp(size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Bytes in, the loss of guessing each next byte out."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.bytes = nn.Embedding(size.symbols, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, bias=False)
        self.head = nn.Linear(size.width, size.symbols, bias=False)
        self.apply(begin)
        for name, weight in self.named_parameters():
            if name.endswith(("out.weight", "down.weight")):  # they add to the residual stream
                nn.init.normal_(weight, std=0.02 / (2 * size.layers) ** 0.5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss, from int64 [B, T] bytes and int64 [B, T] bytes one later."""
        h = self.bytes(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def begin(module: nn.Module) -> None:
    """Draw a module's first weights."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
