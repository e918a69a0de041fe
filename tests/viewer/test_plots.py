"""Plots for notebooks: the same prepared data, of runs and of LogFrames, in both backends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

import holoviews as hv
import numpy as np
import pandas as pd
import panel as pn
import pytest
from bokeh.document import Document
from bokeh.io.doc import patch_curdoc
from hypothesis import given
from hypothesis import strategies as st

from rankscope.logframe import import_logframe
from rankscope.sketch import FORMATS, SettingError, number_format, sketch_array
from rankscope.store import RunWriter, open_run
from rankscope.viewer import grid, plots
from rankscope.viewer.columns import NONFINITE
from rankscope.viewer.figures import colours
from rankscope.viewer.plots import look
from rankscope.viewer.plots.guesses import shares
from rankscope.viewer.spectrum import Spectrum, outline

from ..collector.serving import outbox, send, serving
from ..logframe.tandv import build
from .test_series import with_zeros

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ORIGIN = "activation:blocks.2.mlp.act"
OTHER = "activation:blocks.0.norm1"


# `Any`: parts of a HoloViews overlay, which has no types.
def parts(plot: Any, kind: type) -> list[Any]:
    return [part for part in plot if isinstance(part, kind)]


def labelled(plot: Any, start: str) -> Any:
    return next(part for part in plot if part.label.startswith(start))


def titles(plot: Any) -> list[str]:
    facets = plot if isinstance(plot, hv.Layout) else [plot]
    return [hv.Store.lookup_options("bokeh", one, "plot").kwargs["title"] for one in facets]


def line_width(plot: Any) -> float:
    [bars] = parts(plot, hv.Rectangles)
    return hv.Store.lookup_options("bokeh", bars, "style").kwargs["line_width"]


@pytest.fixture(scope="module")
def frame(broken_job: Path) -> pd.DataFrame:
    return open_run(broken_job).logframe()


# Which sites are drawn.


def test_a_name_without_a_kind_is_looked_for_in_all_kinds(broken_job: Path) -> None:
    run = open_run(broken_job)
    name = r"^blocks\.2\.mlp\.up$"
    every = run.sites(name=name).index.tolist()

    assert len({site.partition(":")[0] for site in every}) > 1
    assert titles(plots.scalar_lines(run, "abs_max", name=name)) == every
    assert titles(plots.exponent_heatmap(run, name=name)) == every
    drawn = titles(plots.exponent_histogram(run, name=name, step=20))
    assert drawn == [f"{site}, step 20" for site in every]
    assert titles(plots.scalar_heatmap(run, "abs_max", name=name)) == [
        f"abs_max of {site.partition(':')[0].replace('_', ' ')}s, merged over ranks"
        for site in every
    ]


def test_where_activations_are_meant_by_default_the_message_says_so(
    broken_job: Path, frame: pd.DataFrame
) -> None:
    run, twice = open_run(broken_job), pd.concat([frame, frame], ignore_index=True)

    with pytest.raises(
        SettingError,
        match=r"sites match among those of kind activation \(`kind` chooses others\), and at most",
    ):
        plots.scalar_lines(twice, "mean")
    with pytest.raises(SettingError, match="matches 'nowhere' among those of kind activation; "):
        plots.scalar_lines(run, kind="activation", name="nowhere")
    with pytest.raises(SettingError, match="No site's name matches 'nowhere'; there are "):
        plots.scalar_heatmap(run, name="nowhere")


# Histograms of exponents.


def test_a_bar_for_each_exponent_that_is_counted(broken_job: Path) -> None:
    run = open_run(broken_job)
    found = run.exponents(sites=[OTHER], steps=20).isel(step=0, site=0)
    counts = found["count"].values

    drawn = plots.exponent_histogram(run, site=OTHER, step=20, of="count")

    [bars] = parts(drawn, hv.Rectangles)
    table = bars.dframe()
    inside = table[~table["what"].isin(["zero", "−∞", "+∞", "NaN"])]
    held = np.flatnonzero(counts)
    span = slice(held[0], held[-1] + 1)
    assert inside["x0"].tolist() == found["exponent"].values[span].tolist()
    assert inside["count"].tolist() == counts[span].tolist()
    assert inside["y1"].tolist() == [max(n, 0.5) for n in counts[span]]


def test_what_has_no_exponent_stands_apart(broken_job: Path) -> None:
    run = open_run(broken_job)
    found = run.exponents(sites=[ORIGIN], steps=45).isel(step=0, site=0)

    [bars] = parts(plots.exponent_histogram(run, site=ORIGIN, step=45), hv.Rectangles)

    table = bars.dframe().set_index("what")
    assert table.loc["+∞", "count"] == int(found["pos_inf"])
    assert table.loc["zero", "count"] == int(found["zero"])
    assert table.loc["zero", "x1"] < found["exponent"].values[np.flatnonzero(found["count"])[0]]


@pytest.mark.parametrize("name", [one for one in FORMATS if one != "float64"])
def test_the_ends_of_any_format_are_drawn_where_they_are(name: str, broken_job: Path) -> None:
    target = number_format(name)

    drawn = plots.exponent_histogram(open_run(broken_job), site=OTHER, step=20, formats=name)

    for end, value in (
        ("max", target.max),
        ("smallest normal", target.smallest_normal),
        ("smallest subnormal", target.smallest_subnormal),
    ):
        line = labelled(drawn, f"{name} {end}")
        assert line.dimension_values(0).tolist() == [np.log2(value)] * 2
        assert np.isfinite(line.dimension_values(1)).all(), "drawn, not only told"


def test_a_run_without_sites_says_so(tmp_path: Path) -> None:
    with RunWriter.open(tmp_path / "empty", run="empty") as writer:
        writer.catalog.attempt_of("launch")
        writer.commit([], streams={"s": 1})

    with pytest.raises(SettingError, match="No site has been recorded yet"):
        plots.scalar_heatmap(open_run(tmp_path / "empty"), "rms")


def test_short_names_of_formats_are_drawn(broken_job: Path) -> None:
    drawn = plots.exponent_histogram(open_run(broken_job), site=OTHER, step=20, formats="e4m3")

    assert len(labelled(drawn, "float8_e4m3fn max"))


def test_several_formats_can_be_compared_and_none(broken_job: Path) -> None:
    run = open_run(broken_job)

    several = plots.exponent_histogram(
        run, site=OTHER, step=20, formats=["float8_e4m3fn", "bfloat16"]
    )
    none = plots.exponent_histogram(run, site=OTHER, step=20, formats=())

    assert len(parts(several, hv.Curve)) == 6
    assert line_width(several) == 0, "bars as narrow as lines are hidden by these"
    assert line_width(none) > 0
    assert parts(none, hv.Curve) == []


def test_without_a_step_it_is_the_last_one_observed(broken_job: Path) -> None:
    drawn = plots.exponent_histogram(open_run(broken_job), site=OTHER)

    assert titles(drawn) == [f"{OTHER}, step 59"]


def test_sites_stand_side_by_side_on_the_same_axes(broken_job: Path) -> None:
    drawn = plots.exponent_histogram(
        open_run(broken_job), kind=["activation", "weight_gradient"], name=r"0\.mlp\.up", step=20
    )

    assert titles(drawn) == [
        "activation:blocks.0.mlp.up, step 20",
        "weight_gradient:blocks.0.mlp.up, step 20",
    ]
    limits = {hv.Store.lookup_options("bokeh", one, "plot").kwargs["xlim"] for one in drawn}
    assert len(limits) == 1


def test_a_smooth_line_keeps_the_area() -> None:
    counts = np.array([1, 4, 9, 30, 12, 2, 1])
    spectrum = Spectrum(
        site="weight:up", step=1, exponents=np.arange(-5, 2), counts=counts, aside={}, total=59
    )

    x, y = outline(spectrum, smooth=True)

    assert np.trapezoid(y, x) == pytest.approx(counts.sum(), rel=1e-3)


@pytest.mark.parametrize("style", ["line", "smooth"])
def test_a_line_takes_the_place_of_bars(style: Any, broken_job: Path) -> None:
    drawn = plots.exponent_histogram(
        open_run(broken_job), site=OTHER, step=20, style=style, formats=()
    )

    [line] = parts(drawn, hv.Curve)
    assert line.dimension_values(1).max() <= 1


def test_a_step_that_is_no_number_is_told(broken_job: Path) -> None:
    wrong: Any = "ten"

    with pytest.raises(SettingError, match="`step` must be a whole number, got 'ten'"):
        plots.exponent_histogram(open_run(broken_job), site=OTHER, step=wrong)


def test_the_panel_names_no_keys_that_it_does_not_know(broken_job: Path) -> None:
    hint = plots.explore(open_run(broken_job)).title.object

    assert "Click a cell" in hint
    assert "<kbd>" not in hint


def test_what_was_not_observed_is_told(broken_job: Path) -> None:
    run = open_run(broken_job)

    for data in (run, run.logframe(name="mlp")):
        with pytest.raises(SettingError, match=r"at step 99; the nearest recorded is 59\."):
            plots.exponent_histogram(data, site=ORIGIN, step=99)
    with pytest.raises(SettingError, match="36 sites match, and at most 24 can be told apart"):
        plots.exponent_heatmap(run, kind=["activation", "weight_gradient"])
    with pytest.raises(SettingError, match="`style` must be bars, line or smooth"):
        plots.exponent_histogram(run, style="pie")  # type: ignore[arg-type]


# The life of a tensor.


def test_the_life_of_a_tensor_has_a_column_a_step(broken_job: Path) -> None:
    run = open_run(broken_job)
    found = run.exponents(sites=[ORIGIN]).isel(site=0)

    drawn = plots.exponent_heatmap(run, site=ORIGIN)

    [cells] = parts(drawn, hv.Image)
    share = cells.dimension_values("share", flat=False)
    held = np.flatnonzero(found["count"].values.any(axis=0))
    wanted = (found["count"] / found["total"]).values[:, held[0] : held[-1] + 1].T
    np.testing.assert_allclose(share, np.where(wanted > 0, wanted, np.nan), rtol=1e-6)
    bad = labelled(drawn, "non-finite").dimension_values(0)
    assert bad.tolist() == list(range(40, 60))


def test_steps_that_were_not_recorded_stay_open(new_job: Callable[..., Any]) -> None:
    job = new_job()
    job.commit(range(10))
    job.commit(range(20, 30))

    drawn = plots.exponent_heatmap(open_run(job.path), site=OTHER)

    _, seen = parts(drawn, hv.Rectangles)
    lefts = set(seen.dimension_values(0).tolist())
    assert {-0.5, 8.5, 19.5}.issubset(lefts)
    assert not any(11 < left < 18 for left in lefts)


# Statistics.


def test_the_heatmap_holds_the_same_cells_as_the_page(broken_job: Path) -> None:
    run = open_run(broken_job)
    cells = grid.load_grid(run, statistic="rms", kind="activation", width=800, height=400)

    drawn = plots.scalar_heatmap(run)

    _, _, shades, bad = parts(drawn, hv.Image)[0], *parts(drawn, hv.Image)
    assert shades.bounds.lbrt() == (-0.5, 0.0, 59.5, 24.0)
    np.testing.assert_array_equal(shades.dimension_values(2, flat=False), cells.shade[::-1])
    assert np.isfinite(bad.dimension_values(2)).sum() == (cells.state == grid.NONFINITE).sum()


def test_each_kind_has_its_own_colours_and_rows(broken_job: Path) -> None:
    drawn = plots.scalar_heatmap(open_run(broken_job), kind=["activation", "weight_gradient"])

    one, other = (parts(facet, hv.Image)[1] for facet in drawn)
    assert one.vdims[0].range != other.vdims[0].range
    assert one.vdims[0] != other.vdims[0]
    assert one.kdims[1] != other.kdims[1]
    assert one.kdims[0] == other.kdims[0]


def test_lines_by_site_by_kind_and_by_statistic(broken_job: Path) -> None:
    run = open_run(broken_job)
    asked: dict[str, Any] = {"kind": ["activation", "weight_gradient"], "name": r"[01]\.mlp\.up"}

    by_site = plots.scalar_lines(run, ["rms", "abs_max"], **asked)
    by_kind = plots.scalar_lines(run, ["rms", "abs_max"], **asked, facet="kind")
    by_statistic = plots.scalar_lines(run, ["rms", "abs_max"], **asked, facet="statistic")
    together = plots.scalar_lines(run, "rms", **asked, facet="")

    assert titles(by_site) == [
        f"{kind}:blocks.{block}.mlp.up"
        for kind, block in (
            ("activation", 0), ("weight_gradient", 0), ("activation", 1), ("weight_gradient", 1)
        )
    ]  # fmt: skip
    assert titles(by_kind) == ["activation", "weight_gradient"]
    assert titles(by_statistic) == ["rms", "abs_max"]
    assert [len(parts(facet, hv.Curve)) for facet in by_kind] == [4, 4]
    assert len(parts(together, hv.Curve)) == 4


def test_lines_are_the_numbers_of_the_run(broken_job: Path) -> None:
    run = open_run(broken_job)

    drawn = plots.scalar_lines(run, "rms", site=ORIGIN, steps=(10, 50))

    [line] = parts(drawn, hv.Curve)
    wanted = run.scalar("rms", sites=[ORIGIN], steps=(10, 50))
    np.testing.assert_array_equal(line.dimension_values(0), wanted["step"])
    np.testing.assert_array_equal(line.dimension_values(1), wanted.values[:, 0])
    assert labelled(drawn, "non-finite").dimension_values(0).tolist() == list(range(40, 51))


def test_runs_are_told_apart_in_one_plot(broken_job: Path, frame: pd.DataFrame) -> None:
    run = open_run(broken_job)

    drawn = plots.scalar_lines({"as it was": run, "exported": frame}, "rms", site=[ORIGIN, OTHER])

    assert titles(drawn) == [ORIGIN, OTHER]
    one, other = parts(drawn.values()[0], hv.Curve)
    assert (one.label, other.label) == ("as it was", "exported")
    colours = [
        hv.Store.lookup_options("bokeh", line, "style").kwargs["color"] for line in (one, other)
    ]
    assert len({*colours}) == 2
    np.testing.assert_allclose(one.dimension_values(1), other.dimension_values(1), rtol=1e-6)

    trained = plots.scalar_lines({"a": run, "b": run}, site=ORIGIN, training="loss")
    assert titles(trained) == [ORIGIN, "loss"]
    assert {line.label for line in parts(trained.values()[1], hv.Curve)} == {"a", "b"}
    assert labelled(trained.values()[0], "a non-finite").dimension_values(0)[0] == 40
    with pytest.raises(SettingError, match=r"exported: .*nothing-is-called-so"):
        plots.scalar_lines({"exported": frame}, name="nothing-is-called-so")
    with pytest.raises(SettingError, match="draws one run"):
        plots.scalar_lines({"a": run, "b": run}, site=ORIGIN, ranks=True)
    with pytest.raises(SettingError, match="`data` is empty"):
        plots.scalar_lines({})


def test_histograms_of_runs_are_told_apart_in_one_plot(
    broken_job: Path, frame: pd.DataFrame
) -> None:
    run, before = open_run(broken_job), frame.loc[frame["metadata", "step"] <= 50]
    both = {"as it was": run, "exported": frame}

    drawn = plots.exponent_histogram(both, site=[ORIGIN, OTHER], step=45, formats=())

    assert titles(drawn) == [f"{ORIGIN}, step 45", f"{OTHER}, step 45"]
    one, other = parts(drawn.values()[1], hv.Curve)
    assert (one.label, other.label) == ("as it was", "exported")
    [alone] = parts(
        plots.exponent_histogram(run, site=OTHER, step=45, formats=(), style="line"), hv.Curve
    )
    assert set(alone.dimension_values(1)) == set(one.dimension_values(1))
    np.testing.assert_allclose(one.dimension_values(1), other.dimension_values(1))
    same = plots.exponent_histogram({"a": run, "b": run.of_attempt(0)}, site=ORIGIN, step=45)
    bars, beside = (part.dframe().set_index("what") for part in parts(same, hv.Rectangles))
    assert bars.loc["+∞", "count"] == beside.loc["+∞", "count"] > 0
    assert bars.loc["+∞", "x1"] == pytest.approx(beside.loc["+∞", "x0"])
    assert bars.loc["+∞", "colour"] != beside.loc["+∞", "colour"]

    some = frame.loc[frame["metadata", "name"] != ORIGIN.partition(":")[2]]
    partly = plots.exponent_histogram({"some": some, "all": run}, name="blocks", kind="activation")
    assert [part.label for part in parts(partly.values()[0], hv.Curve)][:2] == ["some", "all"]
    [alone] = [one for one in partly.values() if titles(one) == [f"{ORIGIN}, step 59"]]
    assert parts(alone, hv.Curve)[0].label == "all"
    trained = plots.exponent_histogram({"a": run, "b": run}, site=OTHER, training="loss")
    assert titles(trained) == [f"{OTHER}, step 59", "loss"]
    last = plots.exponent_histogram({"run": run, "before": before}, site=OTHER)
    assert titles(last) == [OTHER]
    labels = [part.label for part in parts(last, hv.Curve)]
    assert labels[:2] == ["run, step 59", "before, step 50"]
    page = Document()  # the process's own may be one that a test before has closed
    with patch_curdoc(page):
        for backend in ("bokeh", "matplotlib"):
            hv.render(drawn, backend=backend)
    with pytest.raises(SettingError, match=r"before: .*was not observed at step 55"):
        plots.exponent_histogram({"run": run, "before": before}, site=OTHER, step=55)
    with pytest.raises(SettingError, match="`data` is empty"):
        plots.exponent_histogram({})


def test_each_rank_has_a_line_and_the_odd_one_is_named(broken_job: Path) -> None:
    drawn = plots.scalar_lines(open_run(broken_job), "abs_max", site=ORIGIN, ranks=True)

    assert sorted(line.label for line in parts(drawn, hv.Curve)) == [f"rank {n}" for n in range(4)]
    assert titles(drawn) == [f"{ORIGIN}: rank 2 not finite from step 40"]


def test_ranks_are_told_apart_and_what_was_not_finite_last_is_named(
    new_job: Callable[..., Any],
) -> None:
    job = new_job(bad_step=5)
    job.commit(range(8))

    drawn = plots.scalar_lines(open_run(job.path), "rms", site=OTHER, ranks=True)
    odd = plots.scalar_lines(open_run(job.path), "rms", site=ORIGIN, ranks=True)

    lines = parts(drawn, hv.Curve)
    shades = [hv.Store.lookup_options("bokeh", one, "style").kwargs["color"] for one in lines]
    assert len({*shades}) == 4
    assert titles(odd)[0].startswith(f"{ORIGIN}: rank 2 not finite from step 5")


def test_a_site_that_never_was_finite_on_any_rank_is_drawn(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        box = outbox(service.address)
        send(box, range(3), value=np.nan)
        assert box.close(timeout_s=10)

    drawn = plots.scalar_lines(open_run(tmp_path / "demo"), site="activation:fc", ranks=True)

    assert titles(drawn) == ["activation:fc: rank 0 not finite from step 0"]


def test_a_rank_of_zeros_is_marked_where_the_axis_has_no_zero(new_job: Callable[..., Any]) -> None:
    job = with_zeros(new_job(bad_step=None), rank=2)

    drawn = plots.scalar_lines(open_run(job.path), "rms", site=job.sites[0].label, ranks=True)

    assert titles(drawn)[0].endswith("rank 2 zero at step 2")
    assert labelled(drawn, "zero").dimension_values(0).tolist() == [0, 1, 2]


@pytest.mark.parametrize("value", [np.nan, 0.0, 4.0])
@pytest.mark.parametrize("ranks", [False, True])
def test_a_logarithmic_axis_with_less_than_two_numbers_has_ends(
    tmp_path: Path, value: float, ranks: bool
) -> None:
    with serving(tmp_path) as service:
        box = outbox(service.address)
        send(box, range(3), value=value)
        assert box.close(timeout_s=10)

    drawn = plots.scalar_lines(open_run(tmp_path / "demo"), site="activation:fc", ranks=ranks)

    low, high = hv.Store.lookup_options("bokeh", drawn, "plot").kwargs["ylim"]
    assert (low, high) == ((2, 6) if value == 4 else (0.5, 1.5))


def test_all_of_one_stretch_without_a_number_is_marked_at_one_height(
    broken_job: Path,
) -> None:
    losses = pd.Series([3.0, np.inf, np.inf, np.inf, 1.0], index=range(5), name="loss")

    drawn = plots.scalar_heatmap(open_run(broken_job), training=losses).values()[1]

    assert labelled(drawn, "non-finite").dimension_values(1).tolist() == [3.0] * 3


def test_a_constant_has_an_axis_of_its_own_size(broken_job: Path) -> None:
    rates = pd.Series([0.01] * 3, index=range(3), name="lr")

    drawn = plots.scalar_heatmap(open_run(broken_job), training=rates).values()[1]

    options = hv.Store.lookup_options("matplotlib", drawn, "plot").kwargs
    assert options["ylim"] == pytest.approx((0.005, 0.015))


def test_training_statistics_stand_below_over_the_same_steps(broken_job: Path) -> None:
    run = open_run(broken_job)
    losses = pd.Series([3.0, 2.0, np.inf], index=[0, 10, 20], name="validation")

    own = plots.scalar_heatmap(run, training="loss")
    given = plots.exponent_histogram(run, site=OTHER, step=20, training=losses)

    assert titles(own)[1] == "loss"
    assert len(parts(own.values()[1], hv.Curve)) == 4
    assert titles(given)[1] == "validation"
    assert parts(given.values()[1], hv.VLine)[0].data == 20
    assert labelled(given.values()[1], "non-finite").dimension_values(0).tolist() == [20]
    with pytest.raises(SettingError, match="no training statistic 'lss'; there are: loss"):
        plots.scalar_lines(run, site=OTHER, training="lss")


# Formats.


@dataclass
class TrainingStats:
    """As Track & Visualize defines it."""

    steps: list[int]
    train_loss: list[float | None]
    val_loss: list[float | None] | None = None


def test_training_statistics_of_track_and_visualize_are_taken_as_they_are(
    frame: pd.DataFrame,
) -> None:
    told = TrainingStats([0, 10, 20], [3.0, 2.0, 1.0], [3.5, None, 1.5])

    drawn = plots.scalar_lines(frame, "rms", site=OTHER, training=told)

    assert titles(drawn)[1:] == ["train_loss", "val_loss"]
    [line] = parts(list(drawn)[2], hv.Curve)
    assert line.dimension_values(0).tolist() == [0, 20]
    assert list(plots.explore(frame, training=told).training.source.data["step"]) == [0, 10, 20]
    with pytest.raises(SettingError, match="train_loss has 3 numbers for 2 steps"):
        plots.scalar_lines(frame, site=OTHER, training=TrainingStats([0, 1], [1.0, 2.0, 3.0]))
    with pytest.raises(SettingError, match="or a TrainingStats of tandv, got list"):
        plots.scalar_lines(frame, site=OTHER, training=[1.0])  # type: ignore[arg-type]


def test_the_table_of_formats_is_that_of_the_run(broken_job: Path) -> None:
    run = open_run(broken_job)

    table = plots.format_table(
        run, kind="activation", name="mlp", steps=20, formats="float8_e4m3fn"
    ).dframe()

    for row in table.to_dict("records"):
        wanted = run.formats(site=row["site"], step=20, formats=["float8_e4m3fn"]).iloc[0]
        assert row["underflow_low"] <= wanted["underflow_high"]
        assert row["underflow_high"] >= wanted["underflow_low"]
    assert len(table) == 8


def test_tensors_of_every_kind_are_judged(broken_job: Path) -> None:
    run = open_run(broken_job)

    table = plots.format_table(run, steps=20, formats="float8_e4m3fn").dframe()

    assert sorted(table["site"]) == sorted(run.sites().index)


def test_only_what_breaks_is_listed_where_that_is_asked(broken_job: Path) -> None:
    table = plots.format_table(
        open_run(broken_job), formats=["float16", "float4_e2m1fn"], broken=True
    ).dframe()

    assert set(table["verdict"]) <= {"breaks", "may break"}
    assert set(table["format"]) >= {"float4_e2m1fn"}


# LogFrames.


def test_a_logframe_gives_the_same_pictures_as_its_run(
    broken_job: Path, frame: pd.DataFrame
) -> None:
    run = open_run(broken_job)

    for draw in (plots.scalar_heatmap, lambda data: plots.exponent_heatmap(data, site=OTHER)):
        mine, theirs = (parts(draw(data), hv.Image)[:2][-1] for data in (run, frame))
        np.testing.assert_allclose(mine.dimension_values(2), theirs.dimension_values(2), rtol=1e-6)
    mine, theirs = (plots.scalar_lines(data, "rms", site=OTHER) for data in (run, frame))
    np.testing.assert_allclose(
        parts(mine, hv.Curve)[0].dimension_values(1), parts(theirs, hv.Curve)[0].dimension_values(1)
    )


def bars_of(data: Any, site: str, step: int) -> dict[str, int]:
    [bars] = parts(plots.exponent_histogram(data, site=site, step=step), hv.Rectangles)
    return bars.dframe().set_index("what")["count"].to_dict()


def test_what_is_zero_nan_or_infinite_stands_apart_of_a_logframe_as_of_its_run(
    broken_job: Path, frame: pd.DataFrame
) -> None:
    run = open_run(broken_job)

    for site, step in ((ORIGIN, 45), (OTHER, 10)):
        drawn = bars_of(run, site, step)
        assert {"zero", "−∞", "+∞", "NaN"} <= drawn.keys()
        assert bars_of(frame, site, step) == drawn
    assert sum(bars_of(frame, ORIGIN, 45)[name] for name in ("−∞", "+∞", "NaN")) > 0
    mine, theirs = (
        parts(plots.exponent_heatmap(data, site=ORIGIN), hv.Image) for data in (run, frame)
    )
    for own, other in zip(mine, theirs, strict=True):
        assert np.array_equal(own.dimension_values(2), other.dimension_values(2), equal_nan=True)


def test_a_row_whose_zeros_nobody_counted_has_no_bar_of_them(frame: pd.DataFrame) -> None:
    told = frame.copy()
    told["scalar_stats", "zero"] = np.nan

    assert "zero" not in bars_of(told, ORIGIN, 45)
    assert bars_of(told, ORIGIN, 45)["+∞"] == bars_of(frame, ORIGIN, 45)["+∞"]


def test_the_weight_of_a_module_is_called_so_though_its_logframe_leaves_it_out(
    frame: pd.DataFrame,
) -> None:
    weights = frame.copy()
    weights["metadata", "tensor_type"] = "Weights"
    both = pd.concat([frame, weights], ignore_index=True)
    both.attrs = frame.attrs

    drawn = plots.scalar_lines(both, kind="weight", name="norm1", facet="")

    named = {part.label for part in parts(drawn, hv.Curve)}
    assert "weight:blocks.0.norm1.weight" in named
    # Where the log has no such module it may be a parameter's own name.
    alone = plots.scalar_lines(weights, kind="weight", name="0.norm1", facet="")
    assert titles(alone) == ["weight:blocks.0.norm1"]


def test_names_are_no_markup_in_either_backend(frame: pd.DataFrame, tmp_path: Path) -> None:
    odd = frame.copy()
    odd["metadata", "name"] = odd["metadata", "name"] + r"$\frac$$$x$${a}{0}"
    name = rf"{OTHER}$\frac$$$x$${{a}}{{0}}"

    for number, plot in enumerate((
        plots.exponent_histogram(odd, site=name, step=10),
        plots.exponent_heatmap(odd, site=name),
        plots.scalar_lines(odd, "rms", site=[name, name.replace("norm1", "norm2")], facet=""),
        plots.scalar_heatmap(odd),
    )):  # fmt: skip
        plots.save(plot, tmp_path / f"{number}.svg")  # Matplotlib raises where it sets a formula
        plots.save(plot, tmp_path / f"{number}.html")
        assert (tmp_path / f"{number}.svg").stat().st_size > 0


def test_a_logframe_says_nothing_of_what_it_does_not_hold(frame: pd.DataFrame) -> None:
    counts = [("scalar_stats", name) for name in ("zero", "nan", "pos_inf", "neg_inf")]
    assert not {"zero", "NaN", "+∞"} & bars_of(frame.drop(columns=counts), ORIGIN, 45).keys()
    with pytest.raises(SettingError, match="knows of no ranks"):
        plots.scalar_lines(frame, site=OTHER, ranks=True)
    with pytest.raises(SettingError, match="knows of no ranks"):
        plots.scalar_heatmap(frame, view="max")
    with pytest.raises(SettingError, match="has no statistic 'l1'; there are mean, std"):
        plots.scalar_lines(frame, "l1", site=OTHER)
    with pytest.raises(SettingError, match="no LogFrame: it has no columns scalar_stats"):
        plots.scalar_lines(frame.drop(columns="scalar_stats", level=0), site=OTHER)
    with pytest.raises(SettingError, match="got list"):
        plots.scalar_heatmap([])  # type: ignore[arg-type]


def not_finite(data: Any, statistic: str) -> np.ndarray:
    shown = plots.explore(data, statistic=statistic).heatmap.grid
    assert shown is not None
    return shown.state == NONFINITE


def test_what_is_not_finite_is_marked_in_a_logframe_as_in_its_run(
    broken_job: Path, frame: pd.DataFrame
) -> None:
    in_run = not_finite(open_run(broken_job), "abs_max")

    assert in_run.any()
    assert np.array_equal(not_finite(frame, "max_abs"), in_run)
    assert np.array_equal(not_finite(frame, "mean"), in_run)


def test_an_overflow_in_a_log_is_no_infinity_of_the_tensor(frame: pd.DataFrame) -> None:
    told = frame.drop(columns=[("scalar_stats", one) for one in ("nan", "pos_inf", "neg_inf")])
    told["scalar_stats", "rm2"] = np.inf
    told["scalar_stats", "mean"] = np.nan
    of = told["metadata", "tensor_type"].eq("Activation") & told["metadata", "step"].isin([5, 6])
    told.loc[of, ("scalar_stats", "max_abs")] = [np.inf, np.nan] * (of.sum() // 2)

    assert np.flatnonzero(np.all(not_finite(told, "rm2"), axis=0)).tolist() == [5, 6]
    assert not_finite(told.drop(columns=[("scalar_stats", "max_abs")]), "rm2").all()


def test_elements_of_an_output_keep_the_name_of_their_module(frame: pd.DataFrame) -> None:
    told = frame.copy()
    named = told["metadata", "name"].eq("blocks.0.norm1")
    told.loc[named, ("metadata", "name")] = "blocks.0.norm1[1]#2"
    foreign = told.copy()
    foreign.attrs = {}

    drawn = plots.scalar_lines(told, "rms", name=r"^blocks\.0\.norm1$")

    assert titles(drawn) == [f"{OTHER}[1]#2"]
    with pytest.raises(SettingError, match=r"matches '\^blocks"):
        plots.scalar_lines(foreign, "rms", kind="activation", name=r"^blocks\.0\.norm1$")


def test_calls_of_one_module_are_told_apart_in_a_logframe(frame: pd.DataFrame) -> None:
    twice = pd.concat([frame, frame], ignore_index=True)

    drawn = plots.scalar_lines(twice, site=[OTHER, f"{OTHER}#1"], facet="")

    assert len(parts(drawn, hv.Curve)) == 2


@given(
    st.lists(st.floats(-30, 30), min_size=1, max_size=40),
    st.integers(-20, 0),
    st.integers(1, 12),
    st.integers(-8, 8),
)
def test_shares_of_an_open_histogram_hold_the_truth(
    exponents: list[float], low: int, width: int, shift: int
) -> None:
    x = np.exp2(np.array(exponents)).astype(np.float32)
    bins = np.arange(low, low + width)
    at = np.floor(np.log2(x.astype(np.float64))).astype(int)
    counts = np.array([[(at == e).sum() for e in bins]], np.int64)
    beyond = np.array([[(at < low).sum()], [(at >= low + width).sum()]], np.int64)
    names = ["float8_e4m3fn", "float16", "float4_e2m1fn"]

    found = shares(bins.astype(np.int64), counts, beyond, names, shift)

    scaled = x.astype(np.float64) * 2.0**shift
    for row, name in enumerate(names):
        target = number_format(name)
        truth = (
            (scaled >= target.overflow_threshold).mean(),
            (scaled <= target.flush_threshold).mean(),
            (scaled < target.smallest_normal).mean(),
        )
        for question, share in enumerate(truth):
            value, least, most = found[row, question, :, 0]
            assert least - 1e-12 <= share <= most + 1e-12
            assert least <= value <= most


def test_a_whole_histogram_leaves_no_more_open_than_its_sketch() -> None:
    table = sketch_array(np.array([0.001, 0.3, 5.0, 600.0], np.float32))

    [[over, *_]] = shares(
        np.arange(-149, 128), table.histogram, np.zeros((2, 1), np.int64), ["float8_e4m3fn"]
    )

    assert over[:, 0].tolist() == [0.25, 0.25, 0.25]


# Files.


def test_any_plot_is_saved_as_html_png_and_svg(broken_job: Path, tmp_path: Path) -> None:
    run = open_run(broken_job)
    drawn = {
        "histogram": plots.exponent_histogram(run, name=r"2\.mlp", step=45, training="loss"),
        "life": plots.exponent_heatmap(run, site=ORIGIN),
        "heatmap": plots.scalar_heatmap(run, training="loss"),
        "lines": plots.scalar_lines(run, ["rms", "abs_max"], site=ORIGIN, style="both"),
        "ranks": plots.rank_heatmap(run, "abs_max", site=ORIGIN),
        "table": plots.format_table(run, name="mlp"),
    }

    for name, plot in drawn.items():
        for ending, start in (("html", b"<!doctype"), ("png", b"\x89PNG"), ("svg", b"<?xml")):
            saved = plots.save(plot, tmp_path / f"{name}.{ending}")
            assert saved.read_bytes().startswith(start)


def test_a_table_is_whole_in_a_picture_or_none_is_made(broken_job: Path, tmp_path: Path) -> None:
    run = open_run(broken_job)
    table = plots.format_table(run, kind="activation", formats="e4m3")

    drawn = hv.renderer("matplotlib").get_plot(table).handles["artist"]

    texts = [cell.get_text().get_text() for _, cell in sorted(drawn.get_celld().items())]
    assert len(texts) == (len(table) + 1) * len(table.dimensions())
    assert set(table.dframe()["site"]) <= set(texts)
    with pytest.raises(SettingError, match=r"has at most 99 rows, got \d+: choose"):
        plots.save(plots.format_table(run), tmp_path / "all.png")


def test_a_legend_lies_on_nothing_that_is_drawn(broken_job: Path) -> None:
    drawn = plots.exponent_histogram(
        open_run(broken_job), site=OTHER, step=20, formats=["float16", "float8_e4m3fn"]
    )

    figure = hv.render(drawn, backend="matplotlib")

    figure.canvas.draw()
    [axes] = figure.axes
    legend, place = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert legend.y0 >= place.y1
    assert axes.title.get_window_extent().y0 >= legend.y1


def extent(axes: Any) -> Any:
    return axes.get_window_extent()


def test_a_colour_bar_lies_beside_what_is_drawn(broken_job: Path, frame: pd.DataFrame) -> None:
    run = open_run(broken_job)
    for drawn in (
        plots.scalar_heatmap(run),
        plots.scalar_heatmap(frame),
        plots.exponent_heatmap(run, site=ORIGIN),
        plots.rank_heatmap(run, site=ORIGIN),
        plots.scalar_heatmap(run, training="loss"),
    ):
        figure = hv.render(drawn, backend="matplotlib")

        figure.canvas.draw()
        axes, bar = figure.axes[0], figure.axes[-1]
        assert extent(bar).x0 > extent(axes).x1
        assert (extent(bar).y0, extent(bar).y1) == (extent(axes).y0, extent(axes).y1)


def test_in_a_picture_a_step_is_at_one_place_above_and_below(broken_job: Path) -> None:
    run = open_run(broken_job)
    for drawn in (
        plots.scalar_heatmap(run, training="loss"),
        plots.exponent_heatmap(run, site=ORIGIN, training="loss"),
        plots.rank_heatmap(run, site=ORIGIN, training="loss"),
    ):
        figure = hv.render(drawn, backend="matplotlib")

        figure.canvas.draw()
        above, below = figure.axes[:2]
        ends = [axes.transData.transform([(0, 0), (39, 0)])[:, 0] for axes in (above, below)]
        np.testing.assert_allclose(*ends)
        assert extent(above).y0 - extent(below).y1 < extent(above).height / 2, "no blank between"


def test_what_is_no_plot_is_not_saved(broken_job: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"`save` takes a plot, .* got Explorer\. .* report`"):
        plots.save(plots.explore(open_run(broken_job)), tmp_path / "panel.html")


def test_a_file_of_another_kind_is_refused(broken_job: Path, tmp_path: Path) -> None:
    drawn = plots.scalar_heatmap(open_run(broken_job))

    with pytest.raises(SettingError, match=r"one of \.html, \.png, \.svg, \.pdf; got 'a\.gif'"):
        plots.save(drawn, tmp_path / "a.gif")


@pytest.mark.parametrize("ending", ["html", "png"])
def test_where_a_plot_cannot_be_saved_is_said(
    broken_job: Path, tmp_path: Path, ending: str
) -> None:
    drawn = plots.scalar_lines(open_run(broken_job), site=OTHER)
    with pytest.raises(SettingError, match=f"none/a.{ending} cannot be written: there is no folde"):
        plots.save(drawn, tmp_path / "none" / f"a.{ending}")


def test_without_matplotlib_only_pictures_are_missing(broken_job: Path, tmp_path: Path) -> None:
    script = f"""
