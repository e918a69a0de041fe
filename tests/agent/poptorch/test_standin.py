"""The stand-in does what PopTorch's sources and tests say: else tests against it say nothing."""

from __future__ import annotations

import copy
from pathlib import Path

import poptorch
import pytest
import torch

from .conftest import batch


def test_there_are_no_names_before_compilation(model: torch.nn.Module) -> None:
    executor = poptorch.trainingModel(model)
    with pytest.raises(AssertionError, match=r"^Model must be compiled before calling"):
        executor.getTensorNames()
    executor(*batch())
    names = executor.getTensorNames()
    for prefix in ("Gradient___fc1", "UpdatedVar___fc2", "scaledLearningRate", "input", "loss"):
        assert any(name.startswith(prefix) for name in names), prefix


def test_an_anchor_gives_what_the_last_call_made(model: torch.nn.Module) -> None:
    options = poptorch.Options()
    options.anchorTensor("grad_bias", "Gradient___fc2.bias")
    options.anchorTensor("updated", "UpdatedVar___fc2.weight")
    executor = poptorch.trainingModel(model, options)
    with pytest.raises(AssertionError, match=r"^No tensor with name grad_bias found\.$"):
        executor.getAnchoredTensor("grad_bias")
    executor(*batch())
    first = executor.getAnchoredTensor("grad_bias")
    executor(*batch(1))
    assert first.shape == (3,)
    assert executor.getAnchoredTensor("updated").shape == (3, 8)
    assert not torch.equal(first, executor.getAnchoredTensor("grad_bias"))


def test_it_trains_as_torch_does(model: torch.nn.Module) -> None:
    alone = copy.deepcopy(model)
    optimizer = torch.optim.Adam(alone.parameters(), lr=0.1)
    theirs = poptorch.optim.Adam(model.parameters(), lr=0.1, loss_scaling=128.0)
    executor = poptorch.trainingModel(model, optimizer=theirs)
    for number in range(3):
        optimizer.zero_grad()
        alone(*batch(number)).backward()
        optimizer.step()
        executor(*batch(number))
    executor.copyWeightsToHost()
    for mine, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize(
    ("mode", "period", "rows"),
    [("All", None, 3 * 12), ("Final", None, 3 * 2), ("EveryN", 3, 3 * 4)],
)
def test_repeats_lie_in_the_first_dimension(
    model: torch.nn.Module, mode: str, period: int | None, rows: int
) -> None:
    options = poptorch.Options().deviceIterations(3).replicationFactor(2)
    options.Training.gradientAccumulation(2)
    options.outputMode(poptorch.OutputMode[mode], period)
    options.anchorTensor("gradient", "Gradient___fc2.weight")
    executor = poptorch.trainingModel(model, options)
    executor(*batch(rows=24))
    assert executor.getAnchoredTensor("gradient").shape == (rows, 8)


def test_the_mode_of_a_single_anchor_is_ignored(model: torch.nn.Module) -> None:
    options = poptorch.Options().deviceIterations(2)
    options.anchorTensor("gradient", "Gradient___fc2.bias", poptorch.OutputMode.All)
    executor = poptorch.trainingModel(model, options)
    executor(*batch())
    assert executor.getAnchoredTensor("gradient").shape == (3,)


def test_an_anchor_of_no_tensor_is_an_error_of_the_compiler(model: torch.nn.Module) -> None:
    options = poptorch.Options()
    options.anchorTensor("x", "Gradient___model.fc2.bias")
    with pytest.raises(poptorch.Error, match=r"Anchor tensor `Gradient___model.fc2.bias' not in"):
        poptorch.trainingModel(model, options).compile(*batch())


def test_options_are_frozen_where_a_model_has_them_but_for_anchors(model: torch.nn.Module) -> None:
    options = poptorch.Options()
    executor = poptorch.trainingModel(model, options)
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        options.deviceIterations(2)
    options.anchorTensor("late", "Gradient___fc2.bias")
    assert executor.options.anchored_tensors == {}


def test_the_older_spelling_has_no_output_mode() -> None:
    options = poptorch.OldOptions()
    options.anchorMode(poptorch.OutputMode.All)
    options.anchorTensor("x", "y", anchor_mode=poptorch.OutputMode.Sum)
    assert options.exists("anchor_mode")
    assert not options.exists("output_mode")
    with pytest.raises(TypeError, match="output_mode"):
        options.anchorTensor("x", "y", output_mode=poptorch.OutputMode.Sum)  # pyright: ignore


def test_the_state_of_the_ipu_is_none_before_compilation(model: torch.nn.Module) -> None:
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.05, loss_scaling=0.75)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    assert optimizer.state_dict()["ipu_param"] is None
    executor.compile(*batch())
    state = optimizer.state_dict()
    assert {"Accl1___fc1.weight", "Accl2___fc2.bias"} <= state["ipu_state"].keys()
    assert state["ipu_param"]["lossScaling_FLOAT"] == 0.75
    assert state["ipu_param"]["learningRate___specific___fc1.bias"] == pytest.approx(0.05)


def test_an_executable_from_a_cache_or_a_file_does_not_know_the_names_of_gradients(
    model: torch.nn.Module, tmp_path: Path
) -> None:
    first, second = (
        poptorch.trainingModel(model, poptorch.Options().enableExecutableCaching(str(tmp_path)))
        for _ in range(2)
    )
    first.compile(*batch())
    second.compile(*batch())
    first.save(str(tmp_path / "model.poptorch"))
    loaded = poptorch.load(str(tmp_path / "model.poptorch"))
    assert any(name.startswith("Gradient___") for name in first.getTensorNames())
    for executor in (second, loaded):
        assert not any(name.startswith("Gradient___") for name in executor.getTensorNames())
        assert "fc1.weight" in executor.getTensorNames()
