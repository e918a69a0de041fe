"""Layers of megatron-core on several ranks: the store holds what one process would compute."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

from rankscope.store import Run

from .one_process import (
    Tensors,
    as_ranks_see_it,
    assert_exact,
    assert_same_as_one_process,
    mode_and_dtype,
    one_process,
    runs_of,
)

pytestmark = pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is for Linux")

JOB = Path(__file__).with_name("megatron_job.py")
SCRIPT = runpy.run_path(str(JOB))
WITH_BIAS = ("up", "down", "gate", "out", "head")
"""The layers that return a bias, too, or None in its place."""


@pytest.fixture(scope="module", params=["tp", "sp", "dp-tp", "dp-sp"])
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """By dtype: the runs of a job of two or four ranks; their names say how they are laid out."""
    mode: str = request.param
    directory, imports = tmp_path_factory.mktemp("runs"), ["megatron.core.tensor_parallel"]
    return runs_of(JOB, 2 * samples(mode), mode, directory, imports)


def samples(mode: str) -> int:
    """Into how many parts a batch is cut."""
    return 2 if "dp" in mode else 1


def is_added_up(name: str) -> bool:
    """Whether Megatron adds up a parameter's gradients over ranks that have parts of sequences."""
    return "norm" in name or name in ("down.bias", "out.bias")


def expected_of(run: Run) -> list[Tensors]:
    """By step: what is to be in the store."""
    mode, dtype = mode_and_dtype(run)
    model = SCRIPT["make_model"](dtype)
    whole = one_process(
        model,
        SCRIPT["make_optimizer"](model),
        lambda step: SCRIPT["train"](model, SCRIPT["batch"](step)),
        SCRIPT["STEPS"],
    )
    return [in_megatron(mode, tensors) for tensors in whole]


def in_megatron(mode: str, tensors: Tensors) -> Tensors:
    """As Megatron's layers and their ranks have it."""
    seen = Tensors()
    for label, tensor in as_ranks_see_it(tensors, samples(mode), gathered=False).items():
        kind, _, name = label.partition(":")
        returned = "activation" in kind and name in WITH_BIAS
        seen[f"{label}[0]" if returned else label] = tensor
        if kind == "weight_gradient" and mode == "sp" and is_added_up(name):
            seen[f"local_{label}"] = tensor
    return seen


def is_numbered(label: str) -> bool:
    """Whether the elements have their numbers in the whole."""
    kind, _, name = label.partition(":")
    return "activation" not in kind and name.partition("[")[0] not in SCRIPT["STRIDED"]


def test_every_site_has_the_numbers_of_one_process(run: Run) -> None:
    assert_same_as_one_process(
        run, expected_of(run), lambda label: label.startswith("local_"), is_numbered
    )


def test_initial_weights_are_those_of_one_process_to_the_last_bit(run: Run) -> None:
    expected, (labels, merged) = expected_of(run)[0], run.table(0)
    weights = [label for label in labels if label.startswith("weight:") and is_numbered(label)]
    assert len(weights) == 11
    for label in weights:
        assert_exact(merged.take([labels.index(label)]), expected[label], label)


def test_where_the_parts_lie_is_known(run: Run) -> None:
    mode, dtype = mode_and_dtype(run)
    weights = dict(SCRIPT["make_model"](dtype).named_parameters())
    for name, along in (("tokens.weight", 0), ("up.weight", 0), ("up.bias", 0), ("down.weight", 1)):
        for kind in ("weight", "weight_gradient"):
            found = run.regions(kind=kind, name=f"^{name}$")
            parts = weights[name].chunk(2, along)
            assert found["cell"].tolist() == ["tp=0", "tp=1"]
            assert [tuple(shape) for shape in found["shape"]] == [tuple(one.shape) for one in parts]
            assert [offset[along] for offset in found["offset"]] == [0, parts[0].shape[along]]
            assert set(found["whole"]) == {tuple(weights[name].shape)}
    assert run.regions(name="gate.weight").empty
    placed = run.sites()["placement"].to_dict()
    assert placed["weight:gate.weight"] == {"tp": "shard"}
    word = "shard" if "sp" in mode else "replicate"
    for name in ("tokens", "gate_norm", "down[0]", "out[0]"):
        assert placed[f"activation:{name}"].get("tp", "replicate") == word
    for name in ("up[0]", "act", "gated", "head[0]", "(root)"):
        assert placed[f"activation:{name}"]["tp"] == "shard"


def test_nothing_is_found_wrong(run: Run) -> None:
    assert run.alerts()["text"].tolist() == []
    assert run.events()["text"].tolist() == []
    for counter in ("tensors_unsupported", "tensors_stale", "hook_errors", "steps_dropped"):
        assert set(run.health()[counter]["total"]) == {0.0}, counter
    assert run.records()["complete"].tolist() == [True] * (SCRIPT["STEPS"] + 1)
