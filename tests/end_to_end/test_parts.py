"""Pipeline stages, context parallelism and experts: the store holds what one process would."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankscope.sketch import COUNTS, MOMENTS, sketch_array
from rankscope.store import Run

from .torchrun import run_of

JOB = Path(__file__).with_name("parts_job.py")
COUNT, PROJECTION = COUNTS.index("count"), MOMENTS.index("projection")


@pytest.fixture(scope="module", params=["pp", "cp", "ep"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of two ranks; its name says how they share the work."""
    return run_of(JOB, 2, request.param, tmp_path_factory.mktemp("runs"), request.param)


def one_process(mode: str) -> dict[str, torch.Tensor]:
    """By label: the tensors of the first step of the whole model on one process."""
    job, found = runpy.run_path(str(JOB)), dict[str, torch.Tensor]()
    model = job["make_model"](mode)

    def keep(label: str) -> Callable[..., None]:
        def arrives(_: Any, __: Any, output: torch.Tensor) -> None:
            if torch._C._current_graph_task_id() == -1:  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
                found[label] = output.detach().clone()

        return arrives

    for name, module in model.named_modules():
        module.register_forward_hook(keep(f"activation:{name}"))
    data, target = job["batch"](0)
    job["loss_of"](model(data), target).backward()
    for name, parameter in model.named_parameters():
        found[f"weight:{name}"] = parameter.detach()
        found[f"weight_gradient:{name}"] = parameter.grad
        found[f"optimizer_state:{name}[momentum_buffer]"] = parameter.grad
    return found


def test_every_site_has_the_numbers_of_one_process(run: Run) -> None:
    expected = one_process(run.name)
    assert "activation:" in expected
    root = {"pp": "activation:(stage 1)"}.get(run.name, "activation:(root)")
    expected[root] = expected.pop("activation:")
    kinds = ("activation", "weight", "weight_gradient", "optimizer_state")
    sites = set(run.sites(kind=kinds).index) - {"activation:(stage 0)"}
    assert sites == set(expected)
    for label, whole in expected.items():
        [_], merged = run.table(0, [label])
        exact = sketch_array(whole.numpy())
        assert merged.counts[0, COUNT] == whole.numel(), label
        assert np.abs(merged.histogram - exact.histogram).sum() <= 4, label
        moments = np.delete(merged.moments, PROJECTION, axis=1)
        np.testing.assert_allclose(
            moments, np.delete(exact.moments, PROJECTION, axis=1), rtol=1e-3, atol=1e-5
        )
        if label.startswith("weight:"):
            assert np.array_equal(merged.checksum, exact.checksum), label
            assert np.array_equal(merged.counts, exact.counts), label


def test_what_each_rank_held_can_be_told(run: Run) -> None:
    name = {"pp": "layers.3.weight", "cp": "key.weight", "ep": "experts.1.weight"}[run.name]
    held = run.ranks("l2", site=f"weight:{name}", steps=0).squeeze("step").notnull().values
    assert held.tolist() == ([True, True] if run.name == "cp" else [False, True])


def test_nothing_is_found_wrong(run: Run) -> None:
    assert run.alerts()["text"].tolist() == []
    assert run.events()["text"].tolist() == []
    assert run.records()["complete"].tolist() == [True] * 3
