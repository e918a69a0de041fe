"""Which numbers a run holds after training: kinds, steps, names, calls, placement in time."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rankscope.agent import RankscopeWarning
from rankscope.agent.torch import tap
from rankscope.sketch import derive, sketch_array
from rankscope.store import open_run

if TYPE_CHECKING:
    from conftest import Observed

Train = Callable[..., list[float]]


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_steps_are_those_in_which_tensors_were_used(observed: Observed) -> None:
    """Golden case T-step: the seed shifts gradients and state by one and loses the last weights."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    with observed.observe(model, optimizer) as scope:
        for scale in (1.0, 10.0, 100.0):
            (model(torch.ones(1, 1)) * scale).sum().backward()
            optimizer.step()
            scope.step()
            optimizer.zero_grad()
    close = pytest.approx
    weights = {0: 1.0, 1: 0.0, 2: close(-10.9, rel=1e-6), 3: close(-120.71, rel=1e-6)}
    state = {0: 1.0, 1: close(10.9, rel=1e-6), 2: close(109.81, rel=1e-6)}
    assert observed.means("weight", "weight") == weights
    assert observed.means("weight_gradient", "weight") == {0: 1.0, 1: 10.0, 2: 100.0}
    assert observed.means("optimizer_state", "weight", "momentum_buffer") == state
    assert observed.means("activation_gradient", "(root)") == {0: 1.0, 1: 10.0, 2: 100.0}
    assert open_run(observed.path).records()["final"].tolist() == [False, False, False, True]


def test_a_number_that_a_rank_has_not_is_left_out_of_its_step(observed: Observed) -> None:
    model = nn.Linear(1, 1)
    with observed.observe(model) as scope:
        for loss in (None, 3.0):
            model(torch.ones(1, 1))
            scope.step(loss=loss, other=1.0)
    told = open_run(observed.path).training()
    assert np.isnan(told.sel(name="loss", rank=0).values[0])
    assert told.sel(name="loss", rank=0).values[1] == 3.0
    assert told.sel(name="other", rank=0).values[:2].tolist() == [1.0, 1.0]
    assert observed.reports() == ""


def test_updates_without_a_step_are_told_when_the_block_is_left(
    observed: Observed,
) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def job() -> None:
        with observed.observe(model, optimizer, start=7):
            for _ in range(20):
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    with pytest.warns(RankscopeWarning, match=r"20 updates, but scope\.step\(\) was never called"):
        job()


def test_what_is_no_number_is_left_out_and_logged_once(
    observed: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(1, 1)
    with observed.observe(model) as scope:
        for step in range(3):
            model(torch.ones(1, 1))
            scope.step(loss="abc", other=step)  # pyright: ignore[reportArgumentType]
    told = open_run(observed.path).training()
    assert told["name"].values.tolist() == ["other"]
    assert open_run(observed.path).gaps().empty
    said = "`loss` of scope.step() is no number, and is left out: could not convert string"
    assert [one for one in caplog.messages if said in one] == [f"{said} to float: 'abc'"]
    assert observed.reports().count("`loss` of scope.step() is no number: ValueError") == 1


def test_optimizer_state_belongs_to_its_parameter_whatever_the_groups(
    observed: Observed, train: Train
) -> None:
    """Golden case T-names: the seed gives a bias the matrix's state."""
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
    decay = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decay}, {"params": others, "weight_decay": 0.0}])
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.randn(3, 2)])
    sites = open_run(observed.path).sites(kind="optimizer_state")
    sizes = {
        name: int(np.prod(shape))
        for name, shape, slot in zip(sites["name"], sites["shape"], sites["slot"], strict=True)
        if slot == "exp_avg"
    }
    expected = {"0.weight": 4, "0.bias": 2, "1.weight": 2, "1.bias": 2, "2.weight": 4, "2.bias": 2}
    assert sizes == expected


