"""Quantities of the user's own, and attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch


def test_a_plain_function_is_a_quantity(
    watch: Callable[..., Any], registered: Callable[..., None]
) -> None:
    def spread(x: torch.Tensor, *, share: float = 1.0) -> torch.Tensor:
        return share * (x.amax() - x.amin())

    registered("input_spread", spread, needs=["input"], merge="maximum")
    model = torch.nn.Identity()
    watched = watch(model, {"Identity": ["input_spread", "input_spread(share=0.5)"]})

    def micro_batches() -> None:
        model(torch.tensor([[1.0, 3.0]]))
        model(torch.tensor([[1.0, 5.0]]))

    found = watched.step(0, micro_batches)["(root)"]

    assert found == {"input_spread": [4.0], "input_spread(share=0.5)": [2.0]}


def test_a_function_may_have_an_option_channels_of_its_own(
    watch: Callable[..., Any], registered: Callable[..., None]
) -> None:
    def first(x: torch.Tensor, *, channels: int = 1) -> torch.Tensor:
        return x[..., :channels].sum()

    registered("first_channels", first, needs=["input_by_channel"])
    model = torch.nn.Identity()
    watched = watch(model, {"Identity": ["first_channels(channels=2)"]})

    found = watched.step(0, lambda: model(torch.ones(1, 3)))["(root)"]

    assert found == {"first_channels(channels=2)": [2.0]}


def test_a_function_may_need_a_forward_and_its_backward(
    watch: Callable[..., Any], registered: Callable[..., None]
) -> None:
    def of_both(
        x: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, dy: torch.Tensor
    ) -> torch.Tensor:
        return torch.stack([x.sum(), y.sum(), dx.sum(), dy.sum()])

    needs = ["input", "output", "input_gradient", "output_gradient"]
    registered("of_both", of_both, needs=needs)
    model = torch.nn.Softplus()
    x = torch.randn(4, 3, requires_grad=True)
    watched = watch(model, {"Softplus": ["of_both"]})

    found = watched.step(0, lambda: (2 * model(x)).sum().backward())["(root)"]["of_both"]

    assert x.grad is not None
    right = [one.sum().item() for one in (x, torch.nn.functional.softplus(x), x.grad)]
    assert found == pytest.approx([*right, 24.0], rel=1e-5)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda x: x, r"a tensor of shape \[4, 3\], and not one number"),
        (lambda x: 3.0, r"it returned float, and not a tensor"),
        (lambda x: x.flatten()[: x.new_ones(()).item()], "indices must be integers"),
    ],
)
def test_what_a_function_does_wrong_of_a_module_is_told_once(
    watch: Callable[..., Any],
    registered: Callable[..., None],
    function: Callable[..., Any],
    sentence: str,
) -> None:
    registered("wrong", function, needs=["input"])
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU())
    watched = watch(model, {"ReLU": ["dead_neurons"], "0": ["wrong"]})

    for step in range(3):
        found = watched.step(step, lambda: model(torch.randn(4, 3)))
        assert sorted(found["0"]) == ["dead_neurons"]

    [told] = watched.reports
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(told)


def test_modules_of_which_a_function_raises_alike_are_told_together(
    watch: Callable[..., Any], registered: Callable[..., None]
) -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no idea")

    registered("wrong", wrong, needs=["input"])
    model = torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(1000)))
    watched = watch(model, {"ReLU": ["wrong"]})

    for step in range(3):
        watched.step(step, lambda: model(torch.randn(4, 3)))

    assert watched.reports == [
        "wrong of 0 is no longer computed: no idea",
        "wrong of 1, 2, 3 and 996 more is no longer computed, either: ValueError",
    ]


def test_a_matrix_beyond_its_limit_is_told_and_left_out(watch: Callable[..., Any]) -> None:
    model = torch.nn.Identity()
    watched = watch(model, {"Identity": ["input_cov_trace(limit=2)", "rank_me(limit=5)"]})

    found = watched.step(0, lambda: model(torch.randn(5, 9)))["(root)"]

    assert sorted(found) == ["rank_me(limit=5)"]
    assert "5 x 9 is beyond its limit of 2; write input_cov_trace(limit=…)" in watched.reports[0]


@pytest.mark.parametrize("batch_first", [False, True])
def test_attention_is_that_of_the_module(watch: Callable[..., Any], batch_first: bool) -> None:
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=batch_first)
    x = torch.randn(5, 5, 8)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    watched = watch(attention, {"(root)": ["attention_entropy", "attention_largest_logit"]})

    def forward() -> torch.Tensor:
        made = attention(x, x, x, attn_mask=mask, average_attn_weights=False)
        return made[1]

    shown = list[torch.Tensor]()
    found = watched.step(0, lambda: shown.append(forward()))["(root)"]

    right = torch.special.entr(shown[0].double()).sum(-1).mean().item()
    assert found["attention_entropy"] == pytest.approx([right], rel=1e-5)
    assert watched.reports == []


def test_what_is_no_attention_has_no_entropy(watch: Callable[..., Any]) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    asked = ["attention_entropy", "attention_largest_logit"]
    watched = watch(layer, {"(root)": asked, "1": "attention_entropy"})

    found = watched.step(0, lambda: layer(torch.randn(3, 4)))

    assert np.isnan([found[name]["attention_entropy"][0] for name in ("(root)", "1")]).all()
    assert sorted(found["(root)"]) == ["attention_entropy"]
    [told] = watched.reports
    assert told.endswith(
        "what a Sequential takes are no logits, for it has parameters; ask for the "
        "torch.nn.Softmax in it"
    )


def test_queries_that_look_at_nothing_do_not_count(watch: Callable[..., Any]) -> None:
    model = torch.nn.Identity()
    watched = watch(model, {"Identity": "attention_entropy"})
    probabilities = torch.tensor([[0.5, 0.5], [0.0, 0.0]])

    found = watched.step(0, lambda: model(probabilities))["(root)"]

    assert found["attention_entropy"] == pytest.approx([0.6931472])


@pytest.mark.parametrize(
    ("asked", "sizes", "why"),
    [
        ("input_channel_mean", [0], "what passed through it had no elements"),
        ("rank_me(limit=2)", [2, 1], "its batch has 1 samples, and the first one had 2"),
    ],
)
def test_why_nothing_came_of_a_module_is_told(
    watch: Callable[..., Any], asked: str, sizes: list[int], why: str
) -> None:
    model = torch.nn.Identity()
    watched = watch(model, {"Identity": asked})

    for step, size in enumerate(sizes):
        watched.step(step, lambda n=size: model(torch.randn(n, 3)))

    [told] = watched.reports
    assert told.endswith(f"in a step in which it was due: {why}")


def test_attention_of_ones_own_is_read_at_its_softmax(watch: Callable[..., Any]) -> None:
    softmax = torch.nn.Softmax(-1)
    watched = watch(softmax, {"Softmax": ["attention_entropy", "attention_largest_logit"]})

    found = watched.step(0, lambda: softmax(torch.tensor([[[3.0, 3.0], [9.0, 9.0]]])))["(root)"]

    assert found["attention_entropy"] == pytest.approx([0.6931472])
    assert found["attention_largest_logit"] == [9.0]
