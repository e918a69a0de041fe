"""What was counted beside the sketches is stored, moved, patched and answered as it was counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankscope.sketch import (
    BlockExponents,
    CastCounts,
    ExactCount,
    FineExponents,
    SettingError,
    StoreError,
)
from rankscope.sketch.exact_counts import MAX_NUMBERS
from rankscope.store import Record, RunWriter, SiteInfo, open_run

Make = Callable[..., Record]
UP_0, UP_1 = "activation:layers.0.up", "activation:layers.1.up"
CAST, FINE = CastCounts("float8_e4m3fn"), FineExponents(bits=2)


def counted(
    record: Make, index: int, exact_counts: dict[int, ExactCount], **changes: Any
) -> Record:
    """A record whose first site's tensor was counted, by index of the exact count."""
    counts = {
        place: exact_count.count(tensor(index)) for place, exact_count in exact_counts.items()
    }
    return record(index, {0: tensor(index), 1: tensor(index)}, exact_counts=counts, **changes)


def tensor(index: int) -> NDArray[np.float32]:
    return (np.random.default_rng(index).normal(size=40) * 200).astype(np.float32)


@pytest.mark.parametrize("group", [7, 40, 300])
def test_counts_survive_every_move_between_tiers(
    writer: RunWriter, record: Make, group: int
) -> None:
    assert writer.catalog.add_exact_counts([(0, CAST.name), (0, FINE.name)]) == [0, 1]
    both: dict[int, ExactCount] = {0: CAST, 1: FINE}
    records = [counted(record, index, both if index % 3 else {}) for index in range(300)]
    for start in range(0, 300, group):
        writer.commit(records[start : start + group], streams={})
        writer.compact_if_due()

    run = open_run(writer.path)
    for exact_count in both.values():
        found = run.exact_count(exact_count, site=UP_0)
        assert found.step.values.tolist() == [index for index in range(300) if index % 3]
        for step in (1, 130, 298):
            assert np.array_equal(found.sel(step=step), exact_count.count(tensor(step)))
    assert run.exact_count(CAST.name, site=UP_0, steps=(4, 6)).step.values.tolist() == [4, 5]


def test_exact_counts_may_come_mid_run_and_after_a_restart(
    path: Path, record: Make, sites: list[SiteInfo]
) -> None:
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.add_sites(sites)
        writer.commit([record(index) for index in range(70)], streams={})
        writer.catalog.add_exact_counts([(0, CAST.name)])
        writer.compact_if_due()  # before there is room for it
        assert open_run(path).exact_counts().empty
        writer.commit([counted(record, 70, {0: CAST})], streams={})
    with RunWriter.open(path, run="gpt") as writer:
        assert writer.catalog.add_exact_counts([(1, CAST.name), (0, CAST.name)]) == [1, 0]
        writer.commit([counted(record, 71, {0: CAST, 1: CAST})], streams={})

    run = open_run(path)
    assert run.exact_count(CAST, site=UP_0).step.values.tolist() == [70, 71]
    assert run.exact_count(CAST, site=UP_1).step.values.tolist() == [71]
    assert run.exact_counts()["site"].tolist() == [UP_0, UP_1]
    assert run.exact_counts(name="1")["exact_count"].tolist() == [CAST.name]


def test_a_late_rank_patches_the_counts(writer: RunWriter, record: Make) -> None:
    writer.catalog.add_exact_counts([(0, CAST.name)])
    writer.commit([counted(record, 0, {}), counted(record, 1, {0: CAST})], streams={})

    writer.commit([counted(record, 0, {0: CAST})], streams={})

    found = open_run(writer.path).exact_count(CAST, site=UP_0)
    assert np.array_equal(found, [CAST.count(tensor(0)), CAST.count(tensor(1))])


def test_a_run_has_room_for_so_many(writer: RunWriter, record: Make) -> None:
    each = int(np.prod(FineExponents().shape))
    new = [SiteInfo(kind="tap", name=f"t{number}") for number in range(40)]
    places = writer.catalog.add_sites(new)

    indices = writer.catalog.add_exact_counts([(place, FineExponents().name) for place in places])

    room = MAX_NUMBERS // each
    assert indices == [*range(room), *[None] * (40 - room)]
    # A small one still fits.
    assert writer.catalog.add_exact_counts([(places[0], CAST.name)]) == [room]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({1: CAST.count(np.ones(3))}, "needs exact counts below 1, got 1"),
        ({0: np.zeros(3, np.int64)}, r"needs cast_counts:float8_e4m3fn as int64 \(4,\), got"),
        ({0: np.array([0, 0, -1, 0])}, "has a negative count in cast_counts"),
    ],
)
def test_counts_that_cannot_be_are_refused(
    writer: RunWriter, record: Make, counts: dict[int, NDArray[np.int64]], message: str
) -> None:
    writer.catalog.add_exact_counts([(0, CAST.name)])
    with pytest.raises(StoreError, match=message):
        writer.commit([record(0, exact_counts=counts)], streams={})


