"""The pyramid over steps: what it answers is what the records themselves say."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rankscope.sketch import MAIN, sketch_array
from rankscope.sketch.derive import SENTINEL
from rankscope.sketch.reference import glance_at
from rankscope.store import Record, Run, RunWriter, SiteInfo, open_run
from rankscope.store.columns import in_columns
from rankscope.store.layout import BLOCKS, COLUMNS, STRETCH
from rankscope.store.selection import choose_records
from rankscope.store.state import State

Make = Callable[..., Record]

STEPS = 2 * STRETCH + 300
REWOUND = range(2500, 2600)
"""Steps that a second attempt records again, in the middle of a stretch."""


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def templates(record: Make) -> list[Record]:
    """Records that differ in magnitude, in what is observed, and in what is not finite."""
    rng = np.random.default_rng(7)
    made: list[Record] = []
    for number in range(37):
        tensors = {
            site: (rng.normal(size=20) * 2.0 ** rng.integers(-8, 8)).astype(np.float32)
            for site in range(4)
            if (number + site) % 5
        }
        if number == 11:
            tensors[1] = f32(1, np.nan)
        if number == 23:
            tensors[2] = f32(np.inf)
        if number == 29:
            tensors[3] = f32()
        made.append(record(number, tensors, look=glance_at if number % 3 == 1 else sketch_array))
    made[12].merged.counts[0, 0] = made[12].merged.histogram[0, 150] = 3 * 2**40 + 5
    return made


def made_record(known: list[Record], index: int, step: int, attempt: int) -> Record:
    # 31 and 37 have no common factor: neighbouring blocks never hold the same.
    chosen = known[(step * 31 + attempt * 5) % len(known)]
    return replace(chosen, index=index, step=step, attempt=attempt)


def steps_of_run() -> list[tuple[int, int]]:
    """Step and attempt by record."""
    last = REWOUND.stop
    return [(step, 0) for step in range(last)] + [
        (step, 1) for step in range(REWOUND.start, STEPS - len(REWOUND))
    ]


@pytest.fixture(scope="module")
def long_path(
    tmp_path_factory: pytest.TempPathFactory, record_maker: Make, all_sites: list[SiteInfo]
) -> Path:
    """A run of two stretches and more, with a rewind, and a patch in a stretch that was made."""
    path = tmp_path_factory.mktemp("runs") / "gpt"
    known = templates(record_maker)
    records = [
        made_record(known, index, step, attempt)
        for index, (step, attempt) in enumerate(steps_of_run())
    ]
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("one")
        writer.catalog.attempt_of("two")
        writer.catalog.add_sites(all_sites)
        for first in range(0, len(records), 256):
            writer.commit(records[first : first + 256], streams={})
        writer.finish()
    return path


@pytest.fixture(scope="module")
def long_run(long_path: Path) -> Run:
    """The same, open."""
    return open_run(long_path)


def records_of(run: Run, steps: tuple[int, int], attempt: int | None) -> pd.DataFrame:
    """Those that a question is about."""
    records = run.records(all_attempts=attempt is not None)
    mine = records["step"].between(*steps)
    return records.loc[mine if attempt is None else mine & (records["attempt"] == attempt), :]


def expected_heatmap(
    run: Run, statistic: str, question: dict[str, Any], found: Any, pool: str
) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Values, nonfinite and observed of the answer's own cells, from all numbers of all steps.

    Where a sentinel looked in some of the steps, a tensor without elements is told as not observed.
    """
    full = run.scalar(statistic, **question)
    steps = full["step"].to_numpy()
    bad, share = (
        run.scalar(name, **question).reindex(step=steps).to_numpy()
        for name in ("nonfinite", "zero_share")
    )
    glanced = bool((records_of(run, **question)["glanced"] > 0).any())
    values = full.to_numpy()
    shape = found.values.shape
    numbers = np.full(shape, np.nan, np.float32)
    nonfinite, observed = np.zeros(shape, bool), np.zeros(shape, bool)
    assert all(found.column_first[1:] > found.column_last[:-1])
    worst = np.fmax if pool == "max" else np.fmin
    rows = [full.get_index("site").get_indexer(labels) for labels in found.row_sites]
    for column in range(shape[1]):
        inside = (steps >= found.column_first[column]) & (steps <= found.column_last[column])
        for place, row in enumerate(rows):
            cell = np.ix_(inside, row)
            numbers[place, column] = worst.reduce(values[cell], axis=None)
            nonfinite[place, column] = (bad[cell] > 0).any()
            seen = ~np.isnan(bad[cell])
            if glanced and statistic not in SENTINEL:
                seen &= ~np.isnan(share[cell]) | (bad[cell] > 0)
            observed[place, column] = seen.any()
    return numbers, nonfinite, observed


