"""The laws of a record's numbers: order does not matter, copies count once, parts unite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.merge import (
    Contribution,
    CountedAt,
    Merged,
    groups_of,
    lay_out,
    merge_contributions,
)
from rankscope.sketch import (
    COUNTS,
    MAIN,
    MOMENTS,
    BlockExponents,
    CastCounts,
    ExactCount,
    FineExponents,
    SketchTable,
    derive,
    main_statistics,
    sketch_array,
)
from rankscope.sketch.distribution import MAGNITUDES, NAMES, RANKED, RANKS
from rankscope.sketch.reference import glance_at
from rankscope.wire import MeshAxis, Site, SiteExactCount

from ..collector.conftest import pack

SUM, PROJECTION, COUNT, NAN = (
    MOMENTS.index("sum"),
    MOMENTS.index("projection"),
    COUNTS.index("count"),
    COUNTS.index("nan"),
)


def contribution(
    sites: list[Site], arrays: list[np.ndarray], axes: dict[str, tuple[int, int]], start: int = 0
) -> Contribution:
    mesh = [MeshAxis(name=name, size=size, coordinate=at) for name, (size, at) in axes.items()]
    table = SketchTable.concatenate([sketch_array(array, start=start) for array in arrays])
    return Contribution(pack(sites, table), lay_out(sites, range(len(sites)), mesh))


def same(left: Merged, right: Merged) -> bool:
    """Bit for bit."""
    return (
        left.table == right.table
        and left.sites.tobytes() == right.sites.tobytes()
        and left.spread.tobytes() == right.spread.tobytes()
        and all(left.by_rank[r].tobytes() == right.by_rank[r].tobytes() for r in right.by_rank)
    )


def shards(data: np.ndarray, parts: int) -> dict[int, Contribution]:
    site = Site(kind="activation", name="a", placement={"dp": "shard"})
    size = len(data) // parts
    return {
        rank: contribution(
            [site], [data[rank * size : (rank + 1) * size]], {"dp": (parts, rank)}, rank * size
        )
        for rank in range(parts)
    }


@given(st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_the_union_of_the_parts_is_the_sketch_of_the_whole(parts: int, seed: int) -> None:
    data = np.random.default_rng(seed).standard_normal(parts * 7).astype(np.float32)
    merged, whole = merge_contributions(shards(data, parts)).table, sketch_array(data)

    assert (merged.counts == whole.counts).all()
    assert (merged.histogram == whole.histogram).all()
    assert merged.checksum == whole.checksum
    np.testing.assert_allclose(merged.moments, whole.moments, rtol=1e-9, atol=1e-9)


@settings(max_examples=50)
@given(st.permutations(range(6)), st.integers(0, 2**32 - 1))
def test_the_order_of_arrival_changes_no_bit(order: list[int], seed: int) -> None:
    data = np.random.default_rng(seed).standard_normal(60).astype(np.float32)
    parts = shards(data, 6)

    assert same(
        merge_contributions({rank: parts[rank] for rank in order}), merge_contributions(parts)
    )


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_a_group_of_ranks_is_what_these_alone_would_be(
    dp: int, tp: int, pp: int, seed: int
) -> None:
    sites = [
        Site(kind="weight", name="w", placement={"tp": "shard"}),
        Site(kind="activation", name="a", placement={"dp": "shard"}),
        Site(kind="local_weight_gradient", name="w", placement={"dp": "partial", "tp": "shard"}),
    ]
    dice, parts = np.random.default_rng(seed), dict[int, Contribution]()
    for rank, (d, t, p) in enumerate(np.ndindex(dp, tp, pp)):
        axes = {"dp": (dp, d), "tp": (tp, t), "pp": (pp, p)}
        mesh = [MeshAxis(name=name, size=size, coordinate=at) for name, (size, at) in axes.items()]
        some = sites[: 3 if p == 0 else 2]  # the first stage alone has the last site
        table = SketchTable.concatenate(
            [sketch_array(dice.standard_normal(6).astype(np.float32)) for _ in some]
        )
        layout = lay_out(some, range(len(some)), mesh, (), groups_of(mesh, f"node-{rank // 2}"))
        parts[rank] = Contribution(pack(some, table), layout)
    members = dict[str, list[int]]()
    for rank, part in parts.items():
        for name in part.layout.groups:
            members.setdefault(name, []).append(rank)
    merged = merge_contributions(parts)

    assert set(merged.by_group) == {
        name for name, ranks in members.items() if 1 < len(ranks) < len(parts)
    }
    for name, numbers in merged.by_group.items():
        alone = merge_contributions({rank: parts[rank] for rank in members[name]})
        known = np.isin(merged.sites, alone.sites)
        expected = main_statistics(alone.table).astype(np.float32)
        assert np.array_equal(numbers[known], expected, equal_nan=True), name
        assert np.isnan(numbers[~known]).all()


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_copies_count_once(dp: int, tp: int, pp: int, seed: int) -> None:
    site = Site(kind="weight", name="w", placement={"tp": "shard", "dp": "replicate"})
    data = np.random.default_rng(seed).standard_normal((tp, 5)).astype(np.float32)
    cells = [(d, t, p) for d in range(dp) for t in range(tp) for p in range(pp)]
    parts = {
        rank: contribution([site], [data[t]], {"dp": (dp, d), "tp": (tp, t), "pp": (pp, p)}, t * 5)
        for rank, (d, t, p) in enumerate(cells)
    }
    merged, whole = merge_contributions(parts), sketch_array(data)

    assert (merged.table.counts == whole.counts).all()
    assert (merged.table.histogram == whole.histogram).all()
    assert merged.table.checksum == whole.checksum
    assert merged.divergences == ()


@given(st.data())
def test_ranks_may_have_different_sites(data: st.DataObject) -> None:
    sites = [Site(kind="tap", name=f"t{i}", placement={"dp": "shard"}) for i in range(6)]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    parts, held = {}, {index: list[np.ndarray]() for index in range(6)}
    for rank in range(5):
        chosen = sorted(data.draw(st.sets(st.integers(0, 5))))
        arrays = [rng.standard_normal(4).astype(np.float32) for _ in chosen]
        own = [sites[index] for index in chosen]
        table = SketchTable.concatenate([sketch_array(array) for array in arrays])
        layout = lay_out(own, chosen, [MeshAxis(name="dp", size=5, coordinate=rank)])
        parts[rank] = Contribution(pack(own, table), layout)
        for index, array in zip(chosen, arrays, strict=True):
            held[index].append(array)
    merged = merge_contributions(parts)
    seen = [index for index in range(6) if held[index]]

    assert merged.sites.tolist() == seen
    for row, index in enumerate(seen):
        whole = sketch_array(np.concatenate(held[index]))
        assert (merged.table.histogram[row] == whole.histogram[0]).all()
        expected = _keyless(whole, merged, row)
        np.testing.assert_allclose(merged.table.moments[row], expected, rtol=1e-9, atol=1e-9)


def _keyless(whole: SketchTable, merged: Merged, row: int) -> np.ndarray:
    """All pieces began at index 0: the projection is not comparable."""
    moments = whole.moments[0].copy()
    moments[PROJECTION] = merged.table.moments[row, PROJECTION]
    return moments


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_counts_of_exact_counts_are_merged_by_cell(dp: int, tp: int, seed: int) -> None:
    exact_counts = [FineExponents(bits=2), CastCounts("float8_e5m2"), BlockExponents(columns=4)]
    site = Site(kind="weight", name="w", placement={"tp": "shard", "dp": "replicate"})
    data = np.random.default_rng(seed).lognormal(0, 20, (tp, 8)).astype(np.float32)
    parts = {
        d * tp + t: counting(site, data[t], exact_counts, {"dp": (dp, d), "tp": (tp, t)})
        for d in range(dp)
        for t in range(tp)
    }
    merged = merge_contributions(parts).exact_counts
    assert merged.keys() == {7, 8, 9}
    for index, exact_count in zip((7, 8, 9), exact_counts, strict=True):
        assert np.array_equal(merged[index], exact_count.count(data))


def test_counts_of_addends_and_of_what_has_no_room_are_left_out() -> None:
    exact_count, x = CastCounts("float8_e5m2"), np.ones(4, np.float32)
    addend = Site(kind="activation", name="a", placement={"tp": "partial"})
    whole = Site(kind="activation", name="a")
    sums = {rank: counting(addend, x, [exact_count], {"tp": (2, rank)}) for rank in range(2)}
    assert merge_contributions(sums).exact_counts == {}
    assert (
        merge_contributions({0: counting(whole, x, [exact_count], {}, room=False)}).exact_counts
        == {}
    )


def counting(
    site: Site,
    x: np.ndarray,
    exact_counts: list[ExactCount],
    axes: dict[str, tuple[int, int]],
    *,
    room: bool = True,
) -> Contribution:
    """One site and what is counted of it; the run's indices begin at 7."""
    mesh = [MeshAxis(name=name, size=size, coordinate=at) for name, (size, at) in axes.items()]
    named = [SiteExactCount(site=0, name=one.name) for one in exact_counts]
    counts = {at: one.count(x) for at, one in enumerate(exact_counts)}
    at = [CountedAt(0, 7 + i if room else None, one.shape) for i, one in enumerate(exact_counts)]
    frame = pack([site], sketch_array(x), named, exact_counts=counts)
    return Contribution(frame, lay_out([site], [0], mesh, at))