def test_every_number_is_that_of_the_tensor_itself(observed: Observed) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(11, 5)
    seen: dict[str, torch.Tensor] = {}
    hook = model[1].register_forward_hook(lambda *a: seen.update(output=a[2].detach().clone()))
    with observed.observe(
        model, optimizer, kinds=("input", "activation", "weight_gradient")
    ) as scope:
        model(x).sum().backward()
        gradient = model.get_parameter("2.weight").grad
        assert gradient is not None
        seen["gradient"] = gradient.clone()
        optimizer.step()
        scope.step()
    hook.remove()
    sketches = observed.sketches(0)
    assert sketches["activation:1"] == sketch_array(seen["output"].numpy()) or np.allclose(
        sketches["activation:1"].moments, sketch_array(seen["output"].numpy()).moments, rtol=1e-12
    )
    for site, tensor in (
        ("activation:1", seen["output"]),
        ("weight_gradient:2.weight", seen["gradient"]),
        ("input:0[0]", x),
    ):
        exact = sketch_array(tensor.numpy())
        assert np.array_equal(sketches[site].counts, exact.counts)
        assert np.array_equal(sketches[site].histogram, exact.histogram)
        assert np.array_equal(sketches[site].checksum, exact.checksum)


@pytest.mark.parametrize("calls_a_part", [False, True])
def test_micro_batches_merge_into_one_site(observed: Observed, calls_a_part: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = sgd(model)
    parts = [torch.full((2, 2), float(i)) for i in (1, 2, 3)]
    with observed.observe(model, optimizer, kinds=("input", "activation_gradient")) as scope:
        for part in parts:
            if calls_a_part:
                scope.begin_forward()
                model[0](part).sum().backward()
            else:
                model(part).sum().backward()
        optimizer.step()
        scope.step()
    sketches = observed.sketches(0)
    assert sketches["input:0[0]"].counts[0, 0] == 12
    assert derive(sketches["input:0[0]"], "mean")[0] == 2.0
    assert sketches["activation_gradient:0"].counts[0, 0] == 12
    assert not any("#" in label for label in observed.labels())


def test_a_module_that_passes_on_what_another_returned_has_the_same_numbers(
    observed: Observed, train: Train
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)), nn.Linear(4, 300_000))
    with observed.observe(model, sgd(model)) as scope:
        train(scope, model, sgd(model), [torch.randn(8, 4)] * 2)
    sketches = observed.sketches(1)
    for kind in ("activation", "activation_gradient"):
        for outer, inner in (("0", "0.1"), ("(root)", "1")):
            assert sketches[f"{kind}:{outer}"] == sketches[f"{kind}:{inner}"]
    assert sketches["activation:(root)"].counts[0, 0] == 8 * 300_000


def test_a_module_called_twice_in_a_forward_has_two_sites(observed: Observed, train: Train) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x))

    model = Twice()
    optimizer = sgd(model)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)] * 2)
    sketches = observed.sketches(1)
    assert {"activation:layer", "activation:layer#1"} <= set(sketches)
    assert sketches["activation:layer#1"].counts[0, 0] == 6
    assert sketches["activation_gradient:layer#1"].counts[0, 0] == 6


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_under_checkpointing_is_not_counted_twice(
    observed: Observed, train: Train, reentrant: bool
) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.body = nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.body, self.first(x), use_reentrant=reentrant)

    model = Checkpointed()
    optimizer = sgd(model)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)] * 2)
    sketches = observed.sketches(1)
    for name in ("first", "body.0", "body.1", "body.2", "body"):
        assert sketches[f"activation:{name}"].counts[0, 0] == 6, name
        assert sketches[f"activation_gradient:{name}"].counts[0, 0] == 6, name
    assert not any("#" in label for label in observed.labels())


@dataclass
class Answer:
    hidden: torch.Tensor
    extra: tuple[torch.Tensor, None]


