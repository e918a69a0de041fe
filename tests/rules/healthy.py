"""Healthy jobs: what ordinary training does that a rule must not call a fault.

The names of functions are those of the runs; each docstring says what looks odd in it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LambdaLR, MultiStepLR

from . import data
from .job import RANKS, Job, Watch, train
from .models import GPT, Ratings, Recurrent, convolutions, gated_gpt, mlp

STEPS = 160


def mlp_sgd(watch: Watch) -> None:
    """SGD with momentum and weight decay: nothing is odd."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    train(watch, model, optimizer, data.clusters(watch.seed, 2 * STEPS))


def regression(watch: Watch) -> None:
    """A loss that falls by a hundred, and gradients with it."""
    model = mlp(out=data.FEATURES)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(watch, model, optimizer, data.signals(watch.seed, STEPS), loss_of=F.mse_loss)


def cnn_adam(watch: Watch) -> None:
    """Convolutions and batch normalisation, whose running statistics are no weights."""
    model = convolutions()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    train(watch, model, optimizer, data.gratings(watch.seed, STEPS))


def gpt(watch: Watch) -> None:
    """A rate that warms up from nothing, and goes back to nothing."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    schedule = LambdaLR(optimizer, warm_up_and_cosine)
    batches = data.text(watch.seed, STEPS)
    train(watch, model, optimizer, batches, after_update=lambda _: schedule.step())


def zero_positions(watch: Watch) -> None:
    """A position embedding that begins at zero: its first steps are as large as it is."""
    model = GPT()
    nn.init.zeros_(model.positions.weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = LambdaLR(optimizer, lambda step: min((step + 1) / 20, 1.0))
    batches = data.text(watch.seed, STEPS)
    train(watch, model, optimizer, batches, after_update=lambda _: schedule.step())


def warm_up_and_cosine(step: int) -> float:
    """The rate's factor: a linear warm-up over 20 steps, then a cosine to 0."""
    return min((step + 1) / 20, 0.5 + 0.5 * math.cos(math.pi * step / STEPS))


