"""What one record says in a few numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.sinks import exponents_of, numbers_of, table_of
from rankscope.sketch import FIRST_EXPONENT, SketchTable, sketch_array
from rankscope.store import SiteInfo

from ..store.conftest import SITES, build_record

ONE, TWO = np.array([3.0, -4.0], np.float32), np.array([1.0, 0.0, 2.0**-20], np.float32)


def test_statistics_are_averaged_over_the_sites_of_a_kind() -> None:
    found = numbers_of(build_record(0, {0: ONE, 1: TWO}), SITES)

    rms = [math.sqrt(12.5), math.sqrt((1 + 2.0**-40) / 3)]
    assert found["activation/rms"] == pytest.approx(sum(rms) / 2)
    assert found["activation/abs_max"] == pytest.approx((4 + 1) / 2)
    assert not any(name.startswith("weight/") for name in found)


def test_a_kind_is_also_told_as_if_it_were_one_tensor() -> None:
    found = numbers_of(build_record(0, {0: ONE, 1: TWO}), SITES)

    assert found["activation/all/count"] == 5
    assert found["activation/all/l2"] == pytest.approx(math.sqrt(26))
    assert found["activation/all/abs_max"] == 4
    assert found["activation/all/min"] == -4


@given(st.lists(st.sampled_from(["weight", "activation", "tap"]), min_size=1, max_size=20))
def test_any_number_of_sites_of_each_kind_is_put_together(kinds: list[str]) -> None:
    sites = [SiteInfo(kind=kind, name=f"layers.{place}") for place, kind in enumerate(kinds)]
    rng = np.random.default_rng(len(kinds))
    tensors = {place: rng.normal(place, 2.0, 5).astype(np.float32) for place in range(len(kinds))}

    found = numbers_of(build_record(0, tensors), sites)

    for kind in set(kinds):
        mine = [tensors[place] for place, one in enumerate(kinds) if one == kind]
        whole = np.concatenate(mine).astype(np.float64)
        assert found[f"{kind}/all/count"] == len(whole)
        assert found[f"{kind}/all/rms"] == pytest.approx(np.sqrt(np.mean(whole**2)))
        assert found[f"{kind}/all/max"] == whole.max()
        assert found[f"{kind}/mean"] == pytest.approx(np.mean([one.mean() for one in mine]))


def test_optimizer_state_is_told_by_its_slot() -> None:
    assert "optimizer_state.exp_avg/rms" in numbers_of(build_record(0), SITES)


def test_elements_that_are_not_finite_are_added_up() -> None:
    bad = np.array([np.nan, 1.0, np.inf], np.float32)

    found = numbers_of(build_record(0, {0: bad, 1: bad}), SITES)

    assert found["activation/nonfinite"] == 4
    assert found["activation/rms"] == 1.0


def test_underflow_and_overflow_are_shares_of_the_elements_that_are_not_zero() -> None:
    mixed = np.array([2.0**-20, 0.0, 1.0, 1e6], np.float32)
    record = build_record(0, {0: mixed, 1: ONE})

    found = numbers_of(record, SITES)

    assert found["activation/overflow/float16"] == pytest.approx(1 / 5)
    assert found["activation/underflow/float16"] == 0  # 2^-20 is a subnormal there
    assert found["activation/underflow/float8_e4m3fn"] == pytest.approx(1 / 5)
    assert found["activation/overflow/bfloat16"] == 0


def test_what_was_left_to_the_sentinel_has_extremes_only() -> None:
    def glance(array: np.ndarray) -> SketchTable:
        table = sketch_array(array)
        table.counts[:, -2] = table.finite()  # unbinned
        table.counts[:, 4:9] = 0
        table.histogram.fill(0)
        return table

    found = numbers_of(build_record(0, {0: ONE}, look=glance), SITES)

    assert found["activation/abs_max"] == found["activation/all/abs_max"] == 4
    assert not {"activation/rms", "activation/all/l2", "activation/underflow/float16"} & set(found)


def test_training_statistics_are_averaged_over_ranks_and_a_nan_stays() -> None:
    record = build_record(
        0, training={0: {"loss": 1.0, "aux": math.nan}, 1: {"loss": 2.0, "aux": 1.0}}
    )

    found = numbers_of(record, SITES)

    assert found["training/loss"] == 1.5
    assert math.isnan(found["training/aux"])


def test_of_the_agents_counters_the_worst_rank_is_told() -> None:
    record = build_record(0, health={0: {"steps_dropped": 0.0}, 1: {"steps_dropped": 3.0}})

    assert numbers_of(record, SITES)["agent/steps_dropped"] == 3


def test_exponents_are_summed_over_the_sites_of_a_kind() -> None:
    found = exponents_of(build_record(0, {0: ONE, 1: TWO}), SITES)["activation"]

    held = {int(place) + FIRST_EXPONENT: int(found[place]) for place in np.flatnonzero(found)}
    assert held == {1: 1, 2: 1, 0: 1, -20: 1}


def test_a_table_has_every_site_with_its_statistics() -> None:
    table = table_of(build_record(0, {0: ONE, 2: TWO}), SITES)

    assert table.sites == ("activation:layers.0.up", "weight:layers.0.up.weight")
    assert table.values[:, table.statistics.index("count")].tolist() == [2, 3]
    assert table.values[0, table.statistics.index("l2")] == 5


def test_a_record_without_sites_has_the_training_alone() -> None:
    empty = np.empty(0, np.intp)
    record = replace(build_record(0), sites=empty, merged=SketchTable.empty(0), health={})

    assert numbers_of(record, SITES) == {"training/loss": 10.0}
    assert table_of(record, SITES).sites == ()
