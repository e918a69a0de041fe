"""The pieces that ranks hold merge to the tensors of one process."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from rankscope.sketch import COUNTS, MOMENTS, sketch_array
from rankscope.store import Run

from .torchrun import run_of

JOB = Path(__file__).with_name("shards_job.py")
EXTREMES = slice(MOMENTS.index("min"), None)
PROJECTION, COUNT = MOMENTS.index("projection"), COUNTS.index("count")


RANKS = {"fsdp": 2, "tp": 2, "fsdp-tp": 4, "hsdp": 4, "odd": 2}


@pytest.fixture(scope="module", params=["fsdp", "tp", "fsdp-tp", "hsdp"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of a job whose ranks hold pieces; its name says how."""
    mode = request.param
    return run_of(JOB, RANKS[mode], mode, tmp_path_factory.mktemp("runs"), mode)


def test_weights_are_those_of_one_process_to_the_last_bit(run: Run) -> None:
    for name, parameter in runpy.run_path(str(JOB))["make_model"](run.name).named_parameters():
        [_], merged = run.table(0, [f"weight:{name}"])
        whole = sketch_array(parameter.detach().numpy())
        assert np.array_equal(merged.counts, whole.counts), name
        assert np.array_equal(merged.histogram, whole.histogram), name
        assert np.array_equal(merged.checksum, whole.checksum), name
        assert np.array_equal(merged.moments[:, EXTREMES], whole.moments[:, EXTREMES]), name
        np.testing.assert_allclose(merged.moments, whole.moments, rtol=1e-9, atol=1e-9)


def test_gradients_and_states_have_each_element_once(run: Run) -> None:
    for name, parameter in runpy.run_path(str(JOB))["make_model"](run.name).named_parameters():
        for kind, sites in (("weight_gradient", 1), ("optimizer_state", 2)):
            known = run.sites(kind=kind)
            mine = known[known["name"] == name].index
            _, tables = run.table(1, list(mine))
            assert tables.counts[:, COUNT].tolist() == [parameter.numel()] * sites


def test_activations_are_those_of_one_process(run: Run) -> None:
    job = runpy.run_path(str(JOB))
    model, whole = job["make_model"](run.name), dict[str, torch.Tensor]()
    for name, module in model.named_modules():
        module.register_forward_hook(
            lambda _, __, output, name=name: whole.__setitem__(name or "(root)", output.detach())
        )
    model(job["batch"](0)).square().mean().backward()
    assert set(run.sites(kind="activation")["name"]) == set(whole)
    for name, output in whole.items():
        [_], merged = run.table(0, [f"activation:{name}"])
        exact = sketch_array(output.numpy())
        assert np.array_equal(merged.counts[:, COUNT], exact.counts[:, COUNT]), name
        assert np.abs(merged.histogram - exact.histogram).sum() <= 8, name
        moments = np.delete(merged.moments, PROJECTION, axis=1)  # of samples there is no index
        expected = np.delete(exact.moments, PROJECTION, axis=1)
        np.testing.assert_allclose(moments, expected, rtol=1e-3, atol=1e-3, err_msg=name)
        [_], gradient = run.table(0, [f"activation_gradient:{name}"])
        assert gradient.counts[0, COUNT] == output.numel(), name


def test_groups_of_ranks_are_seen_as_merged_over_them(run: Run) -> None:
    groups = {"fsdp-tp": ("fsdp", "tp"), "hsdp": ("replicate", "shard")}.get(run.name, ())
    assert set(run.groups) == {f"{axis}={place}" for axis in groups for place in (0, 1)}
    if run.name != "fsdp-tp":
        return
    weight = runpy.run_path(str(JOB))["make_model"](run.name).get_parameter("up.weight").detach()
    for place, piece in enumerate(weight.chunk(2)):  # of tp, united over fsdp
        seen = run.scalar("l2", sites="weight:up.weight", steps=0, view=f"tp={place}").item()
        assert seen == pytest.approx(piece.norm().item(), rel=1e-6)


def test_no_copies_differ(run: Run) -> None:
    assert run.alerts()["text"].tolist() == []
    unread = run.health()["tensors_unsupported"]["total"].tolist()
    assert unread == [0] * RANKS[run.name]


def test_odd_pieces_are_not_told_as_what_they_are_not(tmp_path: Path) -> None:
    run = run_of(JOB, RANKS["odd"], "odd", tmp_path, "odd")
    for name, whole in runpy.run_path(str(JOB))["odd_pieces"]().items():
        exact = sketch_array(whole.numpy())
        for step in (0, 1):
            [_], merged = run.table(step, [f"tap:{name}"])
            assert np.array_equal(merged.counts, exact.counts), name
            assert np.array_equal(merged.histogram, exact.histogram), name
            if name != "flat":  # whose pieces are interleaved
                assert np.array_equal(merged.checksum, exact.checksum), name
    assert run.health()["hook_errors"]["total"].tolist() == [0, 0]
