"""What the ranks of a job are to each other, where the libraries that set it up know.

One process, with torch's fake backend: nothing is sent.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore

from rankscope.agent import RankscopeWarning
from rankscope.agent.torch.megatron import mesh_of_megatron
from rankscope.agent.torch.names import Names
from rankscope.agent.torch.stages import mesh_along, numbered

WORLD, RANK = 16, 13


@pytest.fixture(autouse=True)
def job() -> Generator[None]:
    """Of 16 ranks; this is one of the last."""
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=WORLD)
    yield
    dist.destroy_process_group()


@pytest.fixture
def megatron() -> Generator[Any]:
    """Where Megatron keeps its groups."""
    if find_spec("megatron") is None:
        pytest.skip("megatron-core is for Linux")
    with warnings.catch_warnings():  # of what is not installed beside it
        warnings.simplefilter("ignore")
        from megatron.core import parallel_state

    yield parallel_state
    parallel_state.destroy_model_parallel()


TP, PP = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}


@pytest.mark.parametrize(
    ("sizes", "mesh"),
    [
        ({}, {"dp": 16}),
        (TP, {"dp": 8, "tp": 2}),
        ({**TP, **PP, "context_parallel_size": 2}, {"pp": 2, "dp": 2, "cp": 2, "tp": 2}),
        ({**TP, **PP, "order": "tp-pp-dp"}, {"dp": 4, "pp": 2, "tp": 2}),
        ({**TP, **PP, "expert_model_parallel_size": 2}, {"pp": 2, "dp": 2, "ep": 2, "tp": 2}),
    ],
)
def test_megatrons_mesh_is_found(
    megatron: Any, sizes: dict[str, Any], mesh: dict[str, int]
) -> None:
    assert mesh_of_megatron([nn.Linear(2, 2)]) is None
    megatron.initialize_model_parallel(**sizes, create_gloo_process_groups=False)
    found = mesh_of_megatron([nn.Linear(2, 2)])
    assert found == mesh
    assert [*(found or ())] == [*mesh], "the last is counted first"


def test_groups_that_are_no_axes_of_a_mesh_are_told(megatron: Any) -> None:
    experts = {"expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1}
    megatron.initialize_model_parallel(2, **experts, create_gloo_process_groups=False)
    with pytest.warns(RankscopeWarning, match=r"no axes of one mesh; .*'tp': \[12, 13\]"):
        assert mesh_of_megatron([nn.Linear(2, 2)]) is None


@pytest.mark.parametrize(
    ("ranks", "mesh"),
    [
        ([*range(12, 16)], {"dp": 4, "pp": 4}),
        ([1, 5, 9, 13], {"pp": 4, "dp": 4}),
        ([*range(16)], {"pp": 16}),
        ([13], None),
    ],
)
def test_the_axis_of_a_pipeline_is_where_its_stages_are(ranks: list[int], mesh: object) -> None:
    group = dist.new_group(ranks)
    number = ranks.index(RANK)
    stage = PipelineStage(nn.Linear(2, 2), number, len(ranks), "cpu", group=group)  # pyright: ignore[reportArgumentType]
    assert mesh_along(stage) == mesh


def test_stages_on_ranks_that_are_no_axis_are_told() -> None:
    group = dist.new_group([9, 11, 13, 15])
    stage = PipelineStage(nn.Linear(2, 2), 2, 4, "cpu", group=group)  # pyright: ignore[reportArgumentType]
    with pytest.warns(RankscopeWarning, match=r"on ranks \[9, 11, 13, 15\] of 16, .*: pass mesh="):
        assert mesh_along(stage) is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["0", "1"], "stage3.0.weight"),
        (["6", "7"], "6.weight"),
    ],
)
def test_layers_of_ones_own_stages_that_count_from_0_have_its_number(
    names: list[str], expected: str
) -> None:
    part = nn.ModuleDict({name: nn.Linear(2, 2) for name in names})
    named = Names(numbered([(part, None)], [], {"pp": 4, "dp": 4})).parameters()
    assert next(iter(named.values()))[0] == expected
    renamed = Names(numbered([(part, None)], [], {"pp": 4}), {"^": "layers."}).parameters()
    assert next(iter(renamed.values()))[0] == f"layers.{names[0]}.weight"