def zero_branches(watch: Watch) -> None:
    """What is added to the residual stream begins at zero, and becomes as large as the rest."""
    model = GPT()
    for name, parameter in model.named_parameters():
        if name.endswith(("down.weight", "attention.out.weight")):
            nn.init.zeros_(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = LambdaLR(optimizer, warm_up_and_cosine)
    batches = data.text(watch.seed, STEPS)
    train(watch, model, optimizer, batches, after_update=lambda _: schedule.step())


def small_gated(watch: Watch) -> None:
    """Gated layers with small weights give next to nothing at first, and grow a thousandfold."""
    model = gated_gpt(width=32, layers=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    schedule = LambdaLR(optimizer, warm_up_and_cosine)
    batches = data.text(watch.seed, STEPS)
    train(watch, model, optimizer, batches, after_update=lambda _: schedule.step())


def fast_gated(watch: Watch) -> None:
    """The same, wider and faster: a thousandfold in thirteen steps, and all else with it."""
    model = gated_gpt(width=64, layers=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
    schedule = LambdaLR(optimizer, warm_up_and_cosine)
    batches = data.text(watch.seed, STEPS // 2)
    train(
        watch,
        model,
        optimizer,
        batches,
        before_update=lambda _: clip_grad_norm_(model.parameters(), 1.0),
        after_update=lambda _: schedule.step(),
    )


def gpt_bf16_autocast(watch: Watch) -> None:
    """Activations and their gradients in bfloat16, weights in float32."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as scope:
        for x, y in data.text(watch.seed, STEPS):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scope.step(loss=loss)
            optimizer.zero_grad()


def mlp_bf16(watch: Watch) -> None:
    """All in bfloat16: many updates of single weights are rounded away, and it learns."""
    model = mlp().bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = ((x.bfloat16(), y) for x, y in data.clusters(watch.seed, STEPS))
    train(watch, model, optimizer, batches)


def fp16_scaled(watch: Watch) -> None:
    """A GradScaler that begins too high and grows until gradients overflow: steps are skipped."""
    model = mlp(out=data.FEATURES)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26, growth_interval=20)
    with watch(model, optimizer, scaler=scaler) as scope:
        for x, y in data.signals(watch.seed, STEPS, samples=128):
            with torch.autocast("cpu", torch.float16):
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scope.step(loss=loss)
            optimizer.zero_grad()


def lstm_clipped(watch: Watch) -> None:
    """Gradients that are clipped in most steps, some by much."""
    model = Recurrent()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def clip(step: int) -> None:
        clip_grad_norm_(model.parameters(), max_norm=0.25)

    train(watch, model, optimizer, data.text(watch.seed, STEPS), before_update=clip)


def accumulation(watch: Watch) -> None:
    """Four micro-batches a step: modules run four times, and gradients add up."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    micro_batches = data.clusters(watch.seed, 4 * STEPS, samples=16)
    with watch(model, optimizer) as scope:
        while four := list(islice(micro_batches, 4)):
            losses = [F.cross_entropy(model(x), y) / 4 for x, y in four]
            torch.autograd.backward(losses)
            optimizer.step()
            scope.step(loss=sum(loss.item() for loss in losses))
            optimizer.zero_grad()


def fine_tuning(watch: Watch) -> None:
    """Layers that were learnt before, and are frozen on purpose: they have no gradients."""
    model = mlp()
    before = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in data.clusters(watch.seed, STEPS):
        before.zero_grad()
        F.cross_entropy(model(x), y).backward()
        before.step()
    before.zero_grad()
    for layer in ("fc1", "fc2"):
        model.get_submodule(layer).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    other_labels = ((x, (y + 1) % data.CLASSES) for x, y in data.clusters(watch.seed, STEPS))
    train(watch, model, optimizer, other_labels)


def sparse_activations(watch: Watch) -> None:
    """Dropout, and a penalty that makes hidden units silent: nearly all activations are zero."""
    names = ("fc1", "relu1", "drop1", "fc2", "relu2", "drop2", "head")
    wide = (nn.Linear(data.FEATURES, 512), nn.ReLU(), nn.Dropout(0.5))
    more = (nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, data.CLASSES))
    model = nn.Sequential(OrderedDict(zip(names, (*wide, *more), strict=True)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    active = list[Tensor]()

    def note(module: nn.Module, inputs: object, output: Tensor) -> None:
        active.append(output)

    for name in ("relu1", "relu2"):
        model.get_submodule(name).register_forward_hook(note)

    def loss_of(logits: Tensor, y: Tensor) -> Tensor:
        penalty = sum(out.mean() for out in active)
        active.clear()
        return F.cross_entropy(logits, y) + 4 * penalty

    train(watch, model, optimizer, data.clusters(watch.seed, STEPS), loss_of=loss_of)


def small_batches(watch: Watch) -> None:
    """Two samples a step: loss and gradients jump from step to step."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train(watch, model, optimizer, data.clusters(watch.seed, 2 * STEPS, samples=2))


def step_decay(watch: Watch) -> None:
    """A rate that falls to a tenth, twice: so do all updates."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = MultiStepLR(optimizer, [STEPS // 2, 3 * STEPS // 4])
    batches = data.clusters(watch.seed, STEPS)
    train(watch, model, optimizer, batches, after_update=lambda _: schedule.step())


def warm_restarts(watch: Watch) -> None:
    """A rate that jumps up a hundredfold every 40 steps, as it should."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = CosineAnnealingWarmRestarts(optimizer, T_0=40, eta_min=1e-3)
    batches = data.clusters(watch.seed, STEPS)
    train(watch, model, optimizer, batches, after_update=lambda _: schedule.step())


def embeddings(watch: Watch) -> None:
    """Tables of which a step uses few rows: gradients are nearly all zero."""
    model = Ratings()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = data.ratings(watch.seed, STEPS)
    train(watch, model, optimizer, batches, loss_of=F.mse_loss)


def learnt_by_heart(watch: Watch) -> None:
    """The same batch again and again: loss and gradients vanish, for all is learnt."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    [batch] = data.clusters(watch.seed, 1)
    train(watch, model, optimizer, [batch] * STEPS)


def harder_data(watch: Watch) -> None:
    """From a step on all samples are noisier and larger, as a curriculum has it."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = list(data.clusters(watch.seed, STEPS))
    half = STEPS // 2
    batches[half:] = [(x + 0.5 * torch.randn_like(x), y) for x, y in batches[half:]]
    train(watch, model, optimizer, batches)


def ddp(watch: Watch) -> None:
    """Four ranks, each with samples of its own."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(watch, model, optimizer, data.clusters(watch.seed, STEPS, samples=32))


def ddp_small_batches(watch: Watch) -> None:
    """Four ranks with four samples each: ranks differ by chance."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    train(watch, model, optimizer, data.clusters(watch.seed, STEPS, samples=4))


def ddp_gpt(watch: Watch) -> None:
    """Four ranks that read text."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(watch, model, optimizer, data.text(watch.seed, STEPS // 2, samples=4))


ALONE = (
    mlp_sgd,
    regression,
    cnn_adam,
    gpt,
    zero_positions,
    zero_branches,
    small_gated,
    fast_gated,
    gpt_bf16_autocast,
    mlp_bf16,
    fp16_scaled,
    lstm_clipped,
    accumulation,
    fine_tuning,
    sparse_activations,
    small_batches,
    step_decay,
    warm_restarts,
    embeddings,
    learnt_by_heart,
    harder_data,
)
TOGETHER = (ddp, ddp_small_batches, ddp_gpt)
HEALTHY = (
    *(Job(train=one) for one in ALONE),
    *(Job(train=one, ranks=RANKS) for one in TOGETHER),
)