class Nested(nn.Module):
    """Returns what real models return."""

    def __init__(self, shape: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.layer, self.shape = nn.Linear(2, 2), shape

    def forward(self, x: torch.Tensor) -> object:
        return self.shape(self.layer(x))


@pytest.mark.parametrize(
    ("shape", "slots"),
    [
        (lambda y: (y, y * 2), {"0", "1"}),
        (lambda y: {"logits": y, "none": None}, {"logits"}),
        (lambda y: Answer(y, (y, None)), {"hidden", "extra.0"}),
        (lambda y: [None, {"a": (y, y.argmax(1))}], {"1.a.0"}),
        (lambda y: None, set[str]()),
    ],
)
def test_nested_outputs_have_a_slot_each(
    observed: Observed, shape: Callable[[torch.Tensor], object], slots: set[str]
) -> None:
    model = Nested(shape)
    with observed.observe(model, sgd(model)) as scope:
        model(torch.ones(3, 2))
        scope.step()
    sites = open_run(observed.path).sites(kind="activation")
    assert set(sites[sites["name"] == "(root)"]["slot"]) == slots


def test_tied_weights_are_recorded_once_with_their_aliases(
    observed: Observed, train: Train
) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(3, 3, bias=False)
            self.head = nn.Linear(3, 3, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(x))

    model = Tied()
    optimizer = sgd(model)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.ones(3, 3)])
    weights = open_run(observed.path).sites(kind="weight")
    assert weights["name"].tolist() == ["embed.weight"]
    assert list(weights["aliases"].iloc[0]) == ["head.weight"]


def test_a_parameter_that_is_replaced_is_told_and_not_read_any_more(observed: Observed) -> None:
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(5)))
    optimizer = sgd(model)
    with observed.observe(model, optimizer) as scope:
        for step in range(4):
            if step == 2:
                new = nn.Parameter(torch.full((2, 2), 7.0))
                model[0].register_parameter("weight", new)
                optimizer.param_groups[0]["params"][0] = new
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            scope.step()
            optimizer.zero_grad()
    for kind in ("weight", "weight_gradient"):
        assert list(observed.means(kind, "0.weight"))[-1] < 3
        assert 3 in observed.means(kind, "1.weight")
    assert "The model has another parameter 0.weight than when it was" in observed.reports()
    assert observed.reports().count("another parameter") == 1


def test_parameters_that_come_later_are_told_once_an_optimizer_has_them(
    observed: Observed,
) -> None:
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(2)))
    optimizer = sgd(model)
    with observed.observe(model, optimizer) as scope:
        for step in range(4):
            if step == 2:
                model.append(nn.Linear(2, 2))
                optimizer.add_param_group({"params": model[2].parameters()})
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            scope.step()
            optimizer.zero_grad()
    assert "The model has another parameter 2.weight (and 1 more) than" in observed.reports()
    assert observed.reports().count("another parameter") == 1
    assert set(open_run(observed.path).sites(kind="weight")["name"]) == {"0.weight", "1.weight"}


def test_a_module_that_torch_jit_has_compiled_is_left_out_and_told(
    observed: Observed, train: Train
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        model = nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Linear(2, 2)))
    optimizer = sgd(model)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.ones(1, 2)])
    assert "What 1 returns is not seen: torch.jit compiled it" in observed.reports()
    assert "activation:0" in observed.labels()
    assert "weight:1.weight" in observed.labels()


def test_frozen_and_unused_parameters_have_no_gradient_rather_than_zero(
    observed: Observed, train: Train
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    model.register_module("unused", nn.Linear(2, 2))
    model.forward = lambda x: model[1](model[0](x))  # type: ignore[method-assign]
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)])
    run = open_run(observed.path)
    assert set(run.sites(kind="weight_gradient")["name"]) == {"1.weight", "1.bias"}
    assert len(run.sites(kind="weight")) == 6


def test_forwards_in_evaluation_mode_are_left_out(observed: Observed, train: Train) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = sgd(model)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)])
        model.eval()
        with torch.no_grad():
            model(torch.full((50, 2), 1e6))
        model.train()
        train(scope, model, optimizer, [torch.ones(3, 2)])
    for step in (0, 1):
        sketch = observed.sketches(step)["activation:0"]
        assert sketch.counts[0, 0] == 6
        assert derive(sketch, "abs_max")[0] < 100


