"""A run goes on with its model cut in another way: what it was like before is known still."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rankscope.sketch import SettingError
from rankscope.store import Run, open_run

from .launching import run_of, run_ranks

JOB = Path(__file__).with_name("layouts_job.py")
SITE = "weight:0.weight"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """FSDP on three ranks, then tensor parallelism on two."""
    folder = tmp_path_factory.mktemp("runs")
    run_of(JOB, 3, "cut", folder)
    run_ranks(str(JOB), 2, ["cut", str(folder)], folder / "again.output")
    deadline = time.monotonic() + 45
    while len((run := open_run(folder / "cut")).attempts) < 2 or not run.finished:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return run


@pytest.mark.parametrize(
    ("attempt", "axis", "shape"), [(0, "fsdp", (4, 4)), (1, "tp", (6, 4)), (None, "tp", (6, 4))]
)
def test_sites_and_pieces_are_those_of_the_attempt(
    run: Run, attempt: int | None, axis: str, shape: tuple[int, int]
) -> None:
    site, pieces = run.sites(attempt=attempt).loc[SITE], run.regions(name="0", attempt=attempt)
    assert site["placement"] == {axis: "shard"}
    assert (tuple(site["shape"]), tuple(site["whole"])) == (shape, (12, 4))

    own = pieces[pieces["site"] == SITE]
    assert own["cell"].tolist() == [f"{axis}={rank}" for rank in range(12 // shape[0])]
    assert {tuple(one) for one in own["shape"]} == {shape}
    assert [tuple(one) for one in own["offset"]] == [(start, 0) for start in range(0, 12, shape[0])]


def test_both_attempts_hold_the_whole_tensor(run: Run) -> None:
    for attempt in (0, 1):
        count = run.scalar("count", sites=SITE, steps=0, attempt=attempt)
        assert count.item() == 12 * 4


def test_there_is_no_third_attempt(run: Run) -> None:
    for ask in (run.sites, run.regions):
        with pytest.raises(SettingError, match="There is no attempt 2; there are 2"):
            ask(attempt=2)
