"""Runs made of LogFrames, and LogFrames made of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.logframe import import_logframe, read_logframe, validate, write_logframe
from rankscope.rules import judge_again, rule_book, why
from rankscope.sketch import MAIN, LogFrameError, SettingError, StoreError
from rankscope.store import Run, RunWriter, list_runs, open_run

from .conftest import SITES
from .tandv import Tensor, build

COUNTED = ("zero", "nan", "pos_inf", "neg_inf", "under", "over", "total", "unseen")


def imported(frame: pd.DataFrame, tmp_path: Path) -> Run:
    """The run of a LogFrame."""
    import_logframe(frame, tmp_path / "again", run="again")
    return open_run(tmp_path / "again")


def written(run: Run, path: Path) -> pd.DataFrame:
    """The LogFrame of a run, as it comes back from a file."""
    write_logframe(run.logframe(), path)
    return read_logframe(path)


def nothing(run: Run, _: Path) -> pd.DataFrame:
    return run.logframe()


def parquet(run: Run, tmp_path: Path) -> pd.DataFrame:
    pytest.importorskip("pyarrow")
    return written(run, tmp_path / "log.parquet")


def csv(run: Run, tmp_path: Path) -> pd.DataFrame:
    return written(run, tmp_path / "log.csv")


@pytest.mark.parametrize("through", [nothing, parquet, csv])
def test_a_run_that_goes_out_and_comes_back_is_the_same(
    through: Callable[[Run, Path], pd.DataFrame], run: Run, tmp_path: Path
) -> None:
    again = imported(through(run, tmp_path), tmp_path)

    assert list(again.sites().index) == list(run.sites().index)
    for fact in ("kind", "name", "slot", "occurrence", "dtype", "module"):
        assert again.sites()[fact].tolist() == run.sites()[fact].tolist()
    before, after = run.exponents(), again.exponents()
    assert np.array_equal(after["count"], before["count"])
    for name in COUNTED:
        assert np.array_equal(after[name], before[name])
    assert np.array_equal(after["observed"], before["observed"])
    for statistic in MAIN:
        assert np.array_equal(again.scalar(statistic), run.scalar(statistic), equal_nan=True)
    assert np.array_equal(again.scalar("negative_share"), run.scalar("negative_share"))
    assert np.isnan(again.scalar("sum")).all()


def test_what_was_imported_goes_out_again_as_it_came(log: pd.DataFrame, tmp_path: Path) -> None:
    log.iloc[0, list(log.columns).index(("scalar_stats", "max_abs"))] = np.nan
    log.iloc[0, list(log.columns).index(("scalar_stats", "mean"))] = np.nan
    first = imported(log, tmp_path)

    import_logframe(first.logframe(), tmp_path / "third", run="third")

    third = open_run(tmp_path / "third")
    assert np.array_equal(third.exponents()["count"], first.exponents()["count"])
    for statistic in MAIN:
        assert np.array_equal(third.scalar(statistic), first.scalar(statistic), equal_nan=True)


def test_fewer_columns_of_exponents_have_the_rest_beyond_them(run: Run, tmp_path: Path) -> None:
    frame = run.logframe(exponents=(-17, 15))
    every, total = run.logframe()["exponent_counts"], frame["exponent_counts"].sum(axis=1)

    assert list(frame["exponent_counts"].columns) == [-np.inf, *range(-17, 16), np.inf]
    assert np.array_equal(total, every.sum(axis=1))
    assert np.array_equal(frame["exponent_counts"][0], every[0])
    again = imported(frame, tmp_path).exponents(name=r"layers\.0\.bias")
    assert (again["under"] + again["over"] + again["count"].sum("exponent") == 64).all()
    for exponents in ((3, 2), (-200, 0), (0, 128)):
        with pytest.raises(
            SettingError, match="must be a first and a last one between -149 and 127"
        ):
            run.logframe(exponents=exponents)


def test_rows_of_a_run_are_told_apart_by_their_names(run: Run) -> None:
    # tandv's heatmap refuses a tensor that comes twice in a step.
    frame = run.logframe()

    columns = [frame["metadata", name].tolist() for name in ("step", "tensor_type", "name")]
    assert columns[2][:3] == ["layers.0", "layers.0[1]", "layers.0#1"]
    assert len(set(zip(*columns, strict=True))) == len(frame) == 3 * len(SITES)


def test_sites_are_called_as_rankscope_calls_them(log: pd.DataFrame, tmp_path: Path) -> None:
    run = imported(log, tmp_path)

    assert run.sites().index.tolist() == [
        "activation:layers.0",
        "activation:layers.1",
        "activation_gradient:layers.1",
        "weight:layers.0.weight",
        "weight:layers.0.bias",
        "weight_gradient:layers.0.weight",
        "optimizer_state:layers.0.weight[exp_avg]",
    ]
    assert run.sites()["module"].tolist()[:3] == ["Linear", "Linear", "Own"]
    assert run.finished
    assert run.attempts["world_size"].tolist() == [1]
    assert run.records()["step"].tolist() == [0, 1, 2]


def test_a_parameter_that_is_of_no_module_keeps_its_name(tmp_path: Path) -> None:
    value = np.ones(3, np.float32)
    rows: list[Tensor] = [(0, name, "Weights", value) for name in ("positions", "a", "a.bias")]

    run = imported(build(rows), tmp_path)

    assert run.sites()["name"].tolist() == ["positions", "a.weight", "a.bias"]


def test_a_tensor_that_comes_twice_in_a_step_is_another_call(tmp_path: Path) -> None:
    one, two = np.ones(3, np.float32), np.full(3, 2, np.float32)
    rows: list[Tensor] = [(0, "a", "Activation", one), (0, "a", "Activation", two)]

    run = imported(build(rows), tmp_path)

    assert run.sites().index.tolist() == ["activation:a", "activation:a#1"]
    assert run.scalar("mean").values.tolist() == [[1, 2]]
    twice = pd.concat([run.logframe()] * 2, ignore_index=True)
    twice.attrs = run.logframe().attrs
    with pytest.raises(LogFrameError, match="names a tensor twice in step 0, row 2: 'a'"):
        import_logframe(twice, tmp_path / "twice", run="twice")


def test_steps_may_come_in_any_order_and_lack_tensors(log: pd.DataFrame, tmp_path: Path) -> None:
    some = log.drop(index=[8, 9]).sample(frac=1, random_state=1)

    run = imported(some, tmp_path)

    assert run.records()["sites"].tolist() == [7, 5, 7]
    missing = int(run.scalar("rms").isnull().sum())
    assert missing == 2
    assert run.exponents()["observed"].values.tolist().count([True] * 7) == 2


def test_why_finds_where_a_log_went_bad(tmp_path: Path) -> None:
    draw, rows = np.random.default_rng(0), list[Tensor]()
    for step in range(6):
        for name in ("a", "b"):
            value = draw.normal(size=50).astype(np.float32)
            if step >= 4 and name == "b":
                value[3] = np.nan
            rows += [
                (step, name, "Activation", value),
                (step, name, "Weights", np.ones_like(value)),
            ]

    done = import_logframe(build(rows), tmp_path / "run", run="run")

    run = open_run(tmp_path / "run")
    found = why(run)
    [finding] = found.findings
    assert (finding.rule, finding.site, finding.first_step) == ("nonfinite", "activation:b", 4)
    assert finding.what == "activation:b holds at least 1 NaN of 50 elements."
    assert done.alerts == 1
    first = run.first_bad()
    assert first is not None
    assert (first.site, first.step) == ("activation:b", 4)
    assert first.text.startswith("First non-finite values: activation:b, step 4. ")  # on no rank
    # Nothing was judged that the log does not hold.
    assert not {"weights-not-updating", "update-ratio", "replica-divergence"} & run.judged().keys()
    assert any("imported from a LogFrame" in text for text in found.not_observed)
    incidents, judged = judge_again(run, rule_book())
    assert incidents == run.incidents()
    assert dict(judged) == run.judged()


def test_a_long_log_is_pooled_without_making_anything_up(tmp_path: Path) -> None:
    # Beyond 2,048 records questions read sums and extremes of blocks.
    values = np.array([1.0, -2.0, 0.0], np.float32), np.array([3.0, 0.25], np.float32)
    one = build([(0, "a", "Activation", value) for value in values])
    log = pd.concat([one] * 1100, ignore_index=True)
    log["metadata", "step"] = np.arange(len(log))

    run = imported(log, tmp_path)

    found = run.exponents(width=4).isel(site=0)
    assert int(found["total"].sum()) == 1100 * 5
    assert int(found["count"].sum()) == 1100 * 4
    pooled = run.heatmap("abs_max", width=4)
    assert set(pooled.values.ravel().tolist()) == {3.0}
    assert np.isnan(run.heatmap("kurtosis", width=4).values).all()
    sums = run.zarr()["pyramid/16/counts"]
    assert sums[0, 0, 5] == -1  # type: ignore[index, operator]  # nobody counted signs


def test_nothing_is_written_over_a_run(log: pd.DataFrame, run: Run, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"There is a run at .*origin already"):
        import_logframe(log, tmp_path / "origin", run="origin")
    assert len(run.records()) == 3


def test_what_cannot_be_imported_is_refused_before_anything_is_written(
    log: pd.DataFrame, tmp_path: Path
) -> None:
    with pytest.raises(LogFrameError, match="has no rows"):
        imported(log.iloc[:0], tmp_path)
    log.loc[4, ("metadata", "tensor_type")] = "Momentum"
    with pytest.raises(LogFrameError, match=r"metadata.tensor_type .*, row 4: 'Momentum'"):
        imported(log, tmp_path)
    assert not (tmp_path / "again").exists()


def test_statistics_of_ones_own_are_left_out_and_named(log: pd.DataFrame, tmp_path: Path) -> None:
    log["scalar_stats", "sparsity"] = 0.5

    done = import_logframe(log, tmp_path / "run", run="run")

    assert done.not_observed[-1] == (
        "Statistics that have no place in a run were left out: sparsity."
    )
    assert done.not_observed[-1] in open_run(tmp_path / "run").events()["text"].tolist()


def test_the_commands_import_show_and_export(log: pd.DataFrame, tmp_path: Path) -> None:
    command, store = CliRunner(), str(tmp_path / "runs")
    log.to_pickle(tmp_path / "final_logframe.pkl")
    pickled = ["import", str(tmp_path / "final_logframe.pkl"), "--store", store]

    refused = command.invoke(cli, pickled)
    done = command.invoke(cli, [*pickled, "--trust-pickle", "--run", "old"])

    assert refused.exit_code == 1
    assert "--trust-pickle" in refused.output
    assert done.exit_code == 0, done.output
    assert "3 records of 7 sites; alerts: 0." in done.output
    assert [one.name for one in list_runs(store)] == ["old"]
    told = command.invoke(cli, ["why", f"{store}/old"])
    assert "This run was imported from a LogFrame" in told.output
    out = str(tmp_path / "out.csv")
    sent = command.invoke(
        cli, ["export", f"{store}/old", "--logframe", out, "--between", "-17", "15"]
    )
    assert sent.exit_code == 0, sent.output
    assert "holds 21 rows" in sent.output
    assert read_logframe(out).shape[0] == 21
    for wrong in (["export", f"{store}/old"], ["import", out, "--store", store, "--run", "a/b"]):
        assert command.invoke(cli, wrong).exit_code == 2
    assert command.invoke(cli, ["import", out, "--store", store, "--run", "old"]).exit_code == 1


def test_exponents_can_be_said_to_be_documented(log: pd.DataFrame) -> None:
    frame = validate(log, exponents="documented")

    assert frame["exponent_counts"].columns.tolist() == log["exponent_counts"].columns.tolist()
    assert "mixed" not in frame.attrs["rankscope"]


def test_a_documented_log_that_counts_no_zeros_has_none_that_are_known(
    log: pd.DataFrame, tmp_path: Path
) -> None:
    run = imported(validate(log, exponents="documented"), tmp_path)

    for statistic in ("zero_share", "nonfinite", "l2"):
        assert np.isnan(run.scalar(statistic)).all()
    assert not np.isnan(run.scalar("rms")).any()


def test_the_writer_still_refuses_counts_below_zero(log: pd.DataFrame, tmp_path: Path) -> None:
    run = imported(log, tmp_path)
    [record, *_] = run.replay(0)
    record.merged.counts[0, 0] = -1

    with (
        RunWriter.open(tmp_path / "again", run="again") as writer,
        pytest.raises(StoreError, match="has a negative count"),
    ):
        writer.commit([record], streams={})


def test_nothing_is_said_of_bits_that_a_log_does_not_keep(
    log: pd.DataFrame, tmp_path: Path
) -> None:
    one = imported(log, tmp_path)
    import_logframe(log, tmp_path / "other", run="other")

    told = one.compare(open_run(tmp_path / "other"))

    assert told.bits is None
    assert "bits of a run made of one are not known" in told.text
    assert "not a bit differs" not in told.text
    assert told.numbers is None