class Wrapped(nn.Module):
    """A model around a model, as PEFT's, whose `generate` calls that which is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)

    @torch.no_grad()
    def generate(self) -> None:
        for _ in range(3):
            self.model(torch.full((50, 2), 1e6))


@pytest.mark.parametrize("through", ["whole", "within"])
def test_forwards_without_gradients_of_a_model_that_trains_by_them_are_left_out(
    observed: Observed, train: Train, through: str
) -> None:
    model = Wrapped()
    optimizer = sgd(model)

    def generate() -> None:
        with torch.no_grad():
            model(torch.full((50, 2), 1e6)) if through == "whole" else model.generate()

    with observed.observe(model, optimizer) as scope:
        for _ in range(2):
            train(scope, model, optimizer, [torch.ones(3, 2)])
            generate()
        train(scope, model, optimizer, [torch.ones(3, 2)])
    labels = [one for one in open_run(observed.path).sites().index if one.startswith("activation:")]
    assert sorted(labels) == ["activation:(root)", "activation:model", "activation:model.0"]
    for step in range(3):
        for label in labels:
            sketch = observed.sketches(step)[label]
            assert (step, sketch.counts[0, 0]) == (step, 6)
            assert derive(sketch, "abs_max")[0] < 100


def test_a_weight_is_seen_that_ends_the_job_while_it_generates(
    observed: Observed, train: Train
) -> None:
    model = Wrapped()
    optimizer = sgd(model)

    def job() -> None:
        with observed.observe(model, optimizer) as scope:
            train(scope, model, optimizer, [torch.ones(3, 2)])
            with torch.no_grad():
                next(model.parameters()).fill_(torch.nan)
            model.generate()
            raise RuntimeError("cannot sample")

    with pytest.raises(RuntimeError, match="cannot sample"):
        job()
    bad = open_run(observed.path).first_bad()
    assert bad is not None
    assert (bad.site, bad.step) == ("weight:model.0.weight", 1)


def test_an_error_in_a_forward_without_gradients_leaves_out_no_later_one(
    observed: Observed, train: Train
) -> None:
    model = Wrapped()
    optimizer = sgd(model)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)])
        with torch.no_grad(), pytest.raises(RuntimeError, match="shapes"):
            model(torch.ones(1, 7))
        train(scope, model, optimizer, [torch.ones(3, 2)])
    assert observed.sketches(1)["activation:model.0"].counts[0, 0] == 6


def test_a_model_that_is_checkpointed_as_a_whole_is_counted(observed: Observed) -> None:
    """The first of its forwards has no gradients, and what it is given has."""
    model = Wrapped()
    optimizer = sgd(model)
    x = torch.ones(3, 2, requires_grad=True)
    with observed.observe(model, optimizer) as scope:
        for checkpointed in (False, True):
            y = checkpoint(model, x, use_reentrant=True) if checkpointed else model(x)
            y.sum().backward()
            optimizer.step()
            scope.step()
            optimizer.zero_grad()
    assert observed.sketches(1)["activation:model.0"].counts[0, 0] == 6


@pytest.mark.parametrize("all_are_asked_for", [False, True])
def test_forwards_without_gradients_are_counted_where_there_are_no_others_or_all_are_asked_for(
    observed: Observed, all_are_asked_for: bool
) -> None:
    model = Wrapped()
    with observed.observe(model, training_only=not all_are_asked_for) as scope:
        for _ in range(2):
            if all_are_asked_for:
                model(torch.ones(3, 2)).sum().backward()
            with torch.no_grad():
                model(torch.ones(3, 2))
            scope.step()
    rows = 12 if all_are_asked_for else 6
    assert observed.sketches(1)["activation:model.0"].counts[0, 0] == rows


def test_more_sites_than_a_rank_has_room_for_are_told(observed: Observed) -> None:
    net = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(20_003))
    with observed.observe(net, kinds="weight") as scope:
        scope.step()
        scope.step()
        refused = scope.health()["sites_refused"]

    assert (refused, len(observed.labels())) == (3, 20_000)
    told = [text for text in observed.reports().splitlines() if not text.startswith("No tensor")]
    assert told == [  # beside that a slow machine may have seen no tensor for a second
        "A rank has 20000 sites at most, and weight:20000 is the first that is not measured: "
        "choose by `kinds`, `include` or `modules`."
    ]


class Stumbles(nn.Module):
    """A layer in which Ctrl-C is pressed in the first forward."""

    pressed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        return x


def test_a_forward_that_did_not_end_and_is_run_again_is_told(
    observed: Observed, train: Train
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), Stumbles())
    optimizer = sgd(model)
    with observed.observe(model, optimizer) as scope:
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(3, 2))
        for _ in range(2):
            train(scope, model, optimizer, [torch.ones(3, 2)])

    assert [observed.sketches(step)["activation:0"].counts[0, 0] for step in (0, 1)] == [12, 6]
    assert observed.reports() == (
        "A forward in step 0 did not end, and another began: the step holds what was seen of both."
    )


class CallsItself(nn.Module):
    """As Lightning's models under DDP, whose forward calls `training_step`, which calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, *, loss: bool = True) -> torch.Tensor:
        """The loss, of what it returns itself."""
        return self(x, loss=False).square().mean() if loss else self.net(x)


