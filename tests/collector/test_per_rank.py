"""`--keep-per-rank`: what single ranks said is kept, and merges to any view along mesh axes."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rankscope.agent import Outbox
from rankscope.collector import JoinerSettings
from rankscope.collector.keeper import PerRank, per_rank
from rankscope.sketch import SettingError, SketchTable, derive, sketch_array
from rankscope.sketch.table import COUNT, MAX, SUM
from rankscope.store import Run, RunWriter, open_run
from rankscope.wire import Frame, MeshAxis, Site, pack_frame

from .serving import QUICK, close_all, hello, serving, wait_until

SITES = [
    Site(kind="activation", name="mlp", placement={"dp": "shard"}),
    Site(kind="weight", name="fc", placement={"tp": "shard"}),
    Site(kind="activation", name="row", placement={"dp": "shard", "tp": "partial"}),
]
LABELS = ["activation:mlp", "weight:fc", "activation:row"]
MESH = {"dp": 2, "tp": 2}
AT = list(product(range(2), range(2)))
"""Coordinates on dp and tp, by rank."""


def values(step: int, dp: int, tp: int) -> list[NDArray[np.float32]]:
    """The tensors of the sites, as the rank at these coordinates has them."""

    def normal(*seed: int, scale: float) -> NDArray[np.float32]:
        return (np.random.default_rng(seed).standard_normal(256) * scale).astype(np.float32)

    return [
        normal(step, 0, dp, scale=2.0**dp),
        normal(step, 1, tp, scale=2.0**-tp),
        normal(step, 2, dp, tp, scale=1.0),
    ]


def table_of(tensors: list[NDArray[np.float32]]) -> SketchTable:
    return SketchTable.concatenate([sketch_array(tensor) for tensor in tensors])


def boxes_of(address: str) -> list[Outbox]:
    boxes = list[Outbox]()
    for rank, at in enumerate(AT):
        mesh = [
            MeshAxis(name=axis, size=2, coordinate=place)
            for axis, place in zip(MESH, at, strict=True)
        ]
        box = Outbox(address, hello(rank, 4, mesh=mesh, host=f"node-{rank // 2}"))
        box.set_sites(SITES)
        boxes.append(box)
    return boxes


def stored(
    folder: Path, kept: PerRank, steps: int = 3, *, flipped: int | None = None, keep_ranks: int = 64
) -> Run:
    """A job of four ranks whose rank 3 has, in one step, another weight than rank 1."""
    settings = replace(QUICK, joiner=JoinerSettings(per_rank=kept, keep_ranks=keep_ranks))
    with serving(folder, settings) as service:
        boxes = boxes_of(service.address)
        for step in range(steps):
            for rank, box in enumerate(boxes):
                tensors = values(step, *AT[rank])
                if step == flipped and rank == 3:
                    tensors[1][7] += 1
                box.send(
                    pack_frame(
                        Frame(
                            step=step,
                            time_ns=step + 1,
                            sites=np.arange(3, dtype=np.uint32),
                            table=table_of(tensors),
                        )
                    )
                )
                box.poll(time.monotonic())
        wait_until(lambda: all(box.poll(time.monotonic()) or True for box in boxes))
        assert close_all(boxes) == [True] * 4
    return open_run(folder / "demo")


def agree(found: SketchTable, expected: SketchTable) -> None:
    """Counts and histograms exactly, the checksum of shards apart from where they lie."""
    assert found.counts.tolist() == expected.counts.tolist()
    assert found.histogram.tolist() == expected.histogram.tolist()
    for statistic in ("mean", "std", "rms", "skewness", "kurtosis", "min", "max"):
        np.testing.assert_allclose(
            derive(found, statistic), derive(expected, statistic), rtol=1e-9, atol=1e-12
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All frames of all ranks are kept."""
    return stored(tmp_path_factory.mktemp("kept"), "all")


VIEWS = [
    (0, [0], [0]),
    (3, [1], [1]),
    ("dp=0", [0], [0, 1]),
    ("tp=1", [0, 1], [1]),
    ("dp=1,tp=0", [1], [0]),
    ("host=node-1", [1], [0, 1]),
    ("host=node-1,tp=1", [1], [1]),
    ("merged", [0, 1], [0, 1]),
]
"""With the coordinates on dp and tp of their ranks."""


@pytest.mark.parametrize(("view", "dps", "tps"), VIEWS)
def test_a_view_is_the_sketch_of_what_its_ranks_hold(
    run: Run, view: str | int, dps: list[int], tps: list[int]
) -> None:
    for step in range(3):
        held = [
            np.concatenate([values(step, dp, 0)[0] for dp in dps]),
            np.concatenate([values(step, 0, tp)[1] for tp in tps]),
        ]
        labels, found = run.table(step, LABELS[:2], view=view)
        assert labels == LABELS[:2]
        agree(found, table_of(held))