import sys
sys.modules["matplotlib"] = None
from rankscope.sketch import SettingError
from rankscope.store import open_run
from rankscope.viewer import plots
drawn = plots.scalar_heatmap(open_run({str(broken_job)!r}))
plots.save(drawn, {str(tmp_path / "a.html")!r})
try:
    plots.save(drawn, {str(tmp_path / "a.png")!r})
except SettingError as error:
    print(error)
"""
    said = subprocess.check_output([sys.executable, "-c", script], text=True, cwd=tmp_path)

    assert "pip install 'rankscope[notebook]', or save as .html" in said


def test_a_saved_page_opens_offline(broken_job: Path, tmp_path: Path, browser: Browser) -> None:
    run = open_run(broken_job)
    saved = [
        plots.save(plots.scalar_heatmap(run, training="loss"), tmp_path / "a.html"),
        plots.save(plots.format_table(run, name="mlp"), tmp_path / "b.html"),
    ]
    page = browser.new_page()
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)

    for path in saved:
        page.goto(path.as_uri())
        page.wait_for_function("() => Bokeh.documents.length && Bokeh.documents[0].is_idle")

    page.close()
    assert [url for url in asked if not url.startswith("data:")] == [p.as_uri() for p in saved]
    assert errors == []


# Ranks.


def test_ranks_are_rows_and_the_bad_one_stands_out(broken_job: Path) -> None:
    run = open_run(broken_job)
    wanted = run.rank_ratios("abs_max", site=ORIGIN)

    drawn = plots.rank_heatmap(run, "abs_max", site=ORIGIN)

    shades = parts(drawn, hv.Image)[1]
    np.testing.assert_array_equal(
        shades.dimension_values(2, flat=False)[:, :39], wanted.values[::-1][:, :39]
    )
    low, high = shades.vdims[0].range
    assert low == -high


def test_ranks_that_are_alike_look_alike(new_job: Callable[..., Any]) -> None:
    job = new_job(bad_step=None)
    job.commit(range(5))

    drawn = plots.rank_heatmap(open_run(job.path), site=OTHER)

    shades = parts(drawn, hv.Image)[1]
    assert shades.vdims[0].range == (-0.5, 0.5), "1.4 times, as on the page"


def test_a_logframe_has_no_ranks_to_draw(frame: pd.DataFrame) -> None:
    with pytest.raises(SettingError, match="knows of no ranks"):
        plots.rank_heatmap(frame, site=ORIGIN)


def test_a_run_of_one_rank_has_nothing_to_compare(new_job: Callable[..., Any]) -> None:
    job = new_job(ranks=1, bad_step=None)
    job.commit(range(3))

    with pytest.raises(SettingError, match=f"No rank holds the same part of {OTHER} as another, "):
        plots.rank_heatmap(open_run(job.path), site=OTHER)


# Looking around.


def test_a_click_leads_to_a_tensor_the_loss_to_a_step_and_back(broken_job: Path) -> None:
    seen = plots.explore(open_run(broken_job))
    row = seen.heatmap.grid.row(ORIGIN) if seen.heatmap.grid else None
    assert row is not None

    seen.select_cell(row, 45)
    assert (seen.site, seen.step) == (ORIGIN, 45)
    assert seen.of_ranks.visible
    assert list(seen.exponents.aside.data["name"]) == ["zero", "−∞", "+∞", "NaN"]
    seen.select_step(12.3)
    assert (seen.site, seen.step) == (ORIGIN, 12)
    seen.back()
    assert (seen.site, seen.step) == (ORIGIN, 45)
    seen.back()
    assert (seen.site, seen.step) == ("", None)
    assert seen.undo.disabled


def test_a_tensor_that_is_not_there_is_not_selected(broken_job: Path) -> None:
    seen = plots.explore(open_run(broken_job))

    with pytest.raises(SettingError, match=rf"There is no site '{ORIGIN}x'; near are .*{ORIGIN}"):
        seen.select(f"{ORIGIN}x", 45)
    assert (seen.site, seen.step) == ("", None)


def test_the_panel_is_dark_where_panel_is_or_as_it_is_told(broken_job: Path) -> None:
    run = open_run(broken_job)
    with pn.config.set(theme="dark"):
        panels = {"dark": plots.explore(run), "light": plots.explore(run, theme="light")}
    panels |= {"by itself": plots.explore(run)}

    for name, seen in panels.items():
        theme = colours.DARK if name == "dark" else colours.LIGHT
        figures = seen.heatmap, seen.training, seen.ranks, seen.exponents
        assert {one.figure.background_fill_color for one in figures} == {theme.surface}
        texts = seen.told, seen.title, seen.kind, seen.undo
        assert all(f"--ink: {theme.ink};" in one.stylesheets[0] for one in texts)
        assert seen.heatmap.mapper.palette == theme.ramp
    with pytest.raises(SettingError, match="`theme` must be one of light, dark, got 'blue'"):
        plots.explore(run, theme="blue")


def test_a_logframe_can_be_explored(frame: pd.DataFrame) -> None:
    losses = pd.Series(np.linspace(3, 1, 60), index=range(60), name="loss")
    seen = plots.explore(frame, training=losses)

    seen.select_cell(0, 10)

    assert (seen.site, seen.step) == (OTHER, 10)
    assert list(seen.exponents.aside.data["name"]) == ["zero", "−∞", "+∞", "NaN"]
    assert "float8_e4m3fn" in seen.told.object
    assert {"rms", "mean", "abs_max", "skewness"} <= set(seen.statistic.options)
    seen.statistic.value = "abs_max"
    assert list(seen.heatmap.layout.data["statistic"]) == ["abs_max"]


PIXEL = """([name, x, y]) => {
  const view = [...Bokeh.index.query((view) => view.model.name === name)][0];
  const box = view.el.getBoundingClientRect();
  return [box.left + view.frame.x_scale.compute(x), box.top + view.frame.y_scale.compute(y)];
}"""
READY = """() => window.Bokeh !== undefined && Bokeh.documents.length > 0
  && Bokeh.documents[0].is_idle
  && [...Bokeh.index.query((view) => view.model.name === "heatmap")].length > 0"""


def test_the_panel_answers_to_a_real_mouse(broken_job: Path, browser: Browser) -> None:
    run = open_run(broken_job)
    made: list[plots.Explorer] = []

    def new() -> plots.Explorer:
        made.append(plots.explore(run))
        return made[-1]

    loops: Queue[Any] = Queue()

    def serve() -> None:
        server = pn.io.server.get_server({"/": new}, port=0, start=False, show=False)
        server.start()
        loops.put(server)
        server.io_loop.start()

    thread = threading.Thread(target=serve)
    thread.start()
    server = loops.get(timeout=20)
    page = browser.new_page(viewport={"width": 1366, "height": 768})
    try:
        page.goto(f"http://localhost:{server.port}/")
        page.wait_for_function(READY, timeout=60_000)
        cells = made[-1].heatmap.grid
        assert cells is not None
        row = cells.row(ORIGIN)
        assert row is not None
        page.mouse.click(*page.evaluate(PIXEL, ["heatmap", 45, row + 0.5]))
        page.get_by_text("activation · step 45").first.wait_for(timeout=60_000)
        page.mouse.click(*page.evaluate(PIXEL, ["training", 12, 4.0]))
        page.get_by_text("activation · step 12").first.wait_for(timeout=60_000)
        page.get_by_role("button", name="Back").click()
        page.get_by_text("activation · step 45").first.wait_for(timeout=60_000)
    finally:
        page.close()
        server.io_loop.add_callback(server.stop)
        server.io_loop.add_callback(server.io_loop.stop)
        thread.join(timeout=10)
    assert (made[-1].site, made[-1].step) == (ORIGIN, 45)


# What pictures look like.


def test_a_run_of_one_step_has_its_point_inside_of_the_axes(
    new_job: Callable[..., Any], tmp_path: Path
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(1))
    run = open_run(job.path)

    drawn = plots.scalar_lines(run, "rms", site=OTHER, training="loss")

    for one in drawn:
        assert parts(one, hv.Scatter)
        assert hv.Store.lookup_options("bokeh", one, "plot").kwargs["xlim"] == (-0.5, 0.5)
    plots.save(drawn, tmp_path / "one.png")


def test_each_state_of_the_optimizer_has_a_picture_and_a_scale_of_its_own(tmp_path: Path) -> None:
    value = np.linspace(1, 2, 64, dtype=np.float32)
    frame = build([
        (step, f"layers.{layer}", f"Optimiser_State.{state}", value * size)
        for step in range(3)
        for layer in range(4)
        for state, size in (("exp_avg", 2.0**-6), ("exp_avg_sq", 2.0**-30))
    ])  # fmt: skip
    import_logframe(frame, tmp_path / "run", run="run")

    for data in (frame, open_run(tmp_path / "run")):
        drawn = plots.scalar_heatmap(data, "rms", kind="optimizer_state")
        assert titles(drawn) == [
            f"rms of optimizer states {state}, merged over ranks"
            for state in ("exp_avg", "exp_avg_sq")
        ]
        ranges = [parts(one, hv.Image)[-1].vdims[0].range for one in drawn]
        assert ranges[1][1] < -28 < -7 < ranges[0][0]


def test_where_nothing_is_finite_no_scale_of_colours_is_drawn(
    new_job: Callable[..., Any], tmp_path: Path
) -> None:
    job = new_job(bad_step=None)
    job.commit(range(3), spike={(step, OTHER): np.nan for step in range(3)})

    drawn = plots.scalar_heatmap(open_run(job.path), "rms", name=f"^{OTHER.partition(':')[2]}$")

    [shades] = [one for one in parts(drawn, hv.Image) if "log2" in one.vdims[0].name]
    assert hv.Store.lookup_options("bokeh", shades, "plot").kwargs["colorbar"] is False
    plots.save(drawn, tmp_path / "nothing.png")  # without a warning


def test_a_run_of_which_nothing_is_finite_is_named_in_the_legend_of_histograms(
    new_job: Callable[..., Any],
) -> None:
    good, bad = (new_job(name, bad_step=None) for name in ("good", "bad"))
    good.commit(range(2))
    bad.commit(range(2), spike={(1, OTHER): np.nan})
    runs = {"good": open_run(good.path), "bad": open_run(bad.path)}

    drawn = plots.exponent_histogram(runs, site=OTHER, step=1)

    legend = hv.render(drawn, backend="matplotlib").axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()][:2] == ["good", "bad"]


def frames_of(plot: Any) -> list[Any]:
    """The axes of a plot as Matplotlib draws them, those of colour bars left out."""
    figure = hv.render(look.arranged(plot), backend="matplotlib")
    figure.draw_without_rendering()
    return [one for one in figure.axes if one.get_title()]


def test_a_frame_on_a_logarithmic_axis_is_as_high_as_on_another(broken_job: Path) -> None:
    run, shapes = open_run(broken_job), list[float]()
    for scale in ("linear", "log2"):
        [frame] = frames_of(plots.scalar_lines(run, "rms", site=OTHER, scale=scale))
        box = frame.get_window_extent()
        shapes.append(box.width / box.height)

    assert shapes == pytest.approx([look.WIDTH / look.HEIGHT] * 2, rel=0.01)


@pytest.mark.parametrize("by_hand", [False, True])
def test_titles_and_legends_leave_the_plots_above_them_alone(
    by_hand: bool, broken_job: Path
) -> None:
    run, names = open_run(broken_job), ("rms", "abs_max")
    sites = [ORIGIN, OTHER, "activation:blocks.0.mlp.up", "activation:blocks.1.mlp.up"]
    lines = plots.scalar_lines(run, names, site=sites, facet="statistic", columns=1)
    drawn = plots.scalar_heatmap(run, "rms") + lines[0] if by_hand else lines

    upper, lower = frames_of(drawn.cols(1) if by_hand else drawn)

    bottom = upper.xaxis.label.get_window_extent().y0
    assert lower.title.get_window_extent().y1 < bottom
    assert lower.get_legend().get_window_extent().y1 < bottom