def test_a_copy_that_differs_is_found_and_the_lowest_rank_is_kept() -> None:
    site = Site(kind="weight", name="w")
    arrays = [np.ones(4), np.ones(4), np.array([1.0, 1.0, 1.0, 2.0])]
    parts = {
        rank: contribution([site], [array.astype(np.float32)], {"dp": (3, rank)})
        for rank, array in enumerate(arrays)
    }
    merged = merge_contributions(parts)

    assert derive(merged.table, "sum").tolist() == [4.0]
    assert [(found.site, found.ranks, found.odd) for found in merged.divergences] == [
        (0, (0, 1, 2), (2,))
    ]


def test_of_two_copies_that_differ_none_is_called_wrong() -> None:
    site = Site(kind="weight", name="w")
    parts = {
        rank: contribution([site], [np.full(2, rank, np.float32)], {"dp": (2, rank)})
        for rank in range(2)
    }

    assert merge_contributions(parts).divergences[0].odd == ()


def test_copies_that_a_sentinel_saw_are_not_compared_with_sketches() -> None:
    site, data = Site(kind="weight", name="w"), np.ones(3, np.float32)
    full = contribution([site], [data], {"dp": (2, 0)})
    layout = lay_out([site], [0], [MeshAxis(name="dp", size=2, coordinate=1)])
    merged = merge_contributions({0: full, 1: Contribution(pack([site], glance_at(data)), layout)})

    assert merged.divergences == ()
    assert derive(merged.table, "rms") == 1


