"""Gradients before and after their reduction, and what is found where it went wrong."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from rankscope.sketch import COUNTS, derive
from rankscope.store import Run

from .launching import run_of

JOB = Path(__file__).with_name("reduction_job.py")
RANKS = 3


def job() -> dict[str, Any]:
    return runpy.run_path(str(JOB))


def run_with(directory: Path, *arguments: str) -> Run:
    # Those of tp must divide the layers' 16 features.
    ranks = {"tp": 2, "hybrid": 4}.get(arguments[0], RANKS)
    return run_of(JOB, ranks, "-".join(arguments), directory, *arguments)


@pytest.fixture(scope="module", params=["ddp", "fsdp", "compiled"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in which all went well."""
    return run_with(tmp_path_factory.mktemp("runs"), request.param)


def by_hand(rank: int) -> dict[str, list[torch.Tensor]]:
    """Of one rank in the first step: by parameter the gradient of each micro-batch."""
    names = job()
    model, found = names["make_model"](), dict[str, list[torch.Tensor]]()
    for number in range(names["MICRO_BATCHES"]):
        model.zero_grad()
        (model(names["batch"](0, rank, number)).square().mean() / names["MICRO_BATCHES"]).backward()
        for name, parameter in model.named_parameters():
            found.setdefault(name, []).append(parameter.grad.clone())
    return found


def test_each_ranks_own_gradients_are_those_computed_by_hand(run: Run) -> None:
    for rank in range(RANKS):
        for name, gradients in by_hand(rank).items():
            every = torch.stack(gradients)
            site = f"local_weight_gradient:{name}"
            for statistic, expected in (("l2", every.norm()), ("mean", every.mean())):
                mine = run.ranks(statistic, site=site, steps=0).sel(rank=rank).item()
                assert mine == pytest.approx(expected.item(), rel=1e-5, abs=1e-7), name
            biggest = run.ranks("abs_max", site=site, steps=0).sel(rank=rank).item()
            assert biggest == pytest.approx(every.abs().max().item(), rel=1e-5)


def test_of_all_ranks_own_gradients_only_the_sums_are_merged(run: Run) -> None:
    labels, table = run.table(0, ["local_weight_gradient:0.weight"])
    whole = sum(sum(by_hand(rank)["0.weight"]) for rank in range(RANKS))
    assert labels == ["local_weight_gradient:0.weight"]
    assert derive(table, "sum")[0] == pytest.approx(whole.sum().item(), rel=1e-4)  # pyright: ignore[reportAttributeAccessIssue]
    assert np.isnan(derive(table, "rms")[0])


def test_nothing_is_found_where_all_went_well(run: Run) -> None:
    assert run.alerts()["text"].tolist() == []
    told = run.events()["text"].tolist()
    if run.name == "compiled":  # while it compiles, no tensor is seen
        told = [one for one in told if not one.startswith(("No tensor was", "No rank has moved"))]
    assert told == []


@pytest.mark.parametrize("mode", ["ddp", "fsdp", "mixed"])
def test_gradients_that_were_all_added_up_instead_of_averaged_are_told(
    mode: str, tmp_path: Path
) -> None:
    run = run_with(tmp_path, mode, "summed")
    [alert] = run.alerts().to_dict("records")
    assert (alert["rule"], alert["site"], alert["ranks"]) == ("conservation", "", ())
    assert (alert["first_step"], alert["last_step"]) == (job()["LATE"], job()["LATE"])
    assert alert["text"].startswith("All reduced gradients are 3 times the average of the ranks'")


def test_what_clipping_did_follows_from_the_sums(run: Run) -> None:
    found = run.reductions(steps=0).loc[0]
    averaged = [
        torch.stack([torch.stack(by_hand(rank)[name]).sum(0) for rank in range(RANKS)]).mean(0)
        for name in by_hand(0)
    ]
    norm = torch.cat([gradient.flatten() for gradient in averaged]).norm().item()
    assert found["ranks"] == RANKS
    assert found["clip"] == pytest.approx(0.01 / norm, rel=1e-4)
    assert found["factor"] == pytest.approx(0.01 / norm / RANKS, rel=1e-4)


def test_the_noise_scale_follows_from_the_norms_of_all_micro_batches(run: Run) -> None:
    own = [by_hand(rank) for rank in range(RANKS)]
    every = torch.stack(
        [
            torch.cat([gradients[number].flatten() for gradients in one.values()])
            for one in own
            for number in range(job()["MICRO_BATCHES"])
        ]
    ).double()
    n, small = len(every), every.square().sum(1).mean().item()
    large = every.mean(0).square().sum().item()
    found = run.noise_scale(batch=3, steps=0).loc[0]
    assert found["gradient_square"] == pytest.approx((n * large - small) / (n - 1), rel=1e-3)
    assert found["trace"] == pytest.approx(3 * n * (small - large) / (n - 1), rel=1e-3)


