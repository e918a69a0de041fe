"""The heatmap as data: nothing that matters is lost on the way to the pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.store import open_run
from rankscope.viewer import columns, grid
from rankscope.viewer.figures import colours


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60, unique=True).map(sorted))
def test_each_recorded_step_has_its_column(steps: list[int]) -> None:
    recorded = np.array(steps, np.int64)
    left, stride, held = columns.lay_out(recorded, recorded, 200)

    holding = held if held is not None else [np.array([i]) for i in range(len(steps))]
    for index, step in enumerate(steps):
        column = int(np.floor((step - left) / stride))
        assert index in holding[column]


def test_a_gap_between_recorded_steps_stays_open() -> None:
    recorded = np.array([0, 1, 2, 3, 20, 21, 22], np.int64)

    _, _, held = columns.lay_out(recorded, recorded, 200)

    assert held is not None
    assert sum(len(span) == 0 for span in held) == 16


def test_a_regular_axis_is_left_as_it_is() -> None:
    first = np.array([0, 30, 60], np.int64)

    assert columns.lay_out(first, first + 20, 200) == (-5.0, 30.0, None)


def test_a_first_column_may_be_shorter_in_front() -> None:
    first = np.array([11, 30, 60, 90], np.int64)
    last = np.array([29, 59, 89, 101], np.int64)

    assert columns.lay_out(first, last, 200) == (-0.5, 30.0, None)


def test_all_steps_between_the_limits_are_asked_for_at_once() -> None:
    recorded = np.arange(0, 100, 10)

    assert columns.span_of(columns.between(recorded, (19.6, 60.2))) == slice(20, 60)
    assert columns.span_of(columns.between(recorded, (61.5, 63.5))) == columns.NO_STEP


def test_states_are_told_apart() -> None:
    values = np.array([[1.0, 0.0, np.nan, np.nan, 2.0]], np.float32)
    observed = np.array([[True, True, True, False, True]])
    nonfinite = np.array([[False, False, False, False, True]])

    found = grid.states(values, observed, nonfinite, True)

    expected = [grid.NUMBER, grid.ZERO, grid.UNDEFINED, grid.MISSING, grid.NONFINITE]
    assert found.tolist() == [expected]


def test_a_spike_and_a_nonfinite_cell_survive_pooling_of_columns() -> None:
    shade = np.zeros((3, 100), np.float32)
    state = np.full((3, 100), grid.NUMBER, np.uint8)
    shade[1, 57], state[2, 93] = 9.0, grid.NONFINITE
    held = [np.arange(i, i + 10) for i in range(0, 100, 10)]

    shades, states = columns.pool_columns(shade, state, held, "max")

    assert shades[1].tolist() == [0, 0, 0, 0, 0, 9, 0, 0, 0, 0]
    assert np.flatnonzero(states[2] == grid.NONFINITE).tolist() == [9]


def test_the_run_is_shaded_in_the_order_of_execution(broken_job: Path) -> None:
    run = open_run(broken_job)

    found = grid.load_grid(run, statistic="rms", kind="activation", width=700, height=400)

    assert found.shade.shape == (24, 60)
    assert found.names[:2] == ["blocks.0.norm1", "blocks.0.attn.qkv"]
    assert (found.left, found.stride) == (-0.5, 1.0)
    row = found.row("activation:blocks.2.mlp.act")
    assert row is not None
    assert found.state[row, 40] == grid.NONFINITE
    assert found.state[row, 39] == grid.NUMBER


def test_the_spike_is_seen_when_everything_is_pooled(broken_job: Path) -> None:
    run = open_run(broken_job)
    whole = run.scalar("rms", kind="activation")

    found = grid.load_grid(run, statistic="rms", kind="activation", width=7, height=5)

    assert found.shade.shape[0] <= 5
    assert found.shade.shape[1] <= 7
    assert np.nanmax(found.shade) == pytest.approx(np.log2(np.nanmax(whole.values)))
    assert (found.state == grid.NONFINITE).any()


def test_which_rank_is_largest_is_told_for_the_worst_of_each_cell(broken_job: Path) -> None:
    run = open_run(broken_job)

    found = grid.load_grid(
        run, statistic="abs_max", kind="activation", view="argmax", width=6, height=4
    )

    row = found.row("activation:blocks.2.mlp.act")
    column = found.column(39)
    assert row is not None
    assert column is not None
    assert found.shade[row, column] == 2


def test_of_a_pooled_cell_the_first_nonfinite_is_chosen(broken_job: Path) -> None:
    run = open_run(broken_job)
    sites = list(run.sites(kind="activation").index)

    found = grid.worst_of(run, sites=sites, first=30, last=59, statistic="rms", view="merged")

    assert found == ("activation:blocks.2.mlp.act", 40)


def test_of_a_pooled_cell_that_is_finite_the_extreme_is_chosen(broken_job: Path) -> None:
    run = open_run(broken_job)
    sites = list(run.sites(kind="activation").index)

    found = grid.worst_of(run, sites=sites, first=20, last=39, statistic="rms", view="merged")

    assert found == ("activation:blocks.2.mlp.act", 39)


def test_a_zoom_between_two_records_shows_all_sites_and_no_number(broken_job: Path) -> None:
    run = open_run(broken_job)

    found = grid.load_grid(
        run, statistic="rms", kind="activation", steps=(70.0, 80.0), width=700, height=400
    )

    assert len(found.names) == 24
    assert not np.isfinite(found.shade).any()


def test_colour_limits_stick_until_values_have_outgrown_them() -> None:
    old = colours.Limits(low=0.0, high=10.0)

    assert colours.stick(old, colours.Limits(low=2.0, high=10.5)) is old
    assert colours.stick(old, colours.Limits(low=2.0, high=12.0)) == colours.Limits(low=0, high=12)


def test_one_spike_does_not_wash_out_the_colours() -> None:
    values = np.append(np.linspace(0, 1, 999), 1e6)

    assert colours.limits(values).high < 2


@pytest.mark.parametrize(("odd", "reach"), [(0.25, (0.0, 0.25)), (0.0, (0.0, 1.0))])
def test_where_nearly_all_are_zero_the_ramp_begins_there(
    odd: float, reach: tuple[float, float]
) -> None:
    values = np.zeros(1000, np.float32)
    values[7] = odd

    found, signed = colours.limits(values), colours.limits(values, diverging=True)

    assert (found.low, found.high) == reach
    assert (signed.low, signed.high) == (-reach[1], reach[1])


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])


def lab(colour: str) -> np.ndarray:
    """CIELAB, in which a distance of 2 can just be seen side by side."""
    part = rgb(colour) / 255
    light = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = np.cbrt(np.maximum(to_xyz @ light / [0.9505, 1, 1.089], 0.0012))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", colours.THEMES.values(), ids=lambda theme: theme.name)
def test_no_ramp_comes_near_the_reserved_magenta(theme: colours.Theme) -> None:
    near = [np.linalg.norm(rgb(c) - rgb(theme.nonfinite)) for c in theme.ramp + theme.diverging]

    assert min(near) > 100


@pytest.mark.parametrize("theme", colours.THEMES.values(), ids=lambda theme: theme.name)
def test_what_is_no_number_looks_like_no_number_and_like_nothing_else(
    theme: colours.Theme,
) -> None:
    ramp = [lab(colour) for colour in theme.ramp]
    special = [lab(one) for one in (theme.nonfinite, theme.zero, theme.undefined, theme.missing)]

    apart = [np.linalg.norm(one - shade) for one in special[:3] for shade in ramp]
    assert min(apart) > 20
    among = [np.linalg.norm(a - b) for i, a in enumerate(special) for b in special[:i]]
    assert min(among) > 25


@pytest.mark.parametrize("theme", colours.THEMES.values(), ids=lambda theme: theme.name)
def test_texts_can_be_read_on_the_surface(theme: colours.Theme) -> None:
    def luminance(colour: str) -> float:
        return ((lab(colour)[0] + 16) / 116) ** 3

    ground = luminance(theme.surface)
    for ink in (theme.ink, theme.muted):
        low, high = sorted([ground, luminance(ink)])
        assert (high + 0.05) / (low + 0.05) >= 4.5