@pytest.mark.parametrize(("view", "dps", "tps"), VIEWS)
def test_of_addends_a_view_tells_what_they_determine(
    run: Run, view: str | int, dps: list[int], tps: list[int]
) -> None:
    _, found = run.table(1, LABELS[2:], view=view)
    addends = [values(1, dp, tp)[2] for dp in dps for tp in tps]

    assert found.counts[0, COUNT] == 256 * len(dps)
    assert found.moments[0, SUM] == pytest.approx(sum(map(np.sum, addends)), abs=1e-3)
    assert np.isnan(found.moments[0, MAX]) == (len(addends) > 1)  # a rank has its own


@pytest.mark.parametrize(("view", "dps", "tps"), VIEWS)
def test_all_questions_agree_on_a_view(
    run: Run, view: str | int, dps: list[int], tps: list[int]
) -> None:
    name = LABELS[0]
    held = [np.concatenate([values(step, dp, 0)[0] for dp in dps]) for step in range(3)]
    expected = table_of(held)

    bins = run.exponents(sites=name, view=view)["count"].to_numpy()[:, 0]
    assert bins.tolist() == expected.histogram.tolist()
    for statistic in ("var", "rms"):  # one is derived from what was kept, one is stored
        found = run.scalar(statistic, sites=name, view=view).to_numpy()[:, 0]
        np.testing.assert_allclose(found, derive(expected, statistic), rtol=1e-6)
    fits = run.formats(site=name, step=1, view=view, formats=["float8_e4m3fn"])
    assert fits.notna().any(axis=None)


def test_what_is_kept_is_listed_and_outlives_the_collector(run: Run) -> None:
    kept = run.kept_ranks()

    assert kept.index.tolist() == [0, 1, 2]
    assert kept.tolist() == [(0, 1, 2, 3)] * 3
    with RunWriter.open(run.path, run="demo") as writer:
        writer.finish()
    again = open_run(run.path)
    assert again.table(2, view="tp=0")[1] == run.table(2, view="tp=0")[1]


def test_only_the_ranks_that_were_asked_for_are_kept(tmp_path: Path) -> None:
    run = stored(tmp_path, frozenset([0, 2, 9]), keep_ranks=2)

    assert run.kept_ranks().tolist() == [(0, 2)] * 3
    agree(run.table(1, LABELS[:1], view=2)[1], table_of(values(1, 1, 0)[:1]))
    agree(run.table(1, LABELS[:1], view="tp=0")[1], run.table(1, LABELS[:1])[1])
    # In a job of more ranks than that the main statistics are kept of these alone.
    rms = run.ranks("rms", site=LABELS[0]).to_numpy()
    assert np.isnan(rms).tolist() == [[False, True, False, True]] * 3
    with pytest.raises(SettingError, match=r"no exact columns .* `--keep-per-rank`"):
        run.table(1, view=1)
    with pytest.raises(SettingError, match="no exact columns"):
        run.scalar("var", view="dp=0")


def test_of_none_nothing_is_kept(tmp_path: Path) -> None:
    run = stored(tmp_path, "none", flipped=1)

    assert len(run.alerts()) == 1
    assert run.kept_ranks().empty
    with pytest.raises(SettingError, match="no exact columns"):
        run.exponents(view=0)


def test_an_alert_keeps_the_steps_around_it(tmp_path: Path) -> None:
    run = stored(tmp_path, "alert", steps=40, flipped=20)

    told = run.alerts()[["rule", "first_step"]].to_numpy().tolist()
    assert told == [["replica-divergence", 20]]
    assert run.kept_ranks().index.tolist() == list(range(12, 29))
    odd = [run.table(20, LABELS[1:2], view=rank)[1].checksum[0] for rank in (1, 3)]
    assert odd[0] != odd[1]
    # What was not kept is not observed, beside what was.
    found = run.scalar("var", sites=LABELS[0], view=3).to_numpy()[:, 0]
    assert np.flatnonzero(~np.isnan(found)).tolist() == list(range(12, 29))


@pytest.mark.parametrize(
    ("view", "text"), [("ep=0", "dp=0 and tp=0"), ("tp=", "as dp=0"), (7, "rank 7")]
)
def test_a_view_that_there_is_not_is_refused(run: Run, view: str | int, text: str) -> None:
    with pytest.raises(SettingError, match=text):
        run.scalar("var", view=view)


@pytest.mark.parametrize("text", ["some", "0,x", "-1", ""])
def test_a_policy_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="all, none, alert, or ranks as 0,3"):
        per_rank(text)
    assert per_rank("0, 3") == {0, 3}
    assert per_rank("alert") == "alert"
