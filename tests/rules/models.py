"""The models that the jobs of the bench train; their layers have names, and so have their sites."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from .data import ANGLES, CLASSES, CONTEXT, FEATURES, PIXELS, THINGS, USERS

# Shapes: B samples, T positions, D width, H heads.

WIDTH = 128


def mlp(out: int = CLASSES, width: int = WIDTH) -> nn.Sequential:
    """Three hidden layers: fc1, relu1, … fc3, relu3, head."""
    layers = OrderedDict[str, nn.Module]()
    before = FEATURES
    for number in (1, 2, 3):
        layers[f"fc{number}"] = nn.Linear(before, width)
        layers[f"relu{number}"] = nn.ReLU()
        before = width
    layers["head"] = nn.Linear(width, out)
    return nn.Sequential(layers)


class Scores(nn.Module):
    """Attention logits [B, H, T, T], before any mask."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / q.shape[-1] ** 0.5


class MaskedSoftmax(nn.Module):
    """Softmax over the keys that may be seen; of a row without such it makes NaN."""

    def forward(self, scores: Tensor, visible: Tensor) -> Tensor:
        return scores.masked_fill(~visible, -torch.inf).softmax(-1)


class Attention(nn.Module):
    """Its logits and its weights are sites of their own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.scores, self.softmax = Scores(), MaskedSoftmax()
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        seen = self.softmax(self.scores(q, k), visible) @ v
        return self.out(seen.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention, then two layers for each position alone; both add to the residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.act = nn.Linear(width, 4 * width), nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), visible)
        return x + self.down(self.act(self.up(self.norm2(x))))


class Gated(nn.Module):
    """A layer that another one lets through: where both are small, what comes out is tiny."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(width, out, bias=False), nn.Linear(width, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.gate(x)) * self.value(x)


class GPT(nn.Module):
    """Bytes in, logits of each next byte out: [B, 256, T], as `cross_entropy` takes them."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.apply(begin)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        h = self.bytes(x) + self.positions(places)
        for block in self.blocks:
            h = block(h, places[:, None] >= places)
        return self.head(self.norm(h)).mT


def gated_gpt(width: int, layers: int) -> GPT:
    """A GPT with small weights, whose blocks let one layer through by another one."""
    model = GPT(width=width, layers=layers, heads=2)
    for block in model.blocks:
        block.up, block.act = Gated(width, 3 * width), nn.Identity()
        block.down = nn.Linear(3 * width, width, bias=False)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
    return model


class Reader(nn.Module):
    """Padded sequences of bytes in, a class for each out; byte 0 is padding."""

    def __init__(self, classes: int, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(2))
        self.head = nn.Linear(width, classes)
        self.apply(begin)

    def forward(self, x: Tensor) -> Tensor:
        there = x != 0
        h = self.bytes(x) + self.positions.weight
        for block in self.blocks:
            h = block(h, there[:, None, None, :])
        kept = there[..., None]
        return self.head((h * kept).sum(1) / kept.sum(1).clamp(min=1))


def begin(module: nn.Module) -> None:
    """Draw a transformer's first weights."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.05)
    for name, parameter in module.named_parameters(recurse=False):
        if name == "bias":
            nn.init.zeros_(parameter)


def convolutions() -> nn.Sequential:
    """Three convolutions with batch normalisation, and a head: conv1, norm1, relu1, pool1, …"""
    layers = OrderedDict[str, nn.Module]()
    before = 1
    for number, channels in enumerate((16, 32, 32), start=1):
        layers[f"conv{number}"] = nn.Conv2d(before, channels, 3, padding=1, bias=False)
        layers[f"norm{number}"] = nn.BatchNorm2d(channels)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        before = channels
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(before * (PIXELS // 8) ** 2, ANGLES)
    return nn.Sequential(layers)


class Recurrent(nn.Module):
    """An LSTM that guesses each next byte: logits [B, 256, T]."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.bytes(x))
        return self.head(states).mT


class Ratings(nn.Module):
    """What users, in column 0, think of things, in column 1: products of learnt vectors."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, width)
        self.things = nn.Embedding(THINGS, width)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.users(x[:, 0]) * self.things(x[:, 1]))[:, 0]
