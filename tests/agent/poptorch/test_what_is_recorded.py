"""What of a PopTorch model's training is stored, under which names, against torch on its own."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import poptorch
import pytest
import torch

from rankscope.agent import RankscopeWarning
from rankscope.agent.poptorch import Scope, observe
from rankscope.sketch import SettingError
from rankscope.sketch.reference import sketch_array
from rankscope.sketch.table import COUNT, MAX, MIN, NAN
from rankscope.store import open_run

from ..conftest import Observed
from .conftest import batch

Watch = Callable[..., Scope]


@pytest.fixture
def watch(observed: Observed) -> Watch:
    """`observe` with the run and the collector of `observed`."""

    def watched(model: Any, options: Any = None, optimizer: Any = None, **how: Any) -> Scope:
        options = options or poptorch.Options()
        to, run = observed.address, observed.path.name
        return observe(model, options, optimizer, run=run, to=to, **how)

    return watched


def train(scope: Scope, steps: int = 2, rows: int = 8) -> Any:
    """Steps of a loop; the model."""
    with scope:
        model = scope.training_model(*batch(rows=rows))
        for number in range(steps):
            scope.step(loss=model(*batch(number, rows)))
    return model


def assert_sketch_of(observed: Observed, step: int, label: str, *tensors: torch.Tensor) -> None:
    """The stored sketch has the counts and extremes of these tensors together."""
    whole = sketch_array(tensors[0].detach().numpy())
    for tensor in tensors[1:]:
        whole = whole.merge(sketch_array(tensor.detach().numpy()))
    found = observed.sketches(step)[label]
    assert found.counts[0].tolist() == whole.counts[0].tolist()
    assert found.histogram[0].tolist() == whole.histogram[0].tolist()
    assert found.moments[0] == pytest.approx(whole.moments[0], rel=1e-5, abs=1e-9)


def test_weights_gradients_and_states_are_those_of_torch(
    model: torch.nn.Module, observed: Observed, watch: Watch
) -> None:
    alone = copy.deepcopy(model)
    optimizer = torch.optim.Adam(alone.parameters(), lr=0.1)
    theirs = poptorch.optim.Adam(model.parameters(), lr=0.1)
    train(watch(model, optimizer=theirs))
    for step in range(2):
        optimizer.zero_grad()
        alone(*batch(step)).backward()
        for name, parameter in alone.named_parameters():
            assert_sketch_of(observed, step, f"weight:{name}", parameter)
            assert parameter.grad is not None
            assert_sketch_of(observed, step, f"weight_gradient:{name}", parameter.grad)
        optimizer.step()
        for name, parameter in alone.named_parameters():
            for slot, value in optimizer.state[parameter].items():
                if slot != "step":
                    assert_sketch_of(observed, step, f"optimizer_state:{name}[{slot}]", value)
    assert_sketch_of(observed, 2, "weight:fc2.weight", alone.get_parameter("fc2.weight"))
    records = open_run(observed.path).records()
    assert records["step"].tolist() == [0, 1, 2]
    assert records["final"].tolist() == [False, False, True]
    assert open_run(observed.path).alerts()["text"].tolist() == []


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("make", [poptorch.Options, poptorch.OldOptions])
def test_names_are_those_of_the_model_under_every_front_end_and_spelling(
    model: torch.nn.Module, observed: Observed, watch: Watch, make: Any, traced: bool
) -> None:
    options = make()
    options.Jit.traceModel(traced)
    train(watch(model, options, include="fc2", taps="relu"), steps=1)
    assert sorted(observed.labels()) == [
        "weight:fc2.bias",
        "weight:fc2.weight",
        "weight_gradient:fc2.bias",
        "weight_gradient:fc2.weight",
    ]


def test_what_is_no_parameters_is_observed_by_its_name(
    model: torch.nn.Module, observed: Observed, watch: Watch
) -> None:
    x, _ = batch()
    train(watch(model, kinds="tap", taps=["relu", "^loss$"]), steps=1)
    assert sorted(observed.labels()) == ["tap:loss", "tap:relu/ReLU:0"]
    assert_sketch_of(observed, 0, "tap:relu/ReLU:0", torch.relu(model.get_submodule("fc1")(x)))


def many(mode: str = "Final", period: int | None = None) -> Any:
    """Three iterations of two accumulations, on two replicas."""
    options = poptorch.Options().deviceIterations(3).replicationFactor(2)
    options.Training.gradientAccumulation(2)
    return options.outputMode(poptorch.OutputMode[mode], period)


def gradients_of(model: torch.nn.Module, rows: int = 24) -> list[torch.Tensor]:
    """Of `fc2.bias`, by micro-batch, where each device iteration updates the weights."""
    alone = copy.deepcopy(model)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    x, y = batch(rows=rows)
    found = list[torch.Tensor]()
    for part in range(3):
        some = list[list[torch.Tensor]]()
        for a, b in list(zip(x.chunk(12), y.chunk(12), strict=True))[4 * part : 4 * part + 4]:
            some.append(list(torch.autograd.grad(alone(a, b), list(alone.parameters()))))
        found += [one[3] for one in some]
        for at, parameter in enumerate(alone.parameters()):
            parameter.grad = torch.stack([one[at] for one in some]).mean(0)
        optimizer.step()
    return found


@pytest.mark.parametrize(
    ("mode", "asked", "which"),
    [
        (("All",), None, range(12)),
        (("All",), "final", range(10, 12)),
        (("All",), "every(3)", range(8, 12)),
        (("EveryN", 3), None, range(8, 12)),
        (("EveryN", 3), "final", range(10, 12)),
        (("Final",), "final", range(10, 12)),
    ],
)
def test_replicas_and_micro_batches_are_merged_as_the_output_mode_has_them(
    model: torch.nn.Module, observed: Observed, watch: Watch, mode: Any, asked: Any, which: range
) -> None:
    expected = gradients_of(model)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    scope = watch(model, many(*mode), optimizer, include="fc2.bias", output_modes=asked)
    train(scope, steps=1, rows=24)
    label = "weight_gradient:fc2.bias"
    assert_sketch_of(observed, 0, label, *(expected[at] for at in which))
    assert observed.sketches(0)["weight:fc2.bias"].counts[0, 0] == 3


def test_a_sum_is_added_up_on_the_host_where_all_is_returned(
    model: torch.nn.Module, observed: Observed, watch: Watch
) -> None:
    expected = gradients_of(model)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    how = {"include": "fc2.bias", "output_modes": {"gradient:.*bias": "sum"}}
    train(watch(model, many("All"), optimizer, **how), steps=1, rows=24)
    sums = [torch.stack(expected[replica::2]).sum(0) for replica in range(2)]
    assert_sketch_of(observed, 0, "weight_gradient:fc2.bias", *sums)


def test_a_mode_that_cannot_be_had_is_told_with_what_there_is_instead(
    model: torch.nn.Module, watch: Watch
) -> None:
    expected = r"^sum was asked for weight_gradient:fc2\.bias\. .* own is final: that is"
    with pytest.warns(RankscopeWarning, match=expected):
        train(watch(model, many(), include="fc2.bias", output_modes="sum"), 1, 24)


def test_weights_that_come_added_up_are_not_recorded(
    model: torch.nn.Module, observed: Observed, watch: Watch
) -> None:
    with pytest.warns(RankscopeWarning, match=r"^Not recorded are weight:fc2\.bias: "):
        train(watch(model, many("Sum"), include="fc2.bias"), steps=1, rows=24)
    assert observed.labels() == ["weight_gradient:fc2.bias"]


def test_steps_that_are_not_due_are_not_stored(
    model: torch.nn.Module, observed: Observed, watch: Watch
) -> None:
    train(watch(model, every=2, kinds=["weight", "weight_gradient"]), steps=5)
    records = open_run(observed.path).records()
    assert records["step"].tolist() == [0, 2, 4, 5]
    assert {label.partition(":")[0] for label in observed.sketches(2)} == {
        "weight",
        "weight_gradient",
    }


def test_the_loss_scale_and_hyperparameters_are_numbers_of_the_step(
    model: torch.nn.Module, observed: Observed, watch: Watch
) -> None:
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.25, loss_scaling=64.0)
    with watch(model, many(), optimizer, hyperparameters=1) as scope:
        training_model = scope.training_model(*batch(rows=24))
        scope.step(loss=training_model(*batch(rows=24)))
        faster = poptorch.optim.Adam(model.parameters(), lr=0.5, loss_scaling=32.0)
        training_model.setOptimizer(faster)
        scope.step(loss=training_model(*batch(rows=24)), text="no number")
    run = open_run(observed.path)
    training = run.training()
    assert training.sel(name="lr").values.ravel()[:2].tolist() == [0.25, 0.5]
    assert training.sel(name="loss_scale").values.ravel()[:2].tolist() == [64.0, 32.0]
    assert "`text` of scope.step() is no number" in observed.reports()


def test_the_device_tells_of_activations_what_a_sentinel_sees(
    model: torch.nn.Module, observed: Observed, watch: Watch
) -> None:
    x, y = batch()
    x[6, 0] = torch.nan
    x[7, 0] = torch.inf
    made = model.get_submodule("fc1")(x)
    outputs = {"fc1": made, "relu": torch.relu(made)}
    how = {"where": "device", "include": ["fc1$", "relu"], "kinds": "activation"}
    options = poptorch.Options().deviceIterations(2).outputMode(poptorch.OutputMode.All)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, options, optimizer, **how) as scope:
        training_model = scope.training_model(x, y)
        loss = training_model(x, y)
        assert loss.shape == (2,)
        scope.step(loss=loss)
    assert observed.labels() == ["activation:fc1", "activation:relu"]
    whole = sketch_array(outputs["fc1"].detach().numpy())
    other = sketch_array(outputs["relu"].detach().numpy())
    for label, expected in (("activation:fc1", whole), ("activation:relu", other)):
        found = observed.sketches(0)[label]
        assert found.counts[0, [COUNT, NAN]].tolist() == expected.counts[0, [COUNT, NAN]].tolist()
        extremes = expected.moments[0, [MIN, MAX]]
        assert found.moments[0, [MIN, MAX]] == pytest.approx(extremes, rel=1e-5)
        assert found.is_glance().all()


def test_it_trains_the_same_as_without(model: torch.nn.Module, watch: Watch) -> None:
    other = copy.deepcopy(model)
    plain = poptorch.trainingModel(other)
    losses = [plain(*batch(number)).item() for number in range(3)]
    with watch(model, where="device") as scope:
        watched = scope.training_model(*batch())
        found = list[float]()
        for number in range(3):
            found.append(watched(*batch(number)).item())
            scope.step()
    assert found == losses


def test_options_that_a_data_loader_has_frozen_are_left_as_they_are(
    model: torch.nn.Module, watch: Watch
) -> None:
    options = poptorch.Options()
    options.freeze()
    train(watch(model, options), steps=1)
    assert options.anchored_tensors == {}


def test_executables_in_a_cache_do_not_hide_names(
    model: torch.nn.Module, tmp_path: Path, observed: Observed, watch: Watch
) -> None:
    options = poptorch.Options().enableExecutableCaching(str(tmp_path))
    poptorch.trainingModel(copy.deepcopy(model), options.clone()).compile(*batch())
    train(watch(model, options, include="fc2.bias"), steps=1)
    assert "weight_gradient:fc2.bias" in observed.labels()


def test_names_of_before_save_the_first_compilation(
    model: torch.nn.Module, observed: Observed, watch: Watch
) -> None:
    trial = poptorch.trainingModel(copy.deepcopy(model))
    trial.compile(*batch())
    train(watch(model, names=trial.getTensorNames(), include="fc2.bias"), steps=1)
    assert "weight_gradient:fc2.bias" in observed.labels()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"names": ["fc1.weight", "loss"]}, r"^No gradients are among the names of the 2 tensors"),
        ({"names": ["Gradient___fc1.weight", "UpdatedVar___fc1.weight"], "include": "fc1"}, None),
        ({"names": ["Gradient___model.fc1.weight"]}, r"^`names` has what is not in the graph"),
        ({"taps": "rleu"}, r"^taps='rleu' matches none of the \d+ tensors .* are relu/ReLU:0"),
        ({"where": "device", "include": "nothing"}, r'^where="device" observes the outputs of'),
    ],
)
def test_what_is_not_there_is_an_error_before_training(
    model: torch.nn.Module, watch: Watch, how: dict[str, Any], expected: str | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankscopeWarning)
        if expected is None:
            train(watch(model, **how), steps=1)
        else:
            with pytest.raises(SettingError, match=expected):
                train(watch(model, **how), steps=1)


def test_a_pattern_that_matches_nothing_is_warned_of(model: torch.nn.Module, watch: Watch) -> None:
    with pytest.warns(RankscopeWarning, match=r"^exclude='fc9' matches no module or parameter"):
        train(watch(model, exclude="fc9"), steps=1)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"kinds": "activation"}, r"^There is no kind 'activation'"),
        ({"output_modes": "last"}, r"^'last' is no mode; write all, final, sum or every"),
        ({"where": "ipu"}, r"^`where` must be 'host' or 'device', got 'ipu'\.$"),
        ({"start": -1}, r"^`start` must not be negative"),
        ({"schedules": {"weight": "on_alert"}}, r"^The schedule of 'weight' is staggered or"),
        ({"options": 3}, r"^`options` must be a poptorch.Options, got int\.$"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    model: torch.nn.Module, watch: Watch, how: dict[str, Any], expected: str
) -> None:
    with pytest.raises(SettingError, match=expected):
        watch(model, **how)


def test_several_processes_are_refused(model: torch.nn.Module, watch: Watch) -> None:
    options = poptorch.Options()
    options.Distributed.configureProcessId(0, 2)
    with pytest.raises(SettingError, match=r"^options\.Distributed says 2 processes \(PopRun\)"):
        watch(model, options)


def test_a_model_is_made_once_and_in_the_block(model: torch.nn.Module, watch: Watch) -> None:
    scope = watch(model)
    with pytest.raises(SettingError, match=r"^scope\.training_model\(\) must be called once"):
        scope.training_model(*batch())
    train(scope, steps=1)


def test_an_anchor_that_gives_nothing_is_told_and_the_rest_is_kept(
    model: torch.nn.Module, observed: Observed, watch: Watch
) -> None:
    with watch(model, kinds="weight_gradient", include="fc2") as scope:
        training_model = scope.training_model(*batch())
        anchors = training_model.options.anchored_tensors
        del anchors["rankscope weight_gradient:fc2.bias"]
        for number in range(3):
            scope.step(loss=training_model(*batch(number)))
    assert observed.labels() == ["weight_gradient:fc2.weight"]
    assert observed.reports().count("could not be read: AssertionError: No tensor with name") == 1
    assert open_run(observed.path).records()["step"].tolist() == [0, 1, 2]


def test_a_step_of_many_calls_keeps_the_first_of_them_and_says_so(
    model: torch.nn.Module, observed: Observed, watch: Watch
) -> None:
    with watch(model, kinds="weight_gradient", include="fc2.bias") as scope:
        training_model = scope.training_model(*batch())
        for _ in range(18):
            training_model(*batch())
        scope.step()
    assert observed.sketches(0)["weight_gradient:fc2.bias"].counts[0, COUNT] == 16 * 3
    assert "Step 0 has more than 16 calls of the model" in observed.reports()


def test_a_model_that_cannot_be_copied_asks_for_names(watch: Watch) -> None:
    model = torch.nn.Linear(1, 1)
    model.__dict__["lock"] = threading.Lock()
    with (
        watch(model) as scope,
        pytest.raises(SettingError, match=r"^The model cannot be copied \(cannot pickle .* pass"),
    ):
        scope.training_model(torch.ones(1, 1))


def test_an_error_of_training_leaves_what_there_was(
    model: torch.nn.Module, observed: Observed, watch: Watch
) -> None:
    with pytest.raises(ZeroDivisionError), watch(model) as scope:  # noqa: PT012
        training_model = scope.training_model(*batch())
        training_model(*batch())
        raise ZeroDivisionError
    assert open_run(observed.path).records()["partial"].tolist() == [True]
    assert "Training ended in step 0: ZeroDivisionError" in observed.reports()