def test_a_forward_within_one_of_the_same_model_is_not_another_that_began(
    observed: Observed,
) -> None:
    model = CallsItself()
    with observed.observe(model) as scope:
        for _ in range(2):
            model(torch.ones(3, 4)).backward()
        scope.step()
    assert not observed.reports()
    sketches = observed.sketches(0)
    assert sketches["activation:(root)"].counts[0, 0] == 12
    assert sketches["activation:(root)#1"].counts[0, 0] == 2


def test_an_interruption_of_the_agent_itself_is_told(observed: Observed, train: Train) -> None:
    class Scaler(torch.amp.GradScaler):
        """Ctrl-C is pressed while it is asked for the second time."""

        calls = 0

        def is_enabled(self) -> bool:
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return True

    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = sgd(model)
    with observed.observe(model, optimizer, scaler=Scaler("cpu")) as scope:
        interrupted = 0
        for _ in range(4):
            try:
                train(scope, model, optimizer, [torch.ones(3, 2)])
            except KeyboardInterrupt:
                interrupted += 1

    assert interrupted == 1
    assert "was interrupted while the agent read it: some tensors of it may be missing." in (
        observed.reports()
    )


def test_patterns_apply_to_every_kind_alike(observed: Observed, train: Train) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    with observed.observe(model, optimizer, include=[r"^1", r"^2"], exclude="bias") as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)])
    assert set(open_run(observed.path).sites()["name"]) == {"1", "2", "1.weight", "2.weight"}


def test_modules_can_be_chosen_by_type(observed: Observed, train: Train) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.LayerNorm(2))
    optimizer = sgd(model)
    with observed.observe(model, optimizer, modules=[nn.Linear, "GELU"]) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)])
    assert set(open_run(observed.path).sites(kind="activation")["name"]) == {"0", "1"}


