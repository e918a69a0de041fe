"""Compiled models: the same sites and numbers as in eager mode, and one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from rankscope.agent.torch import Scope, tap
from rankscope.sketch import derive

from .gated import Gated

if TYPE_CHECKING:
    from conftest import Observed

    Train = Callable[..., list[float]]

pytestmark = [  # of the compiler itself
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*_prims_common.check:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage]  # it counts over all models
    counters.clear()
    yield
    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage]


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class Mlp(nn.Module):
    """Of a class of our own: torch does not compile the forward of its own containers by itself."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), between, nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Twice(nn.Module):
    """A module that is called twice, by itself and inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.block = nn.Linear(8, 8), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.linear(self.linear(self.block(x))))


class Siamese(nn.Module):
    """Its two calls do not depend on each other, and the compiler may put the second first."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 256), nn.GELU(), nn.Linear(256, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        second = self.encoder(x.repeat(400, 1) * 3)
        first = self.encoder(x)
        return (first @ second.T).sum(0).mean() + first.sum(0)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.block, self.reentrant = nn.Linear(8, 8), Block(), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)
        return self.first(y)


class Tapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tap("logits", self.linear(x) * 2).relu()


class Transformed(nn.Module):
    """Calls its module inside a transform of `torch.func`."""

    def __init__(self, transform: Callable[[nn.Module], Callable[..., torch.Tensor]]) -> None:
        super().__init__()
        self.block, self.transform = Block(), transform

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.transform(self.block)(x)


def per_sample(module: nn.Module) -> Callable[..., torch.Tensor]:
    return torch.func.vmap(module)


def force(module: nn.Module) -> Callable[..., torch.Tensor]:
    return torch.func.grad(lambda x: module(x).square().sum())


def jacobian(module: nn.Module) -> Callable[..., torch.Tensor]:
    return torch.func.vmap(torch.func.jacrev(module))


@dataclass
class Pair:
    first: torch.Tensor
    rest: dict[str, Any]