def test_copies_whose_checksum_alone_was_taken_are_compared() -> None:
    site = Site(kind="unsharded_weight", name="w")
    layouts = [
        lay_out([site], [0], [MeshAxis(name="dp", size=3, coordinate=rank)]) for rank in range(3)
    ]
    for odd in (1.0, 0.0, -1.0):
        copies = [np.zeros(3, np.float32) for _ in range(3)]
        copies[1][2] = odd
        merged = merge_contributions(
            {
                rank: Contribution(pack([site], glance_at(copy, compared=True)), layouts[rank])
                for rank, copy in enumerate(copies)
            }
        )
        assert [found.odd for found in merged.divergences] == ([(1,)] if odd else [])
        assert merged.table.counts[0, 0] == 3


def test_of_addends_only_the_linear_columns_are_merged() -> None:
    site = Site(kind="local_weight_gradient", name="w", placement={"dp": "partial", "tp": "shard"})
    values = {(0, 0): [1.0, -2.0], (1, 0): [3.0, np.nan], (0, 1): [5.0, 6.0], (1, 1): [7.0, 8.0]}
    parts = {
        rank: contribution(
            [site], [np.array(value, np.float32)], {"dp": (2, d), "tp": (2, t)}, 2 * t
        )
        for rank, ((d, t), value) in enumerate(values.items())
    }
    merged = merge_contributions(parts)
    table, rows = merged.table, [part.frame for part in parts.values()]

    assert table.counts[0, [COUNT, NAN]].tolist() == [4, 1]
    assert table.moments[0, SUM] == 28.0
    assert table.moments[0, PROJECTION] == sum(row.moments[0, PROJECTION] for row in rows)
    others = [i for i in range(len(MOMENTS)) if i not in (SUM, PROJECTION)]
    assert np.isnan(table.moments[0, others]).all()
    assert not table.histogram.any()
    assert not table.checksum.any()
    assert np.isnan(derive(table, "rms")).all()
    assert len(merged.by_rank) == 4


