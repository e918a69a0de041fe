"""Faulty jobs: each trains a small model in earnest, with one fault in it, and the truth about it.

The names of functions are those of the runs. A cause may have several jobs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from . import data
from .job import RANKS, Fault, Job, Watch, paced, train
from .models import GPT, WIDTH, Reader, gated_gpt, mlp

STEPS, FAULTY, YOUNG = 160, 80, 20
"""Steps of most jobs, and the one in which something goes wrong; of one that is young then."""
LAYERS = ("fc1", "fc2", "fc3", "head")
"""Of the `mlp`."""


def of_layers(kind: str, layers: tuple[str, ...] = LAYERS, what: str = "") -> tuple[str, ...]:
    """Labels of sites of one kind."""
    return tuple(f"{kind}:{layer}{what}" for layer in layers)


def learning_rate(watch: Watch) -> None:
    """A schedule's bug: Adam's rate a hundred times too high."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    spoil_rate(watch, model, optimizer)


def learning_rate_sgd(watch: Watch) -> None:
    """The same of plain SGD with momentum."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    spoil_rate(watch, model, optimizer)


def spoil_rate(watch: Watch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train, and from one step on with the wrong rate."""

    def set_rate(step: int) -> None:
        if step == FAULTY:
            optimizer.param_groups[0]["lr"] *= 100

    train(watch, model, optimizer, data.clusters(watch.seed, STEPS), before_update=set_rate)


def fp16_unscaled(watch: Watch) -> None:
    """Weights and all else in float16; the loss is a mean over many numbers, and has no scale."""
    model = mlp(out=data.FEATURES).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    batches = ((x.half(), y.half()) for x, y in data.signals(watch.seed, STEPS, samples=128))
    train(watch, model, optimizer, batches, loss_of=F.mse_loss)


def fp16_autocast_unscaled(watch: Watch) -> None:
    """Autocast to float16 without a GradScaler."""
    model = mlp(out=data.FEATURES)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer) as scope:
        for x, y in paced(scope, data.signals(watch.seed, STEPS, samples=128)):
            with torch.autocast("cpu", torch.float16):
                loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            scope.step(loss=loss)
            optimizer.zero_grad()


def dead_relu(watch: Watch) -> None:
    """One bad update makes the bias of a layer so negative that none of its units lives."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def kill(step: int) -> None:
        if step == FAULTY:
            model.get_parameter("fc2.bias").data -= 20

    train(watch, model, optimizer, data.clusters(watch.seed, STEPS), after_update=kill)


def frozen_layer(watch: Watch) -> None:
    """A layer's parameters were not given to the optimizer."""
    model = mlp()
    given = [one for name, one in model.named_parameters() if not name.startswith("fc2")]
    optimizer = torch.optim.SGD(given, lr=0.05, momentum=0.9)
    train(watch, model, optimizer, data.clusters(watch.seed, STEPS))


class Scaled(nn.Linear):
    """A linear layer of large weights, and a small factor behind them."""

    def forward(self, input: Tensor) -> Tensor:
        return 0.04 * super().forward(input)


def lost_updates(watch: Watch) -> None:
    """The weights of a bfloat16 layer are so large that all updates are rounded away."""
    model = mlp()
    large = Scaled(WIDTH, WIDTH)
    nn.init.uniform_(large.weight, 1, 2)
    large.weight.data *= torch.randn_like(large.weight).sign()
    model.set_submodule("fc2", large)
    model.bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = ((x.bfloat16(), y) for x, y in data.clusters(watch.seed, STEPS))
    train(watch, model, optimizer, batches)


def attention_logits(watch: Watch) -> None:
    """Queries and keys of a layer grow without limit."""
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    grown = [model.get_parameter(f"blocks.1.attention.{one}.weight") for one in ("query", "key")]

    def grow(step: int) -> None:
        for weight in grown if step >= FAULTY else ():
            weight.data *= 1.05

    train(watch, model, optimizer, data.text(watch.seed, STEPS), after_update=grow)