class Nested(nn.Module):
    """Its inner modules return structures."""

    class Split(nn.Module):
        def __init__(self, shape: type) -> None:
            super().__init__()
            self.shape = shape

        def forward(self, x: torch.Tensor) -> Any:
            y = x * 2
            if self.shape is Pair:
                return Pair(y, {"tail": x + 1, "count": 3})
            return (y, [x + 1, None]) if self.shape is tuple else {"head": y, "tail": x + 1}

    def __init__(self, shape: type) -> None:
        super().__init__()
        self.linear, self.split = nn.Linear(8, 8), self.Split(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.split(self.linear(x))
        match out:
            case Pair():
                return out.first + out.rest["tail"]
            case tuple():
                return out[0] + out[1][0]
            case _:
                return out["head"] + out["tail"]


def whole(model: nn.Module) -> nn.Module:
    model.compile(fullgraph=True)
    return model


def by_block(model: nn.Module) -> nn.Module:
    for block in model.children():
        block.compile(fullgraph=True)
    return model


def run(
    observed: Observed, train: Train, make: Callable[[], nn.Module], **options: Any
) -> dict[str, Any]:
    """The sketches of the second step."""
    torch.manual_seed(0)
    compile_it = options.pop("compile_it", lambda model: model)
    model = make()
    optimizer = sgd(model)
    with observed.observe(model, optimizer, **options) as scope:
        compile_it(model)
        train(scope, model, optimizer, [torch.randn(5, 8) for _ in range(3)])
    assert "error" not in observed.reports().lower(), observed.reports()
    return observed.sketches(1)


@pytest.mark.parametrize(
    ("make", "compile_it"),
    [
        pytest.param(lambda: Mlp(nn.GELU()), whole, id="plain"),
        pytest.param(
            lambda: Mlp(nn.ReLU(inplace=True)),
            whole,
            id="inplace",
        ),
        pytest.param(lambda: nn.Sequential(*[Block() for _ in range(12)]), by_block, id="blocks"),
        pytest.param(Twice, whole, id="twice"),
        pytest.param(Siamese, whole, id="siamese"),
        pytest.param(lambda: Checkpointed(reentrant=False), whole, id="checkpointed"),
        pytest.param(lambda: Checkpointed(reentrant=True), whole, id="reentrant"),
        pytest.param(Tapped, whole, id="tapped"),
        pytest.param(lambda: Transformed(per_sample), whole, id="vmap"),
        pytest.param(lambda: Transformed(force), whole, id="grad"),
        pytest.param(lambda: Transformed(jacobian), whole, id="jacrev"),
        pytest.param(lambda: Nested(tuple), whole, id="tuple"),
        pytest.param(lambda: Nested(dict), whole, id="dict"),
        pytest.param(lambda: Nested(Pair), whole, id="dataclass"),
    ],
)
def test_a_compiled_model_has_the_sites_and_numbers_of_the_eager_one(
    new_observed: Callable[[], Observed],
    train: Train,
    make: Callable[[], nn.Module],
    compile_it: Callable[[nn.Module], nn.Module],
) -> None:
    kinds = ("input", "activation", "activation_gradient", "weight", "weight_gradient", "tap")
    eager = run(new_observed(), train, make, kinds=kinds)
    compiled = run(new_observed(), train, make, kinds=kinds, compile_it=compile_it)
    assert set(compiled) == set(eager)
    for label, sketch in eager.items():
        assert compiled[label].counts[0, 0] == sketch.counts[0, 0], label
        for statistic in ("mean", "rms", "min", "max"):
            assert derive(compiled[label], statistic) == pytest.approx(
                derive(sketch, statistic), rel=1e-4, abs=1e-6
            ), label
    assert not counters["graph_break"]


def test_schedules_switch_without_compiling_anew(observed: Observed, train: Train) -> None:
    model = Mlp(nn.GELU())
    optimizer = sgd(model)
    with observed.observe(model, optimizer, every=2) as scope:
        whole(model)
        train(scope, model, optimizer, [torch.randn(5, 8)])
        graphs = counters["stats"]["unique_graphs"]
        train(scope, model, optimizer, [torch.randn(5, 8) for _ in range(5)])
    assert counters["stats"]["unique_graphs"] == graphs
    assert observed.steps() == [0, 2, 4, 6]
    assert "activation:layers.1" in observed.sketches(4)


def test_gradients_of_a_forward_that_is_not_recorded_are_left_out(observed: Observed) -> None:
    model = Mlp(nn.GELU())
    optimizer = sgd(model)
    with observed.observe(model, optimizer) as scope:
        whole(model)
        model(torch.randn(5, 8)).sum().backward()
        model.eval()
        model(torch.randn(5, 8)).sum().backward()
        scope.step()
    assert observed.sketches(0)["activation_gradient:layers.1"].counts[0, 0] == 5 * 8


def test_without_an_optimizer_weights_are_those_used(observed: Observed) -> None:
    model = Mlp(nn.GELU())
    weight = model.get_parameter("layers.0.weight")
    with observed.observe(model) as scope:
        whole(model)
        for value in (3.0, 4.0):
            with torch.no_grad():
                weight.fill_(value)
            model(torch.randn(5, 8)).sum().backward()
            with torch.no_grad():
                weight.zero_()
            scope.step()
    assert observed.means("weight", "layers.0.weight") == {0: 3.0, 1: 4.0, 2: 0.0}


def test_an_exported_program_has_no_operators_of_ours(observed: Observed) -> None:
    model = Mlp(nn.GELU())
    with observed.observe(model):
        program = torch.export.export(model, (torch.randn(5, 8),))
    assert "rankscope" not in str(program.graph)


def test_the_compiled_model_goes_on_after_the_block(observed: Observed, train: Train) -> None:
    model = Mlp(nn.GELU())
    optimizer = sgd(model)
    with observed.observe(model, optimizer) as scope:
        whole(model)
        train(scope, model, optimizer, [torch.randn(5, 8)] * 2)
    model(torch.randn(5, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_an_output_that_the_loss_does_not_need_has_no_gradient(observed: Observed) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.linear(x)
            return y, y * 2

    model = Both()
    with observed.observe(model) as scope:
        whole(model)
        model(torch.ones(5, 8))[0].sum().backward()
        scope.step()
    assert "activation:(root)[1]" in observed.labels()
    assert "activation_gradient:(root)[1]" not in observed.labels()
    assert observed.means("activation_gradient", "(root)", "0") == {0: 1.0}


def test_a_compiled_function_that_gives_no_gradient_has_none(observed: Observed) -> None:
    model = Gated(8)
    with observed.observe(model) as scope:
        whole(model)
        model(torch.ones(5, 8)).sum().backward()
        scope.step()
    assert scope.health()["tensors_unsupported"] == 0
    assert "activation_gradient:value" in observed.labels()
    assert "activation_gradient:gate" not in observed.labels()


class WholeStep:
    """A training step that is compiled as one function: it has breaks, and torch calls our hooks
    while the compiler looks into whatever runs."""

    def __init__(self, scope: Scope, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.scope, self.model, self.optimizer = scope, model, optimizer

    def __call__(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.scope.tap("loss", self.model(batch).square().mean()).backward()
        self.optimizer.step()
        self.scope.step()


@pytest.mark.parametrize("compiles", ["all", "update"])
def test_a_training_step_that_is_compiled_as_a_whole_is_recorded_as_an_eager_one(
    new_observed: Callable[[], Observed], compiles: str
) -> None:
    found: list[dict[str, Any]] = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Mlp(nn.GELU())
        optimizer = torch.optim.AdamW(model.parameters())
        observed = new_observed()
        with observed.observe(model, optimizer) as scope:
            step = WholeStep(scope, model, optimizer)
            train_step = step.__call__
            if compiled and compiles == "all":
                train_step = torch.compile(train_step)
            elif compiled:
                optimizer.step = torch.compile(optimizer.step)
            for _ in range(3):
                train_step(torch.randn(5, 8))
        assert scope.health()["hook_errors"] == 0
        found.append(observed.sketches(2))
    eager, other = found
    assert set(other) == set(eager)
    for label, sketch in eager.items():
        assert other[label].counts[0, 0] == sketch.counts[0, 0], label
        expected = pytest.approx(derive(sketch, "rms"), rel=1e-3, abs=1e-6)
        assert derive(other[label], "rms") == expected, label