@st.composite
def grouped(draw: st.DrawFn, sites: int = 4) -> list[list[int]]:
    """Some of the sites in any order, cut into rows."""
    chosen = draw(st.lists(st.integers(0, sites - 1), min_size=1, unique=True))
    cuts = sorted(draw(st.sets(st.integers(1, len(chosen)))) | {0, len(chosen)})
    return [chosen[a:b] for a, b in pairwise(cuts)]


@settings(max_examples=60, deadline=None)
@example(
    statistic="rms", pool="max", width=None, height=None, limits=[173, 174], attempt=None, rows=None
)
@given(
    statistic=st.sampled_from(MAIN),
    pool=st.sampled_from(["max", "min"]),
    width=st.integers(1, 400) | st.none(),
    height=st.integers(1, 4) | st.none(),
    limits=st.tuples(st.integers(0, STEPS), st.integers(0, STEPS)).map(sorted),
    attempt=st.sampled_from([None, 0, 1]),
    rows=st.none() | grouped(),
)
def test_a_heatmap_is_what_pooling_all_numbers_gives(
    long_run: Run,
    statistic: str,
    pool: Any,
    width: int | None,
    height: int | None,
    limits: list[int],
    attempt: int | None,
    rows: list[list[int]] | None,
) -> None:
    question: dict[str, Any] = {"steps": tuple(limits), "attempt": attempt}
    labels = long_run.sites().index
    groups = None if rows is None else [[labels[place] for place in row] for row in rows]

    found = long_run.heatmap(
        statistic, rows=groups, width=width, height=height, pool=pool, **question
    )

    if groups is not None and height is None:
        assert found.row_sites == groups
    numbers, nonfinite, observed = expected_heatmap(long_run, statistic, question, found, pool)
    if width is not None:
        assert found.values.shape[1] <= width
    assert np.array_equal(found.values, numbers, equal_nan=True)
    assert np.array_equal(found.nonfinite, nonfinite)
    assert np.array_equal(found.observed, observed)


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(1, 400),
    limits=st.tuples(st.integers(0, STEPS), st.integers(0, STEPS)).map(sorted),
    attempt=st.sampled_from([None, 0, 1]),
)
def test_summed_exponents_are_the_sums_of_all_steps(
    long_run: Run, width: int, limits: list[int], attempt: int | None
) -> None:
    question: dict[str, Any] = {"steps": tuple(limits), "attempt": attempt}
    full = long_run.exponents(**question)

    found = long_run.exponents(width=width, **question)

    assert found.sizes["step"] <= width
    column = np.searchsorted(found["last_step"].to_numpy(), full["step"].to_numpy())
    observed = full["observed"].to_numpy()
    for name in ("count", "zero", "nan", "pos_inf", "neg_inf", "total", "unseen"):
        summed = np.zeros(found[name].shape, np.int64)
        rows = full[name].to_numpy() * observed.reshape(*observed.shape, *[1] * (summed.ndim - 2))
        np.add.at(summed, column, rows)
        assert np.array_equal(found[name], summed)
    ever = np.zeros(found["observed"].shape, bool)
    np.logical_or.at(ever, column, observed)
    assert np.array_equal(found["observed"], ever)


def test_a_long_range_is_read_from_blocks(long_run: Run) -> None:
    """Not from the records: the pyramid is what makes it quick."""
    root: Any = long_run.zarr()
    made = STRETCH // 16 * 2
    assert root["pyramid/16/extremes"].shape[0] == made
    assert root["pyramid/256/histogram"].shape[0] == made // 16
    assert root["state"].attrs["stretches"] == 2


