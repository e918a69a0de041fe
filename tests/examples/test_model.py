"""The demo's GPT: float32, but for the float16 activation in each block."""

from __future__ import annotations

import math

import pytest
import torch

from rankscope.examples.job import SIZES
from rankscope.examples.model import GPT

TINY = SIZES["tiny"]


def test_before_training_every_byte_is_equally_likely() -> None:
    torch.manual_seed(0)
    x = torch.randint(256, (4, TINY.context))

    loss = GPT(TINY)(x, x).detach()

    assert float(loss) == pytest.approx(math.log(256), abs=0.1)


def test_no_position_sees_a_later_one() -> None:
    torch.manual_seed(0)
    model, x = GPT(TINY), torch.randint(256, (1, TINY.context))
    outputs: list[torch.Tensor] = []

    def note(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        outputs.append(output)

    model.head.register_forward_hook(note)
    changed = x.clone()
    changed[0, 20] = (x[0, 20] + 1) % 256

    model(x, x)
    model(changed, x)

    same = (outputs[0] == outputs[1]).all(dim=-1)[0]
    assert same[:20].all()
    assert not same[20]


def test_gradients_reach_every_parameter_through_float16() -> None:
    torch.manual_seed(0)
    model, x = GPT(TINY), torch.randint(256, (4, TINY.context))
    dtypes: list[torch.dtype] = []
    act = model.get_submodule("blocks.0.mlp.act")

    def note(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        dtypes.append(output.dtype)

    act.register_forward_hook(note)

    model(x, x).backward()

    assert dtypes == [torch.float16]
    for name, weight in model.named_parameters():
        assert weight.dtype == torch.float32
        assert weight.grad is not None, name
        assert weight.grad.any(), name