def test_an_addend_along_an_axis_of_one_is_the_whole() -> None:
    site = Site(kind="local_weight_gradient", name="w", placement={"dp": "partial"})
    data = np.arange(3, dtype=np.float32)

    assert merge_contributions(
        {0: contribution([site], [data], {"dp": (1, 0)})}
    ).table == sketch_array(data)


def test_the_spread_names_the_ranks_of_the_extremes_and_ignores_nan() -> None:
    site = Site(kind="activation", name="a", placement={"dp": "shard"})
    arrays = [[2.0], [np.nan], [-5.0], [3.0, np.inf]]
    parts = {
        rank * 10: contribution([site], [np.array(values, np.float32)], {"dp": (4, rank)})
        for rank, values in enumerate(arrays)
    }
    merged = merge_contributions(parts)
    spread = dict(zip(MAIN, merged.spread[0], strict=True))

    assert spread["mean"].tolist() == [-5.0, 3.0, 20.0, 30.0]
    assert spread["nonfinite"].tolist() == [0.0, 1.0, 0.0, 10.0]
    assert np.isnan(spread["std"]).all()
    assert merged.by_rank[20][0, MAIN.index("mean")] == -5.0


def test_zeros_beside_what_is_not_finite_say_nothing_of_a_rank_s_size() -> None:
    site = Site(kind="local_weight_gradient", name="w", placement={"dp": "partial"})
    arrays = [[2.0, 2.0], [0.0, np.nan], [0.0, 0.0], [8.0, 2.0], [8.0, np.inf]]
    parts = {
        rank: contribution([site], [np.array(values, np.float32)], {"dp": (5, rank)})
        for rank, values in enumerate(arrays)
    }

    over_ranks = merge_contributions(parts).distribution[0, 0, RANKED.index("abs_max")]

    assert over_ranks[RANKS] == 4
    assert over_ranks[NAMES].tolist() == [2, 0, 3, 4, 3, 4, 0, 2]
    assert over_ranks[MAGNITUDES].tolist() == [0, 2, 8, 8, 8, 8, 2, 0]


@pytest.mark.parametrize("rows", [0, 1])
def test_a_rank_without_sites_adds_nothing(rows: int) -> None:
    site = Site(kind="tap", name="t", placement={"dp": "shard"})
    full = contribution([site], [np.ones(2, np.float32)], {"dp": (2, 0)})
    none = Contribution(pack([], SketchTable.empty(0)), lay_out([], [], []))
    merged = merge_contributions({0: full, 1: none} if rows else {1: none})

    assert len(merged.table) == rows
    assert np.isnan(merged.by_rank[1]).all()
