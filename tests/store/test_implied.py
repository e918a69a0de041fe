"""What is not written because other numbers imply it comes back as it was, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rankscope.sketch import MAIN, SketchTable, main_statistics, sketch_array
from rankscope.sketch.table import COUNTS, MOMENTS
from rankscope.store import Record, RunWriter, SiteInfo, open_run
from rankscope.store.implied import TELLING, digits_of, moments_of

Make = Callable[..., Record]

ROWS = 3
TOLD = [MAIN.index(name) for name in TELLING]


@given(
    counts=hnp.arrays(np.int64, (ROWS, len(COUNTS)), elements=st.integers(0, 2**62)),
    moments=hnp.arrays(np.float64, (ROWS, len(MOMENTS))),
    told=hnp.arrays(np.float32, (ROWS, len(TELLING))),
)
def test_moments_come_back_whatever_the_statistics_say(
    counts: Any, moments: Any, told: Any
) -> None:
    with np.errstate(all="ignore"):
        digits = digits_of(counts, moments, told)
        found = moments_of(digits, counts, told)

    assert np.array_equal(found.view(np.uint64), moments.view(np.uint64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_statistics_tell_half_of_the_digits(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    tensors = [(rng.normal(0.1, 2.0**power, 1000)).astype(dtype) for power in range(-20, 20)]
    table = SketchTable.concatenate([sketch_array(one) for one in tensors])
    told = main_statistics(table).astype(np.float32)[:, TOLD]

    digits = digits_of(table.counts, table.moments, told)

    projection = MOMENTS.index("projection")  # of which no statistic tells
    assert np.delete(digits, projection, axis=1).max() < 2**34
    if dtype is np.float32:
        assert not digits[:, [MOMENTS.index(name) for name in ("min", "max", "abs_min")]].any()


def test_the_spread_of_one_rank_is_not_written_and_is_told_all_the_same(
    writer: RunWriter, record: Make, sites: list[SiteInfo]
) -> None:
    tensors = {0: np.array([1, 2], np.float32), 2: np.array([-3, 0], np.float32)}
    records = [record(index, {1: tensors}) for index in range(4)]
    writer.commit(records, streams={})
    writer.finish()

    run = open_run(writer.path)
    labels = [sites[place].label for place in records[0].sites]
    root: Any = run.zarr()
    assert root["history/spread"].nchunks_initialized == 0
    for view, place in (("min", 0), ("max", 1), ("argmin", 2), ("argmax", 3)):
        for name in ("rms", "abs_max", "nonfinite"):
            found = run.scalar(name, view=view, sites=labels)
            expected = np.stack([one.spread[:, MAIN.index(name), place] for one in records])
            assert np.array_equal(found.to_numpy(), expected, equal_nan=True)


def test_records_of_one_rank_and_of_several_lie_side_by_side(
    writer: RunWriter, record: Make, sites: list[SiteInfo]
) -> None:
    rng = np.random.default_rng(1)
    records = [
        record(
            index,
            {
                rank: {site: rng.normal(size=9).astype(np.float32) for site in range(4)}
                for rank in ((0, 1) if index % 3 else (1,))
            },
        )
        for index in range(700)
    ]
    for first in range(0, len(records), 70):
        writer.commit(records[first : first + 70], streams={})
        writer.compact_if_due()

    run = open_run(writer.path)
    for view, place in (("min", 0), ("argmax", 3)):
        labels = [site.label for site in sites]
        found = run.scalar("rms", view=view, sites=labels).to_numpy()
        expected = np.stack([one.spread[:, MAIN.index("rms"), place] for one in records])
        assert np.array_equal(found, expected)


def test_a_chunk_in_which_nothing_is_left_is_not_stored(writer: RunWriter, record: Make) -> None:
    several = record(0, {rank: {0: np.ones(3, np.float32) * rank} for rank in (0, 1)})
    writer.commit([several], streams={})
    root: Any = open_run(writer.path).zarr()
    assert root["tail/spread"].nchunks_initialized == 1

    writer.commit([record(0, {0: {0: np.ones(3, np.float32)}})], streams={})  # replaces it

    root = open_run(writer.path).zarr()
    assert root["tail/spread"].nchunks_initialized == 0
    assert open_run(writer.path).scalar("rms", view="max").to_numpy()[0, 0] == 1
