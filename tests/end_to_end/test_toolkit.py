"""Ranks that hold pieces of tensors tell the numbers of whole ones if they are asked together."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from .launching import run_ranks

JOB = Path(__file__).with_name("toolkit_job.py")
SCRIPT = runpy.run_path(str(JOB))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank: what it found."""
    directory = tmp_path_factory.mktemp("toolkit")
    run_ranks(str(JOB), 2, [str(directory)], directory / "output")
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """What one process finds."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return SCRIPT["train"](
            SCRIPT["make_model"](),
            slice(None),
            SCRIPT["of_single_process"],
            SCRIPT["trust_ratio"],
        )
    finally:
        torch.set_default_dtype(before)


KINDS = ("weight", "weight_gradient", "exp_avg", "activation")
BOTH = [(how, kind) for how in ("fsdp", "tp") for kind in KINDS]


@pytest.mark.parametrize(("how", "kind"), [*BOTH, ("tp", "activation_gradient")])
def test_pieces_tell_what_one_process_does(
    found: list[dict[str, Any]], whole: dict[str, Any], how: str, kind: str
) -> None:
    assert found[0][how][kind] == found[1][how][kind]
    for statistic, numbers in whole[kind].items():
        told = found[0][how][kind][statistic]
        assert told == pytest.approx(numbers, rel=1e-9, abs=1e-12), statistic


@pytest.mark.parametrize("how", ["fsdp", "tp"])
def test_trust_ratios_are_those_of_whole_weights(
    found: list[dict[str, Any]], whole: dict[str, Any], how: str
) -> None:
    assert found[0][how]["trust_ratio"] == pytest.approx(whole["trust_ratio"], rel=1e-9)


def test_what_is_not_finite_on_one_rank_has_a_trust_ratio_on_none(
    found: list[dict[str, Any]],
) -> None:
    assert found[0]["without_ratio"] == found[1]["without_ratio"] == ["0.weight"]


def test_pieces_come_back_from_a_file_as_pieces(found: list[dict[str, Any]]) -> None:
    assert found[0]["file"]
    assert found[1]["file"]


def test_copies_that_differ_are_told(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["differ"] == [
            "0.weight should be the same on ranks 0, 1 and is not; what rank 0 holds is taken."
        ]


def test_of_addends_sums_are_known_and_arithmetic_that_keeps_them(
    found: list[dict[str, Any]],
) -> None:
    for rank in (0, 1):
        alone, together, norm, refused = found[rank]["addends"]
        assert alone == 4 * 3 * (1 + rank)
        assert together == 4 * 3 * (1 + 2)
        assert norm != norm
        assert refused.startswith("x is this rank's addend of a sum that was not made yet")


def test_the_noise_scale_is_known_from_pieces_of_gradients(found: list[dict[str, Any]]) -> None:
    b_noise, error = found[0]["noise"]

    assert found[1]["noise"] == [b_noise, error]
    assert abs(b_noise - 100) < 3 * error < 60