def test_reduced_gradients_are_counted_once(run: Run) -> None:
    _, table = run.table(1, ["weight_gradient:2.weight"])
    assert table.counts[0, COUNTS.index("count")] == 16 * 16


def test_weights_that_fsdp_gathers_are_whole_on_each_rank(run: Run) -> None:
    gathered = [one.label for one in run.site_infos if one.kind == "unsharded_weight"]
    parameters = {
        f"unsharded_weight:{name}{slot}": parameter
        for name, parameter in job()["make_model"]().named_parameters()
        # The outermost unit keeps its weights for the backward.
        for slot in (["", "[backward]"] if name.startswith("2.") else [""])
    }
    assert set(gathered) == (set() if run.name == "ddp" else set(parameters))
    for site in gathered:
        name, parameter = site.split(":")[1].removesuffix("[backward]"), parameters[site]
        _, both = run.table(0, [f"weight:{name}", site])
        assert both.finite()[0] == both.finite()[1] == parameter.numel()
        assert both.checksum[0] == both.checksum[1], site
        largest = run.ranks("abs_max", site=site, steps=0).values
        assert largest.ravel().tolist() == [parameter.abs().max().item()] * RANKS
        assert np.isnan(run.ranks("l2", site=site, steps=0).values).all()


@pytest.mark.parametrize(
    ("mode", "fault", "rule", "site", "ranks", "goes_on"),
    [
        ("ddp", "lost", "conservation", "weight_gradient:2.bias", (1,), False),
        ("ddp", "wire", "replica-divergence", "weight_gradient:0.weight", (1,), False),
        ("ddp", "bit", "replica-divergence", "weight:0.weight", (1,), True),
        ("fsdp", "wire", "conservation", "weight_gradient:0.weight", (), False),
        ("tp", "sum", "conservation", "activation:2", (1,), False),
        ("tp", "lost-back", "conservation", "input_gradient:4", (1,), False),
        ("tp", "twice-back", "conservation", "input_gradient:4", (1,), False),
        ("fsdp", "gather", "replica-divergence", "unsharded_weight:0.weight", (1,), False),
        (
            "fsdp",
            "gather-back",
            "replica-divergence",
            "unsharded_weight:2.weight[backward]",
            (1,),
            False,
        ),
    ],
)
def test_a_fault_is_found_in_its_step_and_named(
    tmp_path: Path,
    mode: str,
    fault: str,
    rule: str,
    site: str,
    ranks: tuple[int, ...],
    goes_on: bool,
) -> None:
    alerts = run_with(tmp_path, mode, fault).alerts().to_dict("list")
    assert min(alerts["first_step"]) == 2
    assert (alerts["rule"][0], alerts["site"][0], alerts["ranks"][0]) == (rule, site, ranks)
    assert pd.isna(alerts["last_step"][0]) if goes_on else alerts["last_step"][0] == 2


@pytest.mark.parametrize(
    "mode",
    ["mixed", "mixed once", "half", "half once", "compressed", "hybrid"],
)
def test_nothing_is_found_in_sums_that_are_rounded_to_sixteen_bits_or_made_in_two_ways(
    tmp_path: Path, mode: str
) -> None:
    mode, *once = mode.split()
    run = run_with(tmp_path, mode, "long", *once)
    assert run.judged()["conservation"] == 40
    alerts = run.alerts()
    assert alerts.loc[alerts["rule"] == "conservation", "text"].tolist() == []


def test_gradients_that_no_hook_sees_on_the_ranks_are_told_as_not_judged(tmp_path: Path) -> None:
    run = run_with(tmp_path, "whole")
    told = run.events()["text"].tolist()
    silent = [text for text in told if text.startswith("A rank's own gradients of 0.weight (and 5")]
    assert len(silent) == RANKS
    assert "conservation" not in run.judged()


def test_a_gradient_that_no_rank_reduced_is_told_of_all_of_them(tmp_path: Path) -> None:
    alerts = run_with(tmp_path, "ddp", "alone").alerts().to_dict("list")
    place = alerts["rule"].index("conservation")
    assert alerts["rule"].count("conservation") == 1
    assert (alerts["site"][place], alerts["first_step"][place]) == ("weight_gradient:2.bias", 2)
    assert alerts["ranks"][place] == (0, 1, 2)
    assert alerts["text"][place].endswith("hold their own alone: none of them reduced it.")


def test_gradients_of_which_none_was_reduced_are_told_as_that(tmp_path: Path) -> None:
    run = run_with(tmp_path, "ddp", "apart")
    [found] = run.incidents()
    assert (found.cause.rule, found.cause.site, found.first_step) == ("conservation", "", 2)
    assert "replica-divergence" in {one.rule for one in found.alerts}
    factors = run.reductions()["factor"]
    assert factors.loc[[0, 1, 3]].notna().all()
    assert np.isnan(factors.loc[2])
