"""What a user says of meshes and placements is what the run knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from rankscope.agent.selection import RankscopeWarning
from rankscope.sketch import SettingError
from rankscope.store import open_run

if TYPE_CHECKING:
    from conftest import Observed


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())


def test_placements_go_by_pattern_and_the_last_counts(observed: Observed) -> None:
    said = {
        "activation": {"tp": "shard", "dp": "replicate"},
        "activation:1": {"tp": "replicate"},
        "weight:0.bias": {"tp": "partial"},
    }
    net = model()
    with observed.observe(net, mesh={"dp": 1, "tp": 1}, placements=said) as scope:
        scope.tap("free", torch.ones(3))
        net(torch.ones(2, 4)).sum().backward()
        scope.step()
    placed = open_run(observed.path).sites()["placement"].to_dict()
    assert placed["activation:0"] == {"dp": "replicate", "tp": "shard"}
    assert placed["activation:1"] == {"dp": "replicate", "tp": "replicate"}
    assert placed["weight:0.bias"] == {"tp": "partial"}
    assert placed["weight:0.weight"] == {}
    assert placed["tap:free"] == {"dp": "shard"}
    assert open_run(observed.path).attempts["mesh"].tolist() == [{"dp": 1, "tp": 1}]


def test_megatrons_parameters_say_that_they_are_parts(observed: Observed) -> None:
    net = model()
    part = net.get_parameter("0.weight")
    part.tensor_model_parallel, part.partition_dim = True, 0  # pyright: ignore[reportAttributeAccessIssue]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with observed.observe(net, optimizer, mesh={"dp": 1, "tp": 1}) as scope:
        for _ in range(2):
            net(torch.ones(2, 4)).sum().backward()
            part.main_grad = part.grad  # pyright: ignore[reportAttributeAccessIssue]
            optimizer.step()
            part.grad = None
            scope.step()
    placed = open_run(observed.path).sites()["placement"].to_dict()
    for site in ("weight:0.weight", "weight_gradient:0.weight"):
        assert placed[site] == {"tp": "shard"}
    assert placed["optimizer_state:0.weight[momentum_buffer]"] == {"tp": "shard"}
    assert placed["weight:0.bias"] == {}


def test_what_megatron_adds_up_in_its_own_buffers_is_the_gradient(observed: Observed) -> None:
    net = model()
    with observed.observe(net) as scope:
        net(torch.ones(2, 4)).sum().backward()
        for parameter in net.parameters():
            assert parameter.grad is not None
            parameter.main_grad, parameter.grad = torch.full_like(parameter.grad, 3.0), None  # pyright: ignore[reportAttributeAccessIssue]
        scope.step()
    assert observed.means("weight_gradient", "0.weight") == {0: 3.0}


def test_layers_that_are_cut_want_an_axis(observed: Observed) -> None:
    net = model()
    layer: Any = net.get_submodule("0")
    layer.output_size, layer.output_size_per_partition = 8, 4
    with (
        pytest.raises(SettingError, match=r"cut over several ranks, but .* pass mesh=, as {'dp'"),
        observed.observe(net),
    ):
        pass


def test_what_cannot_be_is_refused(observed: Observed) -> None:
    with pytest.raises(SettingError, match=r"placements\['x'\]\['tp'\] must be one of shard, repl"):
        observed.observe(model(), placements={"x": {"tp": "split"}})
    with pytest.raises(SettingError, match="placements='\\(' is not a regular expression"):
        observed.observe(model(), placements={"(": {"tp": "shard"}})
    with (
        pytest.raises(SettingError, match=r"names mesh axis 'tp'; this job has dp"),
        observed.observe(model(), placements={"x": {"tp": "shard"}}),
    ):
        pass
    with (
        pytest.raises(SettingError, match=r"`mesh` must hold all 1 ranks once, got {'dp': 2}"),
        observed.observe(model(), mesh={"dp": 2}),
    ):
        pass


def test_a_pattern_that_no_site_has_is_told(observed: Observed) -> None:
    scope = observed.observe(model(), placements={"attention": {"dp": "shard"}}).__enter__()
    scope.step()
    with pytest.warns(RankscopeWarning, match="placements='attention' matches no site"):
        scope.__exit__(None, None, None)