def young_branch(watch: Watch) -> None:
    """What a block adds to the residual stream grows by half in each step, soon after the begin."""
    model = gated_gpt(width=32, layers=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    grown = model.get_parameter("blocks.1.down.weight")

    def grow(step: int) -> None:
        if step >= YOUNG:
            grown.data *= 1.5

    batches = data.text(watch.seed, FAULTY)
    train(
        watch,
        model,
        optimizer,
        batches,
        before_update=lambda _: clip_grad_norm_(model.parameters(), 1.0),
        after_update=grow,
    )


def masked_softmax(watch: Watch) -> None:
    """A batch with a sequence that is all padding: the softmax has a row without any key."""
    model = Reader(data.LETTERS)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(watch, model, optimizer, with_an_empty(data.padded(watch.seed, STEPS), FAULTY))


def with_an_empty(
    batches: Iterator[tuple[Tensor, Tensor]], step: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches, one of which has a sequence without a byte."""
    for number, (x, y) in enumerate(batches):
        if number == step:
            x[3] = 0
        yield x, y


def adam_epsilon(watch: Watch) -> None:
    """Adam in float16: its second moments underflow, and so does its epsilon."""
    train_adam_in_half(watch, rate=1e-3, epsilon=1e-8)


def adam_epsilon_huge(watch: Watch) -> None:
    """The same with an epsilon that float16 holds: updates are far larger than the rate."""
    train_adam_in_half(watch, rate=3e-4, epsilon=1e-5)


def train_adam_in_half(watch: Watch, rate: float, epsilon: float) -> None:
    """All in float16."""
    model = mlp().half()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, eps=epsilon)
    batches = ((x.half(), y) for x, y in data.clusters(watch.seed, STEPS))
    train(watch, model, optimizer, batches)


def wrong_init(watch: Watch) -> None:
    """The first weights of a layer are thirty times too large."""
    model = mlp()
    model.get_parameter("fc2.weight").data *= 30
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(watch, model, optimizer, data.clusters(watch.seed, STEPS))


def constant_init(watch: Watch) -> None:
    """All first weights of a layer are the same number."""
    model = mlp()
    nn.init.constant_(model.get_parameter("fc2.weight"), 0.02)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(watch, model, optimizer, data.clusters(watch.seed, STEPS))


def flipped_bit(watch: Watch) -> None:
    """After an update one bit of a weight of one rank is another."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def flip(step: int) -> None:
        if step == FAULTY and dist.get_rank() == 2:
            model.get_parameter("fc2.weight").data.view(torch.int32)[5, 7] ^= 1 << 20

    train(watch, model, optimizer, data.clusters(watch.seed, STEPS, 32), after_update=flip)


def other_data(watch: Watch) -> None:
    """From a step on the samples of one rank are not normalised."""
    train_on_other_data(watch, factor=4.0)


def other_data_shifted(watch: Watch) -> None:
    """The same, but their mean is off."""
    train_on_other_data(watch, offset=2.0)


def train_on_other_data(watch: Watch, factor: float = 1.0, offset: float = 0.0) -> None:
    """Data-parallel; rank 1 gets samples that are another multiple, or shifted."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = list(data.clusters(watch.seed, STEPS, 32))
    if dist.get_rank() == 1:
        batches[FAULTY:] = [(factor * x + offset, y) for x, y in batches[FAULTY:]]
    train(watch, model, optimizer, batches)


WEIGHTS = of_layers("weight", what=".weight")
GRADIENTS = of_layers("activation_gradient", (*LAYERS, "relu1", "relu2", "relu3"))
SECOND_MOMENTS = of_layers("optimizer_state", what=".weight[exp_avg_sq]")
LARGE = ("activation:fc1", "local_weight_gradient:fc1.weight")
SHIFTED = ("activation:fc1", *of_layers("local_weight_gradient", what=".weight"))


FAULTS = (
    Job(
        train=learning_rate,
        fault=Fault(cause="learning_rate", sites=WEIGHTS, step=FAULTY, seen=FAULTY + 1),
    ),
    Job(
        train=learning_rate_sgd,
        fault=Fault(cause="learning_rate", sites=WEIGHTS, step=FAULTY, seen=FAULTY + 1),
    ),
    Job(
        train=fp16_unscaled,
        fault=Fault(cause="fp16_unscaled", sites=GRADIENTS, step=0, seen=0),
    ),
    Job(
        train=fp16_autocast_unscaled,
        fault=Fault(cause="fp16_unscaled", sites=GRADIENTS, step=0, seen=0),
    ),
    Job(
        train=dead_relu,
        fault=Fault(cause="dead_relu", sites=("activation:relu2",), step=FAULTY, seen=FAULTY + 1),
    ),
    Job(
        train=frozen_layer,
        fault=Fault(
            cause="frozen_layer", sites=("weight:fc2.weight", "weight:fc2.bias"), step=0, seen=1
        ),
    ),
    Job(
        train=lost_updates,
        fault=Fault(cause="frozen_layer", sites=("weight:fc2.weight",), step=0, seen=1),
    ),
    Job(
        train=attention_logits,
        fault=Fault(
            cause="attention_logits",
            sites=("activation:blocks.1.attention.scores",),
            step=FAULTY,
            seen=FAULTY + 1,
        ),
    ),
    Job(
        train=young_branch,
        fault=Fault(
            cause="young_branch",
            sites=("activation:blocks.1.down",),
            step=YOUNG,
            seen=YOUNG + 1,
        ),
    ),
    Job(
        train=masked_softmax,
        fault=Fault(
            cause="masked_softmax",
            sites=("activation:blocks.0.attention.softmax",),
            step=FAULTY,
            seen=FAULTY,
        ),
    ),
    Job(
        train=adam_epsilon,
        fault=Fault(cause="adam_epsilon", sites=SECOND_MOMENTS, step=0, seen=0),
    ),
    Job(
        train=adam_epsilon_huge,
        fault=Fault(cause="adam_epsilon", sites=SECOND_MOMENTS, step=0, seen=0),
    ),
    Job(
        train=wrong_init,
        fault=Fault(cause="wrong_init", sites=("weight:fc2.weight",), step=0, seen=0),
    ),
    Job(
        train=constant_init,
        fault=Fault(cause="wrong_init", sites=("weight:fc2.weight",), step=0, seen=0),
    ),
    Job(
        train=flipped_bit,
        ranks=RANKS,
        fault=Fault(
            cause="flipped_bit",
            sites=("weight:fc2.weight",),
            step=FAULTY,
            seen=FAULTY + 1,
            ranks=(2,),
        ),
    ),
    Job(
        train=other_data,
        ranks=RANKS,
        fault=Fault(cause="other_data", sites=LARGE, step=FAULTY, seen=FAULTY, ranks=(1,)),
    ),
    Job(
        train=other_data_shifted,
        ranks=RANKS,
        fault=Fault(cause="other_data", sites=SHIFTED, step=FAULTY, seen=FAULTY, ranks=(1,)),
    ),
)
