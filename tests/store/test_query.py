"""Every question that a run answers, on small runs whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from icechunk import IcechunkError
from numpy.typing import NDArray

from rankscope.sketch import (
    MAIN,
    STATISTICS,
    NotARunError,
    SettingError,
    StoreError,
    derive,
    main_statistics,
    sketch_array,
)
from rankscope.sketch.reference import glance_at
from rankscope.store import Event, Heatmap, Record, Run, RunWriter, open_run

Make = Callable[..., Record]


def f32(values: Sequence[float]) -> NDArray[np.float32]:
    return np.array(values, np.float32)


UP_0, UP_1 = "activation:layers.0.up", "activation:layers.1.up"
WEIGHT, STATE = "weight:layers.0.up.weight", "optimizer_state:layers.0.up.weight[exp_avg]"


@pytest.fixture
def run(writer: RunWriter, record: Make) -> Run:
    """Twenty records of one rank."""
    writer.commit([record(index) for index in range(20)], streams={})
    return open_run(writer.path)


def test_a_run_says_what_it_is(run: Run, path: Path) -> None:
    assert (run.name, run.path, run.finished) == ("gpt", path, False)
    assert repr(run) == f"<Run 'gpt' at {path}, 20 records>"
    assert run.attempts.loc[0, ["launch", "world_size", "records", "last_step"]].tolist() == [
        "first launch",
        2,
        20,
        19,
    ]


def test_a_run_of_several_attempts_says_so(run: Run, writer: RunWriter, path: Path) -> None:
    writer.catalog.attempt_of("second launch")
    writer.commit([], streams={"s": 1})
    run.refresh()

    assert repr(run) == f"<Run 'gpt' at {path}, 20 records, 2 attempts>"


def test_one_name_of_a_format_is_one_everywhere(run: Run) -> None:
    assert run.formats(site=UP_0, step=1, formats="e4m3").index.tolist() == ["float8_e4m3fn"]
    table = run.format_table(1, site=UP_0, formats="e4m3")
    assert table["format"].values.tolist() == ["float8_e4m3fn"]
    with pytest.raises(SettingError, match="'fp8'; did you mean float8_e5m2, float8_e5m2fnuz, f"):
        run.formats(site=UP_0, step=1, formats="fp8")
    with pytest.raises(SettingError, match="nvfp4 has a scale for each block"):
        run.formats(site=UP_0, step=1, formats="nvfp4")


def test_sites_come_in_the_order_of_execution(run: Run) -> None:
    sites = run.sites()

    assert sites.index.tolist() == [UP_0, UP_1, STATE, WEIGHT]
    assert sites.loc[WEIGHT, "shape"] == (4, 2)
    assert sites.loc[STATE, "slot"] == "exp_avg"
    assert run.sites(kind="activation", name=r"\.1\.").index.tolist() == [UP_1]
    assert run.sites(name=r"\[exp_avg\]$").index.tolist() == [STATE]
    assert STATE in run.sites(name=r"weight$").index


def test_the_pieces_of_a_tensor_follow_from_how_it_is_cut(
    writer: RunWriter, record: Make, path: Path
) -> None:
    cut = replace(writer.catalog.meta.sites[2], whole=(5, 2), cuts=(("tp", 1), ("fsdp", 0)))
    writer.catalog.add_sites([cut])
    writer.catalog.set_attempt(0, 4, {"fsdp": 2, "tp": 2}, [])
    writer.commit([record(0)], streams={})
    run = open_run(path)
    assert run.regions().to_dict("list") == {
        "site": [WEIGHT] * 4,
        "cell": ["fsdp=0,tp=0", "fsdp=1,tp=0", "fsdp=0,tp=1", "fsdp=1,tp=1"],
        "offset": [(0, 0), (3, 0), (0, 1), (3, 1)],
        "shape": [(3, 1), (2, 1), (3, 1), (2, 1)],
        "whole": [(5, 2)] * 4,
    }
    assert run.sites().loc[[WEIGHT, UP_0], "whole"].tolist() == [(5, 2), ()]
    assert run.regions(kind="activation").empty


def test_a_run_that_ended_before_its_first_tensor_answers(path: Path, record: Make) -> None:
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("launch")
        writer.commit([record(0, {0: {}})], streams={})
    run = open_run(path)
    labels, table = run.table(0)
    assert (labels, len(table)) == ([], 0)
    assert run.scalar("rms").shape == run.scalar("var").shape == (1, 0)
    assert run.exponents()["count"].shape == (1, 0, 277)
    assert run.heatmap("rms", width=10, height=10).values.shape == (0, 1)
    assert run.first_bad() is None


@pytest.mark.parametrize("statistic", sorted(STATISTICS))
def test_every_statistic_is_what_the_sketch_says(run: Run, record: Make, statistic: str) -> None:
    got = run.scalar(statistic, sites=[WEIGHT, UP_0], steps=(3, 5))

    expected = np.stack([derive(record(i).merged, statistic)[[2, 0]] for i in (3, 4, 5)])
    assert got.dims == ("step", "site")
    assert got.step.to_numpy().tolist() == [3, 4, 5]
    assert got.kind.to_numpy().tolist() == ["weight", "activation"]
    assert got.dtype == (np.float32 if statistic in MAIN else np.float64)
    assert np.array_equal(got, expected.astype(got.dtype), equal_nan=True)
    assert got.attrs["description"]
    assert got.attrs["units"]


def test_one_site_is_asked_for_alike_in_all_questions(run: Run) -> None:
    assert run.scalar("rms", site=WEIGHT).equals(run.scalar("rms", sites=[WEIGHT]))
    assert run.main(site=WEIGHT).equals(run.main(sites=[WEIGHT]))
    assert run.exponents(site=WEIGHT).equals(run.exponents(sites=[WEIGHT]))
    assert run.format_table(site=WEIGHT).equals(run.format_table(sites=[WEIGHT]))
    assert run.table(3, site=WEIGHT)[0] == [WEIGHT]
    assert run.ranks("rms", site=WEIGHT)["site"] == WEIGHT


def test_all_main_statistics_of_a_step_come_at_once(run: Run, record: Make) -> None:
    main = run.main(steps=7)

    assert main.dims == ("step", "site", "statistic")
    expected = main_statistics(record(7).merged)[[0, 1, 3, 2]].astype(np.float32)
    assert np.array_equal(main[0], expected, equal_nan=True)


def test_views_over_ranks(writer: RunWriter, record: Make) -> None:
    ranks = {0: {0: f32([1, 1]), 1: f32([5])}, 1: {0: f32([3, 3])}}
    writer.commit([record(0, ranks)], streams={})
    run = open_run(writer.path)

    def view(which: str | int, site: str = UP_0) -> float:
        return float(run.scalar("abs_max", sites=site, view=which).item())

    assert [view(which) for which in ("merged", 0, 1)] == [3, 1, 3]
    assert [view(which) for which in ("min", "max", "argmin", "argmax")] == [1, 3, 0, 1]
    assert np.isnan(view(1, UP_1))
    assert run.ranks("abs_max", site=UP_0).to_numpy().tolist() == [[1, 3]]
    assert run.scalar("rms", view="argmax").attrs["units"] == "rank"


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (lambda run: run.scalar("rsm"), "There is no statistic 'rsm'; did you mean .*rms"),
        (lambda run: run.scalar("qqq"), "There is no statistic 'qqq'; there are rms, mean, "),
        (
            lambda run: run.scalar("loss"),
            r"'loss' is a training statistic, .* `run.training\(\).sel\(name='loss'\)` has it",
        ),
        (lambda run: run.ranks("loss", site=UP_0), "'loss' is a training statistic"),
        (lambda run: run.heatmap("loss"), "'loss' is a training statistic"),
        (lambda run: run.scalar("rms", steps=99), r"Step 99 was not recorded; .* is 19\."),
        (lambda run: run.scalar("rms", steps=99, attempt=0), "Step 99 was not recorded"),
        (lambda run: run.exponents(steps=-1), r"Step -1 was not recorded; .* recorded is 0\."),
        (lambda run: run.training(steps=99), "Step 99 was not recorded"),
        (
            lambda run: run.scalar("rms", site=UP_0, sites=[UP_1]),
            "Choose by `site`, .* not by both",
        ),
        (lambda run: run.exponents(site="up"), "There is no site 'up'"),
        (
            lambda run: run.scalar("rms", view="median"),
            "`view` must be 'merged', a rank, or one of min",
        ),
        (lambda run: run.scalar("rms", view=9), "There is no rank 9; there are 0 to 1"),
        (lambda run: run.scalar("sum", view="max"), "'sum' is kept merged only"),
        (lambda run: run.scalar("rms", name="nowhere"), "No site's name matches 'nowhere'"),
        (lambda run: run.ranks("var", site=UP_0), "'var' is kept merged only"),
        (lambda run: run.table(99), "Step 99 was not recorded; the nearest recorded is 19"),
        (lambda run: run.heatmap("rms", pool="mean"), "`pool` must be 'max' or 'min', got 'mean'"),
        (lambda run: run.heatmap("rms", view="argmax"), "has no worst to pool"),
        (lambda run: run.formats(site=UP_0, step=1, formats=["fp8"]), "There is no number format"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(
    run: Run, question: Callable[[Run], object], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        question(run)


def test_a_heatmap_of_a_run_without_records_is_checked_all_the_same(writer: RunWriter) -> None:
    run = open_run(writer.path)
    assert run.heatmap("rms").values.size == 0
    with pytest.raises(SettingError, match="There is no statistic 'rsm'"):
        run.heatmap("rsm")


def test_exponents_count_every_element(writer: RunWriter, record: Make) -> None:
    values = f32([0, -0.0, 1, 1.5, -2, np.nan, np.inf, -np.inf, -np.inf, 2**-149])
    writer.commit([record(0, {0: values}), record(1, {1: values})], streams={})

    exponents = open_run(writer.path).exponents(kind="activation")

    first = exponents.sel(site=UP_0, step=0)
    assert first["count"].sel(exponent=[-149, 0, 1]).to_numpy().tolist() == [1, 2, 1]
    names = ["zero", "nan", "pos_inf", "neg_inf", "under", "over", "total"]
    assert [int(first[name]) for name in names] == [2, 1, 1, 2, 0, 0, 10]
    assert exponents["observed"].to_numpy().tolist() == [[True, False], [False, True]]
    assert int(exponents["total"].sel(site=UP_1, step=0)) == 0


def test_an_empty_tensor_is_not_a_missing_one(writer: RunWriter, record: Make) -> None:
    empty = np.zeros(0, np.float32)
    writer.commit([record(0, {0: empty}), record(1, {1: empty})], streams={})
    run = open_run(writer.path)

    heatmap = run.heatmap("rms", kind="activation")
    assert heatmap.observed.tolist() == [[True, False], [False, True]]
    assert np.isnan(heatmap.values).all()
    assert run.table(0)[0] == [UP_0]
    counts = run.scalar("count", kind="activation")
    assert np.array_equal(counts, [[0, np.nan], [np.nan, 0]], equal_nan=True)


def test_formats_tell_what_would_be_lost(writer: RunWriter, record: Make) -> None:
    writer.commit([record(0, {0: f32([1, 2, 1000, 2**-30])})], streams={})
    run = open_run(writer.path)

    fit = run.formats(site=UP_0, step=0)

    assert fit.loc["float8_e4m3fn", ["overflow", "underflow"]].tolist() == [0.25, 0.25]
    assert fit.loc["float32", ["overflow", "underflow", "subnormal"]].tolist() == [0, 0, 0]
    assert fit["max"].to_dict()["float16"] == 65504
    assert bool(np.all(fit["overflow_low"] <= fit["overflow_high"]))
    with pytest.raises(SettingError, match="was not observed in step 0"):
        run.formats(site=UP_1, step=0)


def test_a_spike_and_a_nan_in_one_step_show_in_a_small_heatmap(
    writer: RunWriter, record: Make
) -> None:
    def make(index: int) -> Record:
        spike = [1e30] if index == 77 else [1.0]
        return record(index, {0: f32(spike), 1: f32([1, np.nan][: 1 + (index == 5)])})

    writer.commit([make(index) for index in range(200)], streams={})
    run = open_run(writer.path)

    full = run.heatmap("abs_max", kind="activation")
    small = run.heatmap("abs_max", kind="activation", width=10, height=1)

    assert full.values.shape == (2, 200)
    assert full.row_sites == [[UP_0], [UP_1]]
    assert small.values.shape == (1, 10)
    assert small.row_sites == [[UP_0, UP_1]]
    assert small.column_first.tolist() == list(range(0, 200, 20))
    assert small.column_last.tolist() == list(range(19, 200, 20))
    assert np.flatnonzero(small.values[0] > 1e29).tolist() == [3]
    assert np.flatnonzero(small.nonfinite[0]).tolist() == [0]
    assert small.observed.all()
    assert run.heatmap("abs_max", kind="activation", width=10, pool="min").values.max() == 1
    folded = run.heatmap("abs_max", rows=[[UP_1, UP_0]], width=10)
    assert folded.row_sites == [[UP_1, UP_0]]
    assert np.array_equal(folded.values, small.values)
    assert np.array_equal(folded.nonfinite, small.nonfinite)
    with pytest.raises(SettingError, match=r"by `rows`, or by `kind` and `name`, not by both"):
        run.heatmap("abs_max", kind="activation", rows=[[UP_0]])
    with pytest.raises(SettingError, match=r"Each of `rows` must have a site; row 1 has none\."):
        run.heatmap("abs_max", rows=[[UP_0], []])
    with pytest.raises(SettingError, match="There is no site 'activation:up'"):
        run.heatmap("abs_max", rows=[[UP_0], ["activation:up"]])


def test_heatmaps_of_ranks_and_of_their_extremes(run: Run, record: Make) -> None:
    merged = run.heatmap("rms")
    for view in (0, "min", "max"):
        other = run.heatmap("rms", view=view)
        assert np.array_equal(other.values, merged.values)
        assert other.observed.all()
    assert not run.heatmap("rms", view=1).observed.any()


def test_the_first_bad_names_site_step_and_ranks(writer: RunWriter, record: Make) -> None:
    good, bad = f32([1]), f32([np.inf])
    records = [
        record(0, {0: {0: good, 1: good, 2: good}, 1: {0: good}}),
        record(1, {0: {0: good}, 1: {0: good}}),
        record(2, {0: {0: good, 2: bad, 3: good}, 1: {0: good, 3: bad}}),
        record(3, {0: {0: bad}, 1: {0: bad}}),
    ]
    writer.commit(records[:2], streams={})
    run = open_run(writer.path)
    assert run.first_bad() is None

    writer.commit(records[2:], streams={})
    run.refresh()

    found = run.first_bad()
    assert found is not None
    assert (found.site, found.step, found.ranks) == ("weight:layers.0.up.weight", 2, (0,))
    assert found.spread == {0: "weight:layers.0.up.weight", 1: STATE}


def test_the_step_before_the_first_bad_is_one_in_which_the_site_was_seen(
    writer: RunWriter, record: Make
) -> None:
    seen = {0: f32([1]), 1: f32([1])}
    bad = {0: f32([1]), 1: f32([np.nan])}
    steps = [record(0, seen), record(1, {0: f32([1])}, step=10), record(2, bad, step=20)]
    writer.commit(steps, streams={})

    found = open_run(writer.path).first_bad()

    assert found is not None
    assert (found.site, found.step, found.ranks) == (UP_1, 20, (0,))


def test_a_rewound_run_shows_its_last_attempt_and_keeps_the_older(
    writer: RunWriter, record: Make
) -> None:
    first = {0: f32([1])}
    again = {0: f32([2])}
    writer.commit([record(index, first) for index in range(6)], streams={})
    assert writer.catalog.attempt_of("second launch") == 1
    writer.commit([record(6 + i, again, step=3 + i, attempt=1) for i in range(2)], streams={})
    run = open_run(writer.path)

    assert run.scalar("max", sites=UP_0)[:, 0].to_numpy().tolist() == [1, 1, 1, 2, 2, 1]
    assert run.scalar("max", sites=UP_0).attempt.to_numpy().tolist() == [0, 0, 0, 1, 1, 0]
    assert run.scalar("max", sites=UP_0, attempt=0)[:, 0].to_numpy().tolist() == [1] * 6
    assert run.table(3, attempt=0)[1].moments[0, 8] == 1
    assert run.records().step.tolist() == [0, 1, 2, 3, 4, 5]
    assert run.records(all_attempts=True).step.tolist() == [0, 1, 2, 3, 4, 5, 3, 4]
    assert run.attempts["first_step"].tolist() == [0, 3]


def test_an_attempt_is_a_run_of_its_own(writer: RunWriter, record: Make) -> None:
    def event(attempt: int) -> Event:
        return Event(kind="gap", attempt=attempt, rank=0, step=1, text=f"of {attempt}")

    writer.commit([record(at, {0: f32([1])}) for at in range(6)], streams={}, events=[event(0)])
    assert writer.catalog.attempt_of("second launch") == 1
    again = [record(6 + at, {0: f32([at, np.inf])}, step=3 + at, attempt=1) for at in range(2)]
    writer.commit(again, streams={}, events=[event(1)])
    run = open_run(writer.path)
    first, second = run.of_attempt(0), run.of_attempt(1)

    for one, attempt in ((first, 0), (second, 1)):
        mine = run.scalar("rms", sites=UP_0, attempt=attempt)
        assert one.scalar("rms", sites=UP_0).identical(mine)
        assert one.scalar("rms", sites=UP_0, attempt=attempt).identical(mine)
        assert one.heatmap("rms").column_first.tolist() == mine["step"].values.tolist()
        assert one.training().identical(run.training(attempt=attempt))
        assert one.records()["step"].tolist() == mine["step"].values.tolist()
        assert set(one.records(all_attempts=True)["attempt"]) == {attempt}
        assert one.events()["text"].tolist() == [f"of {attempt}"]
        assert one.gaps()["attempt"].tolist() == [attempt]
    assert (first.table(3)[1].moments[0, 8], second.table(4)[1].moments[0, 8]) == (1, 1)
    assert first.first_bad() is None
    bad = second.first_bad()
    assert bad is not None
    assert bad.step == 3
    assert len(first.attempts) == 2
    assert "of which attempt 1" in repr(second)
    assert second.of_attempt(1).records().equals(second.records())

    writer.commit([record(8, {0: f32([7])}, step=5, attempt=1)], streams={})
    assert second.refresh()
    assert second.records()["step"].tolist() == [3, 4, 5]
    assert run.compare(run.of_attempt(1)).steps == 2  # of the snapshot before


def test_records_of_one_attempt_have_none_of_another(writer: RunWriter, record: Make) -> None:
    writer.commit([record(0)], streams={})
    assert writer.catalog.attempt_of("second launch") == 1
    writer.commit([record(1, step=1, attempt=1)], streams={})
    run = open_run(writer.path)

    with pytest.raises(SettingError, match="There is no attempt 2; there are 2"):
        run.of_attempt(2)
    for ask in (lambda one: one.scalar("rms", attempt=1), lambda one: one.of_attempt(1)):
        with pytest.raises(SettingError, match="These are the records of attempt 0, not of 1"):
            ask(run.of_attempt(0))
    with pytest.raises(SettingError, match="Step 1 was not recorded"):
        run.of_attempt(0).table(1)


def test_the_weights_that_an_attempt_ended_with_hide_no_step_of_an_earlier_one(
    writer: RunWriter, record: Make
) -> None:
    writer.commit([record(index) for index in range(4)], streams={})
    assert writer.catalog.attempt_of("second launch") == 1
    last = {2: f32([1, 2])}  # the weight
    ended = [record(4, step=1, attempt=1), record(5, last, step=2, attempt=1, final=True)]
    writer.commit(ended, streams={})
    run = open_run(writer.path)

    assert run.scalar("rms", site=UP_0)["attempt"].values.tolist() == [0, 1, 0, 0]
    assert not run.scalar("rms", site=UP_0).isnull().any()
    assert run.heatmap("rms", kind="activation").observed.all()
    assert run.table(2, site=UP_0)[0] == [UP_0]
    assert run.records()["final"].tolist() == [False] * 4
    assert run.scalar("max", site=WEIGHT, steps=2, attempt=1).item() == 2


def test_records_say_what_they_hold(writer: RunWriter, record: Make) -> None:
    writer.commit([record(0), record(1, ranks=(1,), complete=False, partial=True)], streams={})

    records = open_run(writer.path).records()

    assert records.index.name == "record"
    assert str(records["time"].dtype) == "datetime64[ns, UTC]"
    assert records["complete"].tolist() == [True, False]
    assert records["partial"].tolist() == [False, True]
    assert records["missing"].tolist() == [[], [0]]


def test_training_and_health_by_rank(writer: RunWriter, record: Make) -> None:
    two = {0: {0: f32([1])}, 1: {0: f32([1])}}
    writer.commit([record(0, two)], streams={})
    writer.catalog.attempt_of("second")
    late = record(1, attempt=1, training={1: {"lr": 0.5}}, health={1: {"dropped": 4.0}})
    writer.commit([late], streams={})
    run = open_run(writer.path)

    assert run.training(steps=(10**6, None)).shape[0] == 0
    training = run.training()
    assert training.dims == ("step", "rank", "name")
    assert training.sel(step=0, name="loss").to_numpy().tolist() == [10, 11]
    assert training.sel(step=1, rank=1, name="lr") == 0.5
    assert np.isnan(training.sel(step=0, rank=0, name="lr"))
    health = run.health()
    assert health[("dropped", "latest")].tolist() == [0, 4]
    assert health[("dropped", "total")].tolist() == [0, 4]


def test_a_run_without_a_record_answers_with_nothing(path: Path) -> None:
    with RunWriter.open(path, run="gpt"):
        run = open_run(path)

    assert len(run.records()) == len(run.sites()) == len(run.events()) == len(run.attempts) == 0
    assert run.scalar("rms").shape == (0, 0)
    assert run.scalar("var", view="merged").shape == (0, 0)
    assert run.exponents()["count"].shape == (0, 0, 277)
    assert run.heatmap("rms", width=10, height=10).values.shape == (0, 0)
    assert run.training().shape == (0, 0, 0)
    assert len(run.health()) == len(run.logframe()) == 0
    assert run.first_bad() is None


def test_what_is_no_statistic_and_no_run_is_told(run: Run) -> None:
    with pytest.raises(SettingError, match=r"one name, as 'rms', got \['rms', 'mean'\]; ask for"):
        run.scalar(["rms", "mean"])  # type: ignore[arg-type]
    for ask in (run.compare, run.ratios):
        with pytest.raises(SettingError, match=r"a run, as open_run\('x'\) gives it, got 'x'\."):
            ask("x")  # type: ignore[arg-type]


def test_no_step_in_a_range_is_no_error(run: Run) -> None:
    assert run.scalar("rms", steps=(100, 200)).shape == (0, 4)
    assert run.scalar("var", steps=(100, 200)).shape == (0, 4)
    assert run.heatmap("rms", steps=(100, 200), width=9).values.shape == (4, 0)
    assert run.exponents(steps=(100, 200))["count"].shape == (0, 4, 277)


def test_answers_stay_with_their_snapshot_until_refresh(
    run: Run, writer: RunWriter, record: Make
) -> None:
    writer.commit([record(20)], streams={})

    assert len(run.records()) == 20
    assert run.refresh()
    assert not run.refresh()
    assert len(run.records()) == 21


def test_a_run_that_was_refreshed_answers_as_one_that_was_opened_anew(
    writer: RunWriter, record: Make
) -> None:
    followed = open_run(writer.path)

    def look() -> None:
        followed.refresh()
        anew = open_run(writer.path)
        for one, other in zip(answers(followed), answers(anew), strict=True):
            xr.testing.assert_identical(one, other)
        pd.testing.assert_frame_equal(followed.records(), anew.records())

    def answers(run: Run) -> list[xr.DataArray | xr.Dataset]:
        return [run.main(), run.training(), run.exponents(site=UP_0), run.ranks("rms", site=UP_0)]

    made = [record(index) for index in range(7)]
    for start in range(0, 1100, 50):  # both rings come round, and the history begins
        late = [] if not start else [replace(made[6], index=start - 3, step=start - 3)]
        batch = [
            replace(made[at % 7], index=at, step=at, training={0: {"loss": at}})
            for at in range(start, start + 50)
        ]
        writer.commit([*late, *batch], streams={})
        look()
        for _ in range(3):
            writer.compact_if_due(keep=600)
            look()
    writer.finish()
    look()


def test_a_heatmap_of_a_run_that_grows_is_that_of_the_run_opened_anew(
    writer: RunWriter, record: Make
) -> None:
    rows = [[UP_0], [UP_1]]
    questions: list[Callable[[Run], Heatmap]] = [
        lambda run: run.heatmap("rms"),
        lambda run: run.heatmap("rms", width=25),
        lambda run: run.heatmap("rms", view="max", height=1),
        lambda run: run.heatmap("rms", rows=rows, width=9),
    ]
    followed = [open_run(writer.path) for _ in questions]

    def look() -> None:
        anew = open_run(writer.path)
        for one, ask in zip(followed, questions, strict=True):
            one.refresh()
            ours, theirs = ask(one), ask(anew)
            for part in ("values", "nonfinite", "observed", "column_first", "column_last"):
                assert np.array_equal(
                    getattr(ours, part), getattr(theirs, part), equal_nan=part == "values"
                )
            ours.values[:] = 0  # what is done to an answer is not done to the next one

    for index in range(60):
        attempt, step = (0, index) if index < 40 else (1, index - 15)  # which goes back to step 25
        if index == 40:
            assert writer.catalog.attempt_of("second launch") == 1
        patch = [record(12, {0: f32([1e30, np.nan])})] if index == 30 else []
        writer.commit([*patch, record(index, step=step, attempt=attempt)], streams={})
        look()
    writer.finish()
    look()


def test_a_snapshot_that_was_cleaned_away_says_so(
    run: Run, writer: RunWriter, record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.store.writer.FINISH_RETENTION_S", 0.0)
    writer.commit([record(20)], streams={})
    writer.finish()

    with pytest.raises(StoreError, match=r"can no longer be read; call `refresh\(\)`"):
        run.scalar("rms")
    assert run.refresh()
    assert len(run.scalar("rms")) == 21


def test_the_logframe_has_the_columns_of_the_seed(run: Run, record: Make) -> None:
    frame = run.logframe(steps=(0, 1))

    assert frame.columns.get_level_values(0).unique().tolist() == [
        "metadata",
        "scalar_stats",
        "exponent_counts",
    ]
    assert frame["metadata"]["tensor_type"].tolist()[:4] == [
        "Activation",
        "Activation",
        "Optimiser_State.exp_avg",
        "Weights",
    ]
    assert frame["metadata"]["name"].tolist()[:4] == [
        "layers.0.up",
        "layers.1.up",
        "layers.0.up",
        "layers.0.up",
    ]
    assert list(frame["exponent_counts"].columns[[0, 1, -2, -1]]) == [-np.inf, -149, 127, np.inf]
    assert frame["exponent_counts"].sum(axis=1).eq(40).all()
    merged = record(1).merged
    assert np.allclose(frame["scalar_stats"]["rm2"][4:], derive(merged, "rms")[[0, 1, 3, 2]])
    assert frame["scalar_stats"].columns.tolist()[:8] == [
        "mean",
        "std",
        "mean_abs",
        "max_abs",
        "min_abs",
        "rm2",
        "rm4",
        "rm8",
    ]


def test_column_n_of_the_logframe_counts_from_two_to_the_n(writer: RunWriter, record: Make) -> None:
    writer.commit([record(0, {0: f32([1.0, 1.9, 2.0, 0.0])})], streams={})

    counts = open_run(writer.path).logframe()["exponent_counts"]

    assert counts[0].tolist() == [2]
    assert counts[1].tolist() == [1]
    assert isinstance(counts, pd.DataFrame)


def test_the_snapshot_is_plain_zarr_that_cannot_be_written(run: Run) -> None:
    root: Any = run.zarr()  # zarr types what a group holds too widely

    assert root.attrs["run"] == "gpt"
    with pytest.raises(IcechunkError, match="read-only"):
        root["tail/scalars"][0] = 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "is a file"),
        (lambda path: path.mkdir(), "is an empty folder"),
        (lambda path: zarr.create_group(path), "is a plain Zarr store, not a run"),
        (lambda path: (path / "x").mkdir(parents=True), "is a folder without a run"),
        (lambda path: RunWriter.open(path / "b", run="b").close(), "is a folder of runs: b"),
    ],
)
def test_a_path_that_is_no_run_says_what_it_is(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path / "thing")

    with pytest.raises(NotARunError, match=f"thing {message}"):
        open_run(tmp_path / "thing")


def test_a_name_alone_is_told_where_the_run_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    RunWriter.open(Path("rankscope-runs/gpt"), run="gpt").close()

    with pytest.raises(NotARunError, match="gpt does not exist, but rankscope-runs/gpt does; give"):
        open_run("gpt")


def test_a_name_that_is_misspelt_is_told_with_the_run_of_a_near_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("r2", "rankscope-runs"):
        RunWriter.open(Path(folder) / f"phases-{folder}", run=f"phases-{folder}").close()

    for wrong, right in (
        ("r2/phasess-r2", "r2/phases-r2"),
        ("phase-rankscope-run", "rankscope-runs/phases-rankscope-runs"),
    ):
        with pytest.raises(NotARunError, match=f"{wrong} does not exist, but {right} does; give"):
            open_run(wrong)
    with pytest.raises(NotARunError, match="r2/other does not exist; give"):
        open_run("r2/other")


@pytest.fixture
def watched(writer: RunWriter, record: Make) -> Run:
    """Twelve records, every fourth of sketches, the others of the sentinel; one is not finite."""
    records = [record(index, look=glance_at if index % 4 else sketch_array) for index in range(12)]
    records[6] = record(6, {0: f32([1, np.inf]), 1: f32([2, 3])}, look=glance_at)
    writer.commit(records, streams={})
    return open_run(writer.path)


def test_what_the_sentinel_saw_is_told_at_every_step(watched: Run) -> None:
    for statistic in ("abs_max", "min", "max", "nonfinite", "count"):
        assert watched.scalar(statistic, sites=[UP_0]).notnull().all()
        assert watched.scalar(statistic).sizes["step"] == 12
    assert watched.ranks("abs_max", site=UP_0).sizes["step"] == 12
    assert watched.records()["nonfinite"].tolist() == [0] * 6 + [1] + [0] * 5
    assert watched.records()["sketched"].tolist() == [4, 0, 0, 0] * 3


def test_other_statistics_have_the_steps_of_sketches_and_those_that_went_wrong(
    watched: Run,
) -> None:
    for statistic in ("rms", "l2", "rm8", "kurtosis", "zero_share"):
        found = watched.scalar(statistic)
        assert found["step"].values.tolist() == [0, 4, 6, 8]
        assert found.notnull().all("site").values.tolist() == [True, True, False, True]
    assert watched.ranks("rms", site=UP_0).sizes["step"] == 4
    assert watched.exponents()["observed"].values.sum() == 12


@pytest.mark.parametrize("view", ["merged", "min", 0])
def test_a_heatmap_tells_what_was_left_to_the_sentinel_from_what_is_undefined(
    watched: Run, view: Any
) -> None:
    found = watched.heatmap("rms", view=view)
    assert found.column_first.tolist() == [0, 4, 6, 8]
    assert found.observed[:, [0, 1, 3]].all()
    assert found.observed[:, 2].tolist() == [True, False, False, False]
    assert found.nonfinite[:, 2].tolist() == [True, False, False, False]
    assert watched.heatmap("abs_max", view=view).observed.sum() == 11 * 4 + 2


def test_a_tensor_without_elements_makes_no_step_a_sketched_one(
    writer: RunWriter, record: Make
) -> None:
    tensors = {0: f32([]), 1: f32([2, 3])}
    for index in range(6):
        look = glance_at if index % 3 else sketch_array
        writer.commit([record(index, tensors, look=look)], streams={})
    run = open_run(writer.path)
    assert run.scalar("rms")["step"].values.tolist() == [0, 3]
    assert run.exponents()["step"].values.tolist() == [0, 3]
    assert (
        run.records()[["sites", "sketched", "glanced"]].to_numpy().tolist()
        == [
            [2, 1, 0],
            [2, 0, 1],
            [2, 0, 1],
        ]
        * 2
    )
