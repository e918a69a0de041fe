"""A sample of a large tensor: which elements, how near it comes, and what a run says of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rankscope.agent.reading import Reading
from rankscope.agent.steptable import StepRing
from rankscope.agent.torch.arithmetic import Plain
from rankscope.agent.torch.device import DeviceMeter
from rankscope.agent.torch.sampling import sample_of
from rankscope.sketch import COUNTS, SettingError, derive
from rankscope.sketch.elements import sampled_clusters
from rankscope.store import open_run

from .engines import FUSED

if TYPE_CHECKING:
    from conftest import Observed

# Triton's interpreter computes with NumPy.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
COUNT, UNSEEN = COUNTS.index("count"), COUNTS.index("unseen")


@given(st.integers(0, 500), st.integers(1, 16), st.integers(-(2**63), 2**63 - 1))
def test_of_every_stratum_one_cluster_is_chosen(clusters: int, stride: int, seed: int) -> None:
    chosen = sampled_clusters(clusters, stride, seed)
    assert len(chosen) == -(-clusters // stride)
    assert (chosen < clusters).all()
    assert (chosen // stride == np.arange(len(chosen))).all()


def test_every_element_has_the_same_chance() -> None:
    chosen = np.stack([sampled_clusters(805, 8, step) for step in range(4000)])
    times = np.bincount(chosen.reshape(-1), minlength=805)
    assert abs(times[:800] - 500).max() < 5 * np.sqrt(500)
    assert abs(times[800:] - 800).max() < 5 * np.sqrt(800)  # the last stratum is shorter
    assert len({one.tobytes() for one in chosen}) == len(chosen)  # and each step another sample


@pytest.mark.parametrize(
    ("dtype", "cluster"),
    [
        (torch.float64, 16),
        (torch.float32, 16),
        (torch.bfloat16, 32),
        (torch.float16, 32),
        (torch.float8_e4m3fn, 64),
    ],
)
@pytest.mark.parametrize("offset", [0, 3])
def test_clusters_are_cache_lines_of_neighbours(
    dtype: torch.dtype, cluster: int, offset: int
) -> None:
    whole = torch.arange(offset + 20 * 8 * cluster + 5, device=DEVICE)
    tensor = (whole % 97).to(dtype)[offset:]
    rows = sample_of(tensor, 8, seed=7).view(-1, cluster)
    expected = sampled_clusters(tensor.numel() // cluster, 8, 7)
    for row, place in zip(rows, expected.tolist(), strict=True):
        assert torch.equal(
            row.view(torch.uint8), tensor[place * cluster : (place + 1) * cluster].view(torch.uint8)
        )


@pytest.mark.parametrize("engine", [Plain, *FUSED])
def test_a_device_samples_as_the_host_does(engine: Any) -> None:
    x = torch.randn(70_003, device=DEVICE)
    meter, step = DeviceMeter(DEVICE, engine(DEVICE)), StepRing().take(3)
    assert step is not None
    meter.add(step, 5, x, Reading(stride=8))
    meter.add(step, 5, x, Reading(stride=8))
    meter.add(step, 6, x[:100], Reading())
    copy = meter.send_home()
    assert copy is not None
    while not meter.arrived(copy):
        time.sleep(0.001)
    meter.receive(copy, step)
    sample = sample_of(x, 8, 3).cpu().double().numpy()
    rows = step.table.counts[[5, 6]]
    assert rows[:, COUNT].tolist() == [2 * sample.size, 100]
    assert rows[:, UNSEEN].tolist() == [2 * (x.numel() - sample.size), 0]
    assert derive(step.table.take([5]), "mean")[0] == pytest.approx(sample.mean())


def test_a_run_says_what_was_sampled(observed: Observed) -> None:
    torch.manual_seed(0)
    model = nn.Linear(1024, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    kinds = ["weight", "activation"]
    with observed.observe(model, optimizer, sample={"weight": 1 / 8}, kinds=kinds) as scope:
        for _ in range(3):
            model(torch.randn(300, 1024)).sum().backward()
            optimizer.step()
            scope.step()
    run, exact = open_run(observed.path), model.weight.detach().double()
    weight = {name: run.scalar(name, sites=["weight:weight"]).values[:3, 0] for name in (
        "seen_share", "rms", "l2", "l1", "abs_max", "count", "mean")}  # fmt: skip
    assert weight["seen_share"] == pytest.approx([1 / 8] * 3)
    assert weight["count"].tolist() == [1024 * 512 / 8] * 3
    assert weight["rms"] == pytest.approx(exact.square().mean().sqrt().item(), rel=0.01)
    assert weight["l2"] == pytest.approx(exact.norm().item(), rel=0.01)
    assert weight["l1"] == pytest.approx(exact.abs().sum().item(), rel=0.01)
    assert (weight["abs_max"] <= exact.abs().max().item()).all()
    assert len(set(weight["mean"].tolist())) == 3  # each step looks at other elements
    for whole in ("weight:bias", "activation:(root)"):  # too small, and not asked for
        assert (run.scalar("seen_share", sites=[whole]).values[:3] == 1).all()
    fit = run.formats(site="weight:weight", step=1)
    assert fit["seen_share"].tolist() == pytest.approx([1 / 8] * len(fit))


def test_samples_of_replicas_are_the_same(observed: Observed) -> None:
    model = nn.Linear(1024, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sums: list[list[int]] = []
    for _ in range(2):
        with observed.observe(model, optimizer, sample=1 / 8, kinds=["weight"]) as scope:
            for _ in range(2):
                model(torch.randn(3, 1024))
                scope.step()
        sums.append([int(observed.sketches(step)["weight:weight"].checksum[0]) for step in (0, 1)])
    assert sums[0] == sums[1]
    assert sums[0][0] != sums[0][1]


@pytest.mark.parametrize(("sizes", "share"), [((131_072, 60_000), 1 / 8), ((60_000, 131_072), 1)])
def test_all_tensors_of_a_site_are_read_alike(
    observed: Observed, sizes: tuple[int, int], share: float
) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    with observed.observe(model, sample=1 / 8, kinds=["activation"]) as scope:
        for size in sizes:  # micro-batches, on both sides of what is large
            model(torch.full((size, 1), 1.0 if size > 1e5 else 100.0))
        scope.step()
    run = open_run(observed.path)
    told = {name: float(run.scalar(name).values[0, 0]) for name in ("mean", "sum", "seen_share")}
    exact = {"mean": 6131072 / 191072, "sum": 6131072.0, "seen_share": share}
    assert told == pytest.approx(exact, rel=0.001)


def test_a_sentinel_beside_samples_is_refused(observed: Observed) -> None:
    with pytest.raises(SettingError, match="`sentinel` and `sample` exclude each other"):
        observed.observe(nn.Linear(1, 1), sample=1 / 8, sentinel=True)


@pytest.mark.parametrize("stride", [8, 64])
@pytest.mark.parametrize("case", ["rows of unequal scale", "few active rows"])
def test_a_sample_comes_near_though_rows_differ(case: str, stride: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4096, 1024)).astype(np.float32)
    if case == "few active rows":
        x[rng.random(4096) > 0.02] = 0
    else:
        x *= np.exp(rng.standard_normal((4096, 1)))
    tensor, exact = torch.from_numpy(x), np.sqrt(np.square(x, dtype=np.float64).mean())
    clusters = [sample_of(tensor, stride, step).numpy() for step in range(8)]
    whole_rows = [x[sampled_clusters(len(x), stride, step)] for step in range(8)]
    near, far = (
        np.sqrt(
            np.mean([(np.sqrt(np.square(y, dtype=np.float64).mean()) / exact - 1) ** 2 for y in z])
        )
        for z in (clusters, whole_rows)
    )
    assert near < 0.01 * np.sqrt(stride / 8)
    assert near < far / 4


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (0.0, "a share of the elements from 1/1024 to 1/2, got 0"),
        (1e-310, "from 1/1024 to 1/2, got 1e-310"),
        (0.7, "from 1/1024 to 1/2, got 0.7"),
        (2.0, "from 1/1024 to 1/2, got 2"),
        ({"weights": 0.5}, "`sample` names 'weights'; observed are activation"),
    ],
)
def test_a_sample_is_a_share_of_what_is_observed(
    observed: Observed, sample: float | dict[str, float], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        observed.observe(nn.Linear(1, 1), sample=sample)