@pytest.fixture
def made_twice(path: Path, record: Make, sites: list[SiteInfo]) -> Iterator[RunWriter]:
    """A writer whose run has one stretch that is made, and some records that are not."""
    one = record(0, {0: f32(1, 2)})
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.add_sites(sites)
        for first in range(0, STRETCH + 1024, 128):
            writer.commit(
                [replace(one, index=i, step=i) for i in range(first, first + 128)], streams={}
            )
        for _ in range(60):
            writer.compact_if_due()
        assert open_run(path).zarr()["state"].attrs["stretches"] == 1
        yield writer


def test_a_patch_shows_at_once_and_is_in_the_pyramid_later(
    made_twice: RunWriter, record: Make
) -> None:
    spiked = record(777, {0: f32(1e30, np.nan), 1: f32(3)})
    made_twice.commit([spiked], streams={})

    def look() -> tuple[list[int], list[int], int, int]:
        run = open_run(made_twice.path)
        found = run.heatmap("abs_max", kind="activation", width=48)
        counts = run.exponents(sites="activation:layers.0.up", width=1)
        return (
            np.flatnonzero(found.values[0] > 1e29).tolist(),
            np.flatnonzero(found.nonfinite[0]).tolist(),
            int(counts["nan"].sum()),
            int(counts["count"].sum()),
        )

    expected = ([777 // 64], [777 // 64], 1, 2 * (STRETCH + 1024) - 1)
    assert look() == expected
    assert open_run(made_twice.path).zarr()["state"].attrs["stale"] == [0]
    while open_run(made_twice.path).zarr()["state"].attrs["stale"]:
        made_twice.compact_if_due()
    assert look() == expected


def test_a_patch_between_two_pieces_of_a_stretch_is_not_lost(path: Path, record: Make) -> None:
    """Of many sites a stretch is made in pieces: what was made before the patch is made again."""
    many = [SiteInfo(kind="activation", name=f"layers.{i}", order=i) for i in range(70)]
    one = record(0, {site: f32(1, 2) for site in range(70)})
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.add_sites(many)
        for first in range(0, STRETCH + 64, 64):
            writer.commit(
                [replace(one, index=i, step=i) for i in range(first, first + 64)], streams={}
            )
            writer.compact_if_due()
        while writer_state(path)["transactions"] < 10_000:
            before = zarr_names(path)
            writer.compact_if_due()
            if zarr_names(path) != before:
                break
        spiked = record(5, {site: f32(2**99) for site in range(70)})
        writer.commit([spiked], streams={})
        writer.finish()

    assert writer_state(path)["stretches"] == 1
    assert open_run(path).heatmap("abs_max", width=33).values[:, 0].tolist() == [2**99] * 70


def writer_state(path: Path) -> dict[str, Any]:
    root: Any = open_run(path).zarr()
    return dict(root["state"].attrs)


def zarr_names(path: Path) -> int:
    """How many blocks there are of the first array that is made."""
    root: Any = open_run(path).zarr()
    return int(root["pyramid/16/extremes"].shape[0])


COMPACT_UNTIL_KILLED = """
import sys
from dataclasses import replace
sys.path.insert(0, sys.argv[2])
from conftest import build_record
from rankscope.store import RunWriter
one = build_record(0)
writer = RunWriter.open(sys.argv[1], run="gpt")
print("ready", flush=True)
while True:
    index = writer.next_record
    writer.commit([replace(one, index=index, step=index)], streams={})
    writer.compact_if_due()
"""


def test_a_killed_writer_leaves_a_pyramid_that_is_right(
    path: Path, record: Make, sites: list[SiteInfo]
) -> None:
    one = record(0)
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.add_sites(sites)
        for first in range(0, STRETCH + 600, 200):
            some = range(first, first + 200)
            writer.commit([replace(one, index=i, step=i) for i in some], streams={})
    script = [sys.executable, "-c", COMPACT_UNTIL_KILLED, str(path), str(Path(__file__).parent)]
    wait_s = 0.04
    while not writer_state(path)["stretches"]:
        with subprocess.Popen(script, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(wait_s)  # into the middle of a commit, a move, or a stretch
            process.kill()
        wait_s *= 2
        run = open_run(path)
        found = run.heatmap("abs_max", width=20).values
        expected = one.by_rank[0][[0, 1, 3, 2], MAIN.index("abs_max")]
        assert np.array_equal(found, np.repeat(expected[:, None], found.shape[1], 1))
        total = run.exponents(width=1)["count"].sum("exponent").to_numpy()
        assert (total == 40 * len(run.records())).all()


rewinds = st.lists(st.tuples(st.integers(1, 900), st.integers(0, 300)), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(
    parts=rewinds,
    width=st.integers(1, 500) | st.none(),
    stale=st.booleans(),
    every=st.sampled_from([1, 7, 40]),
    data=st.data(),
)
def test_columns_hold_each_chosen_record_once(
    parts: list[tuple[int, int]], width: int | None, stale: bool, every: int, data: st.DataObject
) -> None:
    facts, step = list[tuple[int, int]](), 0
    for attempt, (more, back) in enumerate(parts):
        step = max(step - back, 0)
        facts += [(step + i, attempt) for i in range(more * 4)]
        step += more * 4
    rows = np.zeros((len(facts), len(COLUMNS)), np.int64)
    rows[:, :2] = facts
    silent = np.arange(len(rows)) % every > 0
    rows[silent, COLUMNS.index("glanced")] = 1
    rows[~silent, COLUMNS.index("sketched")] = 1
    stretches = data.draw(st.integers(0, len(rows) // STRETCH))
    state = State(stretches=stretches, stale=(0,) if stale and stretches else ())
    chosen = choose_records(rows, sketched=True)

    columns = in_columns(chosen, width, state, silent=silent)

    if width is not None:
        assert len(columns) <= width
    found: dict[int, int] = {}
    for part in columns.rows:
        assert (np.diff(part.columns) >= 0).all()
        for number, column in zip(part.rows.tolist(), part.columns.tolist(), strict=True):
            records = range(number * part.block, (number + 1) * part.block)
            if part.block > 1:
                assert part.block in BLOCKS
                assert stale <= records.start // STRETCH < stretches
            for one in records:
                if part.block == 1 or not silent[one]:
                    assert one not in found
                    found[one] = column
    assert sorted(found) == sorted(chosen.records.tolist())
    for record, step in zip(chosen.records.tolist(), chosen.steps.tolist(), strict=True):
        column = found[record]
        assert columns.first[column] <= step <= columns.last[column]


def test_columns_of_a_long_run_are_equally_long() -> None:
    rows = np.zeros((20_000, len(COLUMNS)), np.int64)
    rows[:, 0] = np.arange(len(rows))
    state = State(stretches=9)
    chosen = choose_records(rows, steps=(37, None))

    columns = in_columns(chosen, 600, state, silent=np.zeros(len(rows), bool))

    assert set(np.diff(columns.first[1:]).tolist()) == {48}
    assert columns.first[0] == 37
    assert columns.first[1] % 16 == 0


@pytest.mark.parametrize(
    ("width", "steps", "blocks"),
    [(1200, 16, True), (2483, 16, True), (2484, 7, False), (20_000, 1, False)],
)
def test_columns_are_up_to_twice_as_long_where_they_then_hold_whole_blocks(
    width: int, steps: int, blocks: bool
) -> None:
    rows = np.zeros((8 * STRETCH + 1000, len(COLUMNS)), np.int64)
    rows[:, 0] = np.arange(len(rows))
    chosen = choose_records(rows)

    columns = in_columns(chosen, width, State(stretches=8), silent=np.zeros(len(rows), bool))

    assert set(np.diff(columns.first).tolist()) == {steps}
    assert any(part.block > 1 for part in columns.rows) == blocks


def test_a_heatmap_that_is_read_in_many_batches_is_the_same(
    long_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = long_run.heatmap("rms", width=40, height=4)
    monkeypatch.setattr("rankscope.store.values.AT_ONCE", 1)
    parts = long_run.heatmap("rms", width=40, height=4)

    assert np.array_equal(parts.values, whole.values, equal_nan=True)