def test_what_is_tapped_and_is_no_tensor_is_told_and_logged_once(
    observed: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(2, 2)
    with observed.observe(model, kinds=("tap",)) as scope:
        for _ in range(3):
            assert scope.tap("three", 3) == 3  # pyright: ignore[reportArgumentType]
            scope.tap("ones", model(torch.ones(2)))
            scope.step()

    assert observed.reports().count("tap:three is not measured, for 3 is no tensor") == 1
    assert caplog.messages.count("tap:three is not measured, for 3 is no tensor.") == 1
    assert observed.labels() == ["tap:ones"]


def test_taps_observe_any_tensor_and_its_gradient(observed: Observed) -> None:
    class Tapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return tap("scores", self.layer(x) * 3).sum()

    model = Tapped()
    optimizer = sgd(model)
    assert tap("outside", torch.ones(1)) == 1
    with observed.observe(model, optimizer) as scope:
        loss = model(torch.ones(4, 2))
        scope.tap("loss", loss).backward()
        optimizer.step()
        scope.step()
    sketches = observed.sketches(0)
    assert sketches["tap:scores"].counts[0, 0] == 8
    assert derive(sketches["tap:scores[gradient]"], "mean")[0] == 1.0
    assert sketches["tap:loss"].counts[0, 0] == 1


@pytest.mark.parametrize("kernel", ["numba", "torch"])
def test_tensors_that_are_not_contiguous_are_read_as_they_lie_in_memory(
    observed: Observed, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    if kernel == "torch":  # what an accelerator uses
        monkeypatch.setattr("rankscope.agent.torch.meters.find_spec", lambda _: None)
    x = torch.randn(7, 30, 50)
    views = {
        "transposed": (x.permute(2, 0, 1), x),
        "channels last": (x[None].contiguous(memory_format=torch.channels_last), None),
        "sliced": (x[:, 3:20, ::2], x[:, 3:20, ::2]),
        "sliced and transposed": (x[:, ::3].transpose(0, 2), x[:, ::3]),
    }
    expanded, negated = x[:, :1].expand(7, 4, 50), torch.complex(x, x).conj().imag
    model = nn.Linear(2, 2)
    with observed.observe(model, kinds=("tap",)) as scope:
        for name, (view, _) in views.items():
            scope.tap(name, view)
        scope.tap("expanded", expanded)
        scope.tap("negated", negated)
        scope.step()
    sketches = observed.sketches(0)
    for name, (view, in_order) in views.items():
        exact = sketch_array(view.numpy() if in_order is None else in_order.numpy())
        assert np.array_equal(sketches[f"tap:{name}"].counts, exact.counts), name
        assert np.array_equal(sketches[f"tap:{name}"].histogram, exact.histogram), name
        if in_order is not None:
            assert np.array_equal(sketches[f"tap:{name}"].checksum, exact.checksum), name
    exact = sketch_array((-x).numpy())
    assert np.array_equal(sketches["tap:negated"].checksum, exact.checksum)
    exact = sketch_array(expanded.numpy())
    assert np.array_equal(sketches["tap:expanded"].counts, exact.counts)
    assert np.array_equal(sketches["tap:expanded"].histogram, exact.histogram)
    assert derive(sketches["tap:expanded"], "std") == pytest.approx(derive(exact, "std"), rel=1e-12)


def test_training_statistics_are_kept_with_the_step(observed: Observed) -> None:
    model = nn.Linear(2, 2)
    optimizer = sgd(model)
    with observed.observe(model, optimizer, start=100) as scope:
        for i in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            scope.step(loss=torch.tensor(float(i)), tokens=8)
    training = open_run(observed.path).training().sel(rank=0)
    assert training.sel(name="loss").dropna("step").values.tolist() == [0.0, 1.0, 2.0]
    assert training.step.values.tolist() == [100, 101, 102, 103]
    assert training.sel(name="lr", step=101) == 0.1


def test_a_skipped_update_keeps_its_gradients(observed: Observed) -> None:
    model = nn.Linear(2, 2)
    optimizer = sgd(model)
    with observed.observe(model, optimizer) as scope:
        model(torch.full((1, 2), torch.inf)).sum().backward()
        scope.step()  # the scaler found infinities: no optimizer.step()
    assert observed.sketches(0)["weight_gradient:weight"].counts[0, 2] == 4


def test_without_an_optimizer_weights_and_gradients_are_seen(observed: Observed) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    with observed.observe(model) as scope:
        for _ in range(2):
            model(torch.ones(1, 1)).backward()
            gradient = model.weight.grad
            assert gradient is not None
            with torch.no_grad():
                model.weight -= gradient
            scope.step()
            model.weight.grad = None
    assert observed.means("weight", "weight") == {0: 1.0, 1: 0.0, 2: -1.0}
    assert observed.means("weight_gradient", "weight") == {0: 1.0, 1: 1.0}


def test_under_vmap_all_batches_are_recorded(observed: Observed) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    x = torch.randn(2, 5, 4)
    with observed.observe(model, kinds=("activation",)) as scope:
        y = model(x)
        scope.step()
        torch.testing.assert_close(torch.func.vmap(model[0], in_dims=1, out_dims=1)(x), y)
        scope.step()
    plain, batched = (observed.sketches(step)["activation:0"] for step in (0, 1))
    assert (batched.counts == plain.counts).all()
    assert (batched.histogram == plain.histogram).all()
    assert not observed.reports()


def test_the_gpt_of_the_figures_has_its_286_sites(
    observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Golden case T-rows."""
    benchmarks = str(Path(__file__).parents[2] / "benchmarks")
    monkeypatch.syspath_prepend(benchmarks)
    job = importlib.import_module("gpt").Job()
    with observed.observe(job.model, job.optimizer) as scope:
        job.step()
        scope.step()
    assert open_run(observed.path).sites()["kind"].value_counts().to_dict() == {
        "weight": 53,
        "weight_gradient": 53,
        "optimizer_state": 106,
        "activation": 37,
        "activation_gradient": 37,
    }