def test_formats_are_exact_where_they_were_counted(writer: RunWriter, record: Make) -> None:
    x = np.array([463, 464, 464.0001, 2.0**-10, 1.01 * 2.0**-10, 0], np.float32)
    fine = FineExponents()
    writer.catalog.add_exact_counts([(1, fine.name)])
    counted = {0: fine.count(x)}
    writer.commit([record(0, {0: x, 1: x}, exact_counts=counted)], streams={})
    run = open_run(writer.path)

    rough, exact = (run.formats(site=site, step=0).loc["float8_e4m3fn"] for site in (UP_0, UP_1))
    assert rough["overflow_low"] < rough["overflow_high"]
    assert exact[["overflow", "overflow_low", "overflow_high"]].tolist() == [0.2] * 3
    assert exact[["underflow", "underflow_low", "underflow_high"]].tolist() == [0.2] * 3
    # What no format needs more than the sketch for stays as exact as it was.
    assert run.formats(site=UP_1, step=0).loc["float64", "underflow_high"] == 0


def test_a_format_without_scales_is_not_answered_from_blocks(
    writer: RunWriter, record: Make
) -> None:
    x = np.full(64, 1.9 * 2**15, np.float32)  # overflows in no block, and everywhere without
    block = BlockExponents(scale="amax")
    writer.catalog.add_exact_counts([(1, block.name)])
    writer.commit([record(0, {0: x, 1: x}, exact_counts={0: block.count(x)})], streams={})
    run = open_run(writer.path)

    plain, counted = (run.formats(site=site, step=0) for site in (UP_0, UP_1))
    assert counted.equals(plain)
    assert counted.loc["float8_e4m3fn", "overflow_low"] == 1


def test_blocks_tell_how_a_tensor_would_fit_formats_with_a_scale_each(
    writer: RunWriter, record: Make
) -> None:
    x = np.ones((2, 32), np.float32)
    x[0, 0] = 2**20  # so the others of its row are lost
    exact_count = BlockExponents()
    writer.catalog.add_exact_counts([(0, exact_count.name), (0, CAST.name)])
    counts = {0: exact_count.count(x), 1: CAST.count(x)}
    writer.commit([record(0, {0: x}, exact_counts=counts)], streams={})
    run = open_run(writer.path)

    fit = run.block_formats(site=UP_0, step=0)

    assert fit.index.names == ["exact_count", "format"]
    assert fit.loc[(exact_count.name, "float4_e2m1fn"), "underflow"] == 31 / 64
    assert fit.loc[(exact_count.name, "float8_e5m2"), ["underflow", "overflow"]].tolist() == [0, 0]
    assert run.block_formats(site=UP_0, step=0, formats=["float8_e4m3fn"]).shape[0] == 1
    found = run.exact_count(exact_count, site=UP_0)
    assert found.dims == ("step", "exponent", "part", "at")
    assert int(found.sel(exponent=0, part=1, at="edge").sum()) == 33
    assert int(found.sel(exponent=-20).sum()) == 31
    assert fit["counted_share"].tolist() == [1] * 5


def test_counts_of_some_ranks_alone_are_no_answer_for_all(writer: RunWriter, record: Make) -> None:
    x = np.array([500, 500, 1, 1], np.float32)
    block = BlockExponents()
    writer.catalog.add_exact_counts([(0, CAST.name), (0, block.name)])
    counts = {0: CAST.count(x[2:]), 1: block.count(x[2:])}  # of the second half
    writer.commit([record(0, {0: x}, exact_counts=counts)], streams={})
    run = open_run(writer.path)

    fit = run.formats(site=UP_0, step=0).loc["float8_e4m3fn"]
    # The largest is known: one at least lies beyond.
    assert (fit["overflow_low"], fit["overflow_high"]) == (0.25, 0.5)
    assert run.block_formats(site=UP_0, step=0)["counted_share"].tolist() == [0.5] * 5


def test_what_was_not_counted_is_no_number(writer: RunWriter, record: Make) -> None:
    writer.catalog.add_exact_counts([(0, CAST.name)])
    writer.commit([record(0)], streams={})
    run = open_run(writer.path)

    assert run.exact_count(CAST, site=UP_0).sizes["step"] == 0
    on_request = r"step 0: .* by observe\(…, exact_counts=\{'layers.0.up': BlockExponents\(\)\}\)"
    with pytest.raises(SettingError, match=f"No blocks of {UP_0} were counted in {on_request}"):
        run.block_formats(site=UP_0, step=0)
    with pytest.raises(SettingError, match=f"not counted of {UP_0}; there is {CAST.name}"):
        run.exact_count(FINE, site=UP_0)
    with pytest.raises(SettingError, match="there is nothing beside the sketch"):
        run.exact_count(FINE, site=UP_1)
    with pytest.raises(SettingError, match="There is no exact count 'rank_me'"):
        run.exact_count("rank_me", site=UP_1)
    with pytest.raises(SettingError, match="There is no number format 'fp8'"):
        run.block_formats(site=UP_0, step=0, formats=["fp8"])
