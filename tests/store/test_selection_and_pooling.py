"""The pure parts: which records, which sites, where they lie, and what pooling may not lose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from rankscope.sketch import SettingError
from rankscope.store import SiteInfo
from rankscope.store.chunks import overlaps
from rankscope.store.layout import COLUMNS, RING
from rankscope.store.pooling import Pool, group_size, pool_sites, pool_steps, row_starts
from rankscope.store.selection import (
    FINAL,
    choose_records,
    choose_sites,
    choose_step,
    stretches,
)
from rankscope.store.tiers import Bounds, pieces

SITES = [
    SiteInfo(kind="weight", name="layers.0.up.weight", order=7),
    SiteInfo(kind="activation", name="layers.0.up", order=1),
    SiteInfo(kind="activation", name="layers.0.down", order=2),
]


def facts(*step_and_attempt: tuple[int, int]) -> NDArray[np.int64]:
    rows = np.zeros((len(step_and_attempt), len(COLUMNS)), np.int64)
    rows[:, :2] = np.reshape(step_and_attempt, (-1, 2))
    return rows


def test_the_last_attempt_of_each_step_counts() -> None:
    rows = facts((0, 0), (1, 0), (2, 0), (3, 0), (1, 1), (2, 1))

    chosen = choose_records(rows)

    assert chosen.steps.tolist() == [0, 1, 2, 3]
    assert chosen.records.tolist() == [0, 4, 5, 3]
    assert chosen.attempts.tolist() == [0, 1, 1, 0]


def test_a_final_record_hides_no_full_one_of_an_earlier_attempt() -> None:
    rows = facts((0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (4, 1))
    rows[4:, FINAL] = 1

    assert choose_records(rows).records.tolist() == [3, 1, 2, 5]
    assert choose_records(rows, attempt=1).records.tolist() == [3, 4, 5]
    assert choose_step(rows, 1) == 1


def test_an_older_attempt_can_be_asked_for() -> None:
    rows = facts((0, 0), (1, 0), (1, 1))

    assert choose_records(rows, attempt=0).records.tolist() == [0, 1]
    with pytest.raises(SettingError, match="There is no record of attempt 5; there are 0, 1"):
        choose_records(rows, attempt=5)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (None, [0, 10, 20, 30]),
        (slice(10, 20), [10, 20]),
        ((11, None), [20, 30]),
        ((None, 10), [0, 10]),
        (20, [20]),
        ((31, 99), []),
    ],
)
def test_both_ends_of_steps_are_included(steps: object, expected: list[int]) -> None:
    rows = facts((0, 0), (10, 0), (20, 0), (30, 0))

    assert choose_records(rows, steps=steps).steps.tolist() == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", ["3", (1, 2, 3), slice(0, 9, 2)])
def test_steps_that_cannot_be_understood_are_refused(steps: object) -> None:
    with pytest.raises(SettingError, match="`steps` must be a step, "):
        choose_records(facts((0, 0)), steps=steps)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [(40, 30), slice(40, 30)])
def test_a_range_that_ends_before_it_begins_is_refused(steps: tuple[int, int] | slice) -> None:
    with pytest.raises(SettingError, match="`steps` must not end before it begins, got 40 to 30"):
        choose_records(facts((0, 0)), steps=steps)


def test_a_step_that_was_not_recorded_names_its_neighbours() -> None:
    rows = facts((0, 0), (10, 0), (20, 0))

    assert choose_step(rows, 10) == 1
    with pytest.raises(SettingError, match=r"Step 12 was not recorded; .* are 10 and 20\."):
        choose_step(rows, 12)
    with pytest.raises(SettingError, match="nothing is recorded yet"):
        choose_step(facts(), 0)


def test_sites_come_in_the_order_of_execution() -> None:
    assert choose_sites(SITES).tolist() == [1, 2, 0]
    assert choose_sites(SITES, kind="activation", name=r"\.down$").tolist() == [2]
    assert choose_sites(
        SITES, sites=["weight:layers.0.up.weight", "activation:layers.0.up"]
    ).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"kind": "wieght"}, "No site is of kind wieght; there are activation, weight"),
        ({"name": "layer.0.down"}, "No site's name matches 'layer.0.down'; near are layers.0.down"),
        ({"name": "zzz"}, "matches 'zzz'; there are layers.0.down, layers.0.up"),
        ({"name": ["up", "down"]}, r"`name` is one regular expression, as 'up|down', got \['up'"),
        ({"name": "("}, r"`name` must be a regular expression, got '\('"),
        ({"sites": "activation:layers.0.upp"}, "near are activation:layers.0.up"),
    ],
)
def test_a_choice_that_finds_nothing_names_what_is_near(
    choice: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        choose_sites(SITES, **choice)


@given(st.lists(st.integers(0, 3000), unique=True).map(sorted))
def test_stretches_cover_each_place_once(places: list[int]) -> None:
    given_places = np.array(places, np.int64)

    covered = [
        place
        for part, span in stretches(given_places)
        for place in given_places[part].tolist()
        if span.start <= place < span.stop
    ]

    assert covered == places


@given(st.data())
def test_every_record_lies_in_one_slot(data: st.DataObject) -> None:
    history = data.draw(st.integers(0, 2000))
    recent = history + data.draw(st.integers(0, RING["recent"]))
    records = recent + data.draw(st.integers(0, RING["tail"]))
    first = data.draw(st.integers(0, records))
    stop = data.draw(st.integers(first, records))

    found = list(pieces(Bounds(history=history, recent=recent, records=records), first, stop))

    slots = [(p.tier, slot) for p in found for slot in range(p.slots.start, p.slots.stop)]
    assert len(set(slots)) == len(slots) == stop - first
    assert [p.first for p in found] == sorted(p.first for p in found)


@given(st.data())
def test_overlaps_tile_a_region(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    chunks = tuple(data.draw(st.integers(1, 4)) for _ in shape)
    region = tuple(
        slice(start := data.draw(st.integers(0, length)), data.draw(st.integers(start, length)))
        for length in shape
    )
    hits = np.zeros([where.stop - where.start for where in region], int)

    for part in overlaps(region, shape, chunks):
        hits[part.outside] += 1
        size = [where.stop - where.start for where in part.inside]
        begins = [place * size for place, size in zip(part.chunk, chunks, strict=True)]
        within = [min(c, s - b) for c, s, b in zip(chunks, shape, begins, strict=True)]
        assert part.whole == (size == within) or 0 in hits.shape

    assert (hits == 1).all()


numbers = arrays(
    np.float32,
    st.tuples(st.integers(1, 30), st.integers(1, 20)),
    elements=st.one_of(st.just(np.nan), st.floats(-100, 100, width=16)),
)


def pool_cells(
    values: NDArray[np.float32], size: int, starts: NDArray[np.int64], pool: Pool
) -> NDArray[np.float32]:
    """float32 [rows, columns] of [steps, sites], in two parts, as a long heatmap is pooled."""
    columns = np.arange(len(values)) // size
    pooled = np.full((columns[-1] + 1, values.shape[1]), np.nan, np.float32)
    half = len(values) // 2
    for some in (slice(None, half), slice(half, None)):
        pool_steps(values[some], columns[some], pooled, pool)
    return pool_sites(pooled, starts, pool)


def uneven(sites: int, length: int) -> list[int]:
    """Lengths of rows: 1, 2, … up to the given one, and so on, of all sites together."""
    lengths, left = list[int](), sites
    while left:
        lengths.append(min(len(lengths) % length + 1, left))
        left -= lengths[-1]
    return lengths


@given(
    numbers,
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 5),
    st.sampled_from(["max", "min"]),
)
def test_pooling_keeps_the_worst_of_each_cell(
    values: NDArray[np.float32], width: int, height: int, length: int, pool: Pool
) -> None:
    steps, sites = values.shape
    size, starts = group_size(steps, width), row_starts(uneven(sites, length), height)

    pooled = pool_cells(values, size, starts, pool)

    assert pooled.shape == (len(starts), -(-steps // size))
    assert pooled.shape[0] <= height
    assert pooled.shape[1] <= width
    for row, first in enumerate(starts):
        some = slice(first, starts[row + 1] if row + 1 < len(starts) else sites)
        for column in range(pooled.shape[1]):
            cell = values[column * size : (column + 1) * size, some]
            known = cell[~np.isnan(cell)]
            worst = np.nan if not len(known) else known.max() if pool == "max" else known.min()
            assert np.array_equal(pooled[row, column], worst, equal_nan=True)


@given(st.integers(1, 500), st.integers(1, 60), st.integers(1, 50), st.integers(1, 20), st.data())
def test_one_spike_in_one_step_is_never_lost(
    steps: int, sites: int, width: int, height: int, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, steps - 1)), data.draw(st.integers(0, sites - 1))
    values = np.ones((steps, sites), np.float32)
    values[at] = 1e30
    size = group_size(steps, width)
    starts = row_starts(uneven(sites, data.draw(st.integers(1, 9))), height)
    pooled = pool_cells(values, size, starts, "max")

    row = int(np.searchsorted(starts, at[1], "right")) - 1
    assert pooled[row, at[0] // size] == np.float32(1e30)
    assert (pooled > 1).sum() == 1
