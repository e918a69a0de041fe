"""Which sites would break in which formats, against every element counted by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from rankscope.sketch import (
    FORMATS,
    BlockExponents,
    CastCounts,
    FineExponents,
    SettingError,
    number_format,
)
from rankscope.sketch.reference import glance_at
from rankscope.store import Record, Run, RunWriter, SiteInfo, open_run

Make = Callable[..., Record]
Tensor = NDArray[np.float32]
UP_0, UP_1 = "activation:layers.0.up", "activation:layers.1.up"
WEIGHT = "weight:layers.0.up.weight"
STATE = "optimizer_state:layers.0.up.weight[exp_avg]"
QUESTIONS = ("overflow", "underflow", "subnormal")

tensors = hnp.arrays(
    np.float32,
    st.integers(1, 30),
    elements=st.one_of(
        # Norms of larger ones are too large for the store's float32.
        st.floats(-(2.0**100), 2.0**100, width=32),
        st.sampled_from([0.0, 1.0, 0.25, 448.0, 464.0, 470.0, 2.0**-10, 1e-3, 7.0, np.inf]),
    ),
)
# Each example writes a run: to shrink one would take minutes.
slow = settings(
    max_examples=20,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
steps = st.lists(st.lists(tensors, min_size=4, max_size=4), min_size=1, max_size=4)


def written(
    path: Path,
    record: Make,
    sites: Sequence[SiteInfo],
    many: Sequence[Sequence[Tensor]],
    **changes: Any,
) -> Run:
    with RunWriter.open(path, run="r") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.add_sites(sites)
        records = [record(step, dict(enumerate(some)), **changes) for step, some in enumerate(many)]
        writer.commit(records, streams={})
    return open_run(path)


def true_shares(x: Tensor, name: str, shift: int) -> dict[str, float]:
    """Every element looked at."""
    target = number_format(name)
    finite = np.abs(x[np.isfinite(x) & (x != 0)].astype(np.float64))
    scaled, total = np.ldexp(finite, shift), max(finite.size, 1)
    return {
        "overflow": np.count_nonzero(scaled >= target.overflow_threshold) / total,
        "underflow": np.count_nonzero(scaled <= target.flush_threshold) / total,
        "subnormal": np.count_nonzero(scaled < target.smallest_normal) / total,
    }


def told(x: Tensor) -> bool:
    """Whether anything is said of a tensor: nothing where all that is not zero is not finite."""
    return bool(np.isfinite(x).all() or (np.isfinite(x) & (x != 0)).any())


def brackets(table: xr.Dataset, site: str, name: str, true: Sequence[dict[str, float]]) -> None:
    one = table.sel(site=site, format=name)
    for question in QUESTIONS:
        low, value, high = (float(one[question + end]) for end in ("_low", "", "_high"))
        if not true:
            assert np.isnan([low, value, high]).all()
            continue
        worst = max(step[question] for step in true)
        assert low - 1e-12 <= worst <= high + 1e-12
        assert low <= value <= high


@slow
@given(
    many=steps,
    name=st.sampled_from([n for n in FORMATS if n != "float64"]),
    shift=st.integers(-20, 20),
    width=st.sampled_from([None, 1, 2]),
)
@example(
    many=[[np.array(x, np.float32) for x in ([np.inf], [0, np.inf], [1, np.inf], [0])]],
    name="bfloat16",
    shift=0,
    width=1,
)
def test_shares_of_all_sites_bracket_the_worst_step(
    record_maker: Make,
    all_sites: list[SiteInfo],
    many: list[list[Tensor]],
    name: str,
    shift: int,
    width: int | None,
) -> None:
    with TemporaryDirectory() as folder:
        run = written(Path(folder) / "r", record_maker, all_sites, many)

        every = run.format_table(formats=[name], scale=shift)
        by_kind = run.format_table(formats=[name], scale={"weight": shift})
        together = run.format_table(formats=[name], scale=shift, width=width)

    for place, site in enumerate(all_sites):
        seen = [some[place] for some in many if told(some[place])]
        own = [true_shares(x, name, shift) for x in seen]
        brackets(every, site.label, name, own)
        plain = [true_shares(x, name, 0) for x in seen]
        brackets(by_kind, site.label, name, own if site.kind == "weight" else plain)
        if width == 1:
            whole = np.concatenate([some[place] for some in many])
            one = [true_shares(whole, name, shift)] if told(whole) else []
            brackets(together, site.label, name, one)


@slow
@given(many=steps, name=st.sampled_from(["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]))
def test_the_best_scale_lets_nothing_overflow_in_any_step_and_loses_least(
    record_maker: Make, all_sites: list[SiteInfo], many: list[list[Tensor]], name: str
) -> None:
    with TemporaryDirectory() as folder:
        run = written(Path(folder) / "r", record_maker, all_sites, many)
        by_site = run.format_table(formats=[name], scale="site")
        by_kind = run.format_table(formats=[name], scale="kind")
        as_it_is = run.format_table(formats=[name], scale={})

    for table in (by_site, by_kind):
        assert float(table["overflow_high"].max()) == 0
    groups = [[0], [1], [2], [3]], [[0, 1], [2], [3]]
    for table, grouped in zip((by_site, by_kind), groups, strict=True):
        for places in grouped:
            whole = np.concatenate([some[place] for some in many for place in places])
            labels = [all_sites[place].label for place in places]
            shift = int(table["shift"].sel(site=labels[0], format=name))
            assert {int(one) for one in table["shift"].sel(site=labels, format=name)} == {shift}
            # One more would overflow, unless nothing is gained by it.
            more = true_shares(whole, name, shift + 1)
            own = true_shares(whole, name, shift)
            assert own["overflow"] == 0
            assert more["overflow"] > 0 or more["subnormal"] <= own["subnormal"]
            if shift > 0:
                fewer = true_shares(whole, name, shift - 1)
                assert fewer["subnormal"] > own["subnormal"] or fewer["underflow"] > 0
    assert (as_it_is["shift"] == 0).all()


def test_one_step_says_what_the_tensor_itself_says(writer: RunWriter, record: Make) -> None:
    x = np.array([448, 500, 2.0**-12, 1, 1, 1, 0, np.nan], np.float32)
    fine, cast = FineExponents(), CastCounts("float8_e4m3fn")
    writer.catalog.add_exact_counts([(0, fine.name), (1, cast.name)])
    counts = {0: fine.count(x), 1: cast.count(x)}
    writer.commit([record(0, {0: x, 1: x, 2: x, 3: x}, exact_counts=counts)], streams={})
    run = open_run(writer.path)

    table = run.format_table(0, formats=FORMATS)

    for site in (UP_0, UP_1, WEIGHT, STATE):
        alone = run.formats(site=site, step=0, formats=FORMATS)
        for question in QUESTIONS:
            for end in ("", "_low", "_high"):
                found = table[question + end].sel(site=site).to_numpy()
                assert found == pytest.approx(alone[question + end].to_numpy(), abs=1e-15)
    assert table["nonfinite"].all()
    exact = table.sel(format="float8_e4m3fn", site=[UP_0, UP_1])
    assert exact["overflow_low"].to_numpy().tolist() == [1 / 6, 1 / 6]
    assert exact["overflow_high"].to_numpy().tolist() == [1 / 6, 1 / 6]


def test_a_verdict_says_what_is_sure_and_what_is_open(writer: RunWriter, record: Make) -> None:
    sound, tiny = np.full(100, 1, np.float32), np.full(100, 2.0**-30, np.float32)
    # 450 fits and 470 does not: both are in the bin of 256; the largest alone is known.
    some = np.array([470] + [450] * 49 + [1] * 50, np.float32)
    writer.commit([record(0, {0: sound, 1: tiny, 2: some})], streams={})
    run = open_run(writer.path)

    def verdicts(**asked: Any) -> dict[str, str]:
        table = run.format_table(0, formats=["e4m3"], **asked)
        column = table["verdict"].isel(format=0)
        return dict(zip(column["site"].to_numpy(), column.to_numpy().tolist(), strict=True))

    plain = {UP_0: "fits", UP_1: "breaks", WEIGHT: "breaks", STATE: "not known"}
    assert verdicts() == plain
    assert verdicts(most_overflow=0.2) == plain | {WEIGHT: "may break"}
    assert verdicts(most_overflow=0.5, most_underflow=1) == dict.fromkeys(plain, "fits") | {
        STATE: "not known"
    }
    assert verdicts(scale="site") == dict.fromkeys(plain, "fits") | {STATE: "not known"}


def test_the_worst_of_several_steps_is_told_with_its_step(writer: RunWriter, record: Make) -> None:
    def tensor(step: int) -> Tensor:
        return np.array([1e6 if step == 3 else 1, 1, 1, 1], np.float32)

    writer.commit([record(step, {0: tensor(step)}) for step in range(6)], streams={})
    run = open_run(writer.path)

    one = run.format_table((1, 5), sites=UP_0, formats=["float16", "e4m3"])

    assert one["overflow"].to_numpy().tolist() == [[0.25, 0.25]]
    assert one["overflow_step"].to_numpy().tolist() == [[3, 3]]
    assert int(one["steps"][0]) == 5
    assert run.format_table((4, 5), sites=UP_0)["overflow"].max() == 0
    assert run.format_table(steps=(9, 10), sites=UP_0)["verdict"].isel(format=0) == "not known"
    # Taken together the one bad element is one of 20.
    together = run.format_table((1, 5), sites=UP_0, formats=["float16"], width=1)
    assert float(together["overflow"][0, 0]) == 1 / 20


def test_blocks_with_a_scale_of_their_own_are_known_where_they_were_counted(
    writer: RunWriter, record: Make
) -> None:
    mx, nv = BlockExponents(columns=32), BlockExponents(rows=16, columns=1, scale="amax")
    x = np.tile(np.array([1] + [2.0**-9] * 31, np.float32), (16, 1))
    writer.catalog.add_exact_counts([(0, mx.name), (0, nv.name)])
    counts = {0: mx.count(x), 1: nv.count(x)}
    writer.commit([record(0, {0: x, 1: x}, exact_counts=counts)], streams={})
    run = open_run(writer.path)

    table = run.format_table(0, formats=["mxfp4_e2m1", "mxfp8_e4m3", "nvfp4"], scale=5)

    assert table["verdict"].sel(site=UP_0).to_numpy().tolist() == ["breaks", "fits", "fits"]
    assert float(table["underflow"].sel(site=UP_0, format="mxfp4_e2m1")) == 31 / 32
    assert set(table["verdict"].sel(site=UP_1).to_numpy().tolist()) == {"not known"}
    assert (table["shift"] == 0).all()


def test_of_steps_taken_together_nothing_is_told_of_blocks(writer: RunWriter, record: Make) -> None:
    mx = BlockExponents(columns=32)
    x = np.ones((1, 32), np.float32)
    writer.catalog.add_exact_counts([(0, mx.name)])
    steps = [record(step, {0: x}, exact_counts={0: mx.count(x)}) for step in range(3)]
    writer.commit(steps, streams={})

    table = open_run(writer.path).format_table(formats=["mxfp8_e4m3", "e4m3"], width=1)

    assert table["verdict"].sel(site=UP_0).to_numpy().tolist() == ["not known", "fits"]


def test_what_the_scale_of_a_block_clips_is_told_and_breaks_nothing(
    writer: RunWriter, record: Make
) -> None:
    mx = BlockExponents(columns=32)
    x = np.full((16, 32), 7, np.float32)  # times 2^0: above 6, the largest of e2m1
    writer.catalog.add_exact_counts([(0, mx.name)])
    writer.commit([record(0, {0: x}, exact_counts={0: mx.count(x)})], streams={})

    one = open_run(writer.path).format_table(0, sites=UP_0, formats=["mxfp4_e2m1", "e2m1"])

    assert one["overflow_high"].to_numpy().tolist() == [[1, 1]]
    assert one["verdict"].to_numpy().tolist() == [["fits", "breaks"]]


def test_what_a_sentinel_alone_saw_is_not_known(writer: RunWriter, record: Make) -> None:
    glanced = record(0, look=glance_at)
    writer.commit([glanced, record(1)], streams={})
    run = open_run(writer.path)

    assert set(run.format_table(0)["verdict"].to_numpy().ravel()) == {"not known"}
    both = run.format_table()
    assert both["steps"].to_numpy().tolist() == [1, 1, 1, 1]
    assert "not known" not in both["verdict"].to_numpy()


def test_of_nan_alone_nothing_is_known(writer: RunWriter, record: Make) -> None:
    lost, zeros = np.full(4, np.nan, np.float32), np.zeros(4, np.float32)
    writer.commit([record(0, {0: lost, 1: zeros})], streams={})

    table = open_run(writer.path).format_table(0, sites=[UP_0, UP_1], formats=["e4m3"])

    assert table["verdict"].to_numpy().tolist() == [["not known"], ["fits"]]
    assert table["nonfinite"].to_numpy().tolist() == [True, False]


def test_what_ranks_have_yet_to_add_up_is_not_known(writer: RunWriter, record: Make) -> None:
    one = record(0)
    bare = replace(one.merged, histogram=np.zeros_like(one.merged.histogram))
    writer.commit([replace(one, merged=bare)], streams={})
    run = open_run(writer.path)

    assert set(run.format_table(0)["verdict"].to_numpy().ravel()) == {"not known"}
    with pytest.raises(SettingError, match="is added up over ranks"):
        run.formats(site=UP_0, step=0)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"formats": ["mxfp9"]}, "There is no number format 'mxfp9'; did you mean mxfp"),
        ({"formats": []}, "`formats` must name a number format"),
        ({"scale": "layer"}, "'site' or 'kind'; got 'layer'"),
        ({"scale": {"bias": 2}}, "names the kind 'bias'; of these sites there are activation"),
        ({"scale": 0.5}, "exponent of a power of two, up to 1024, got 0.5"),
    ],
)
def test_what_cannot_be_asked_is_told(
    writer: RunWriter, record: Make, asked: dict[str, Any], message: str
) -> None:
    writer.commit([record(0)], streams={})
    run = open_run(writer.path)

    with pytest.raises(SettingError, match=message):
        run.format_table(**asked)
