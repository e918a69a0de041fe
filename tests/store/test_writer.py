"""One writer: what it commits is whole, and what fails leaves no trace."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from zarr.storage import MemoryStore

from rankscope.sketch import MAIN, BusyError, NotARunError, SketchTable, StoreError
from rankscope.store import Event, RankInfo, Record, RunWriter, SiteInfo, open_run
from rankscope.store.arrays import CODEC
from rankscope.store.chunks import read_regions
from rankscope.store.implied import TELLING, moments_of
from rankscope.store.state import Attempt, Meta

Make = Callable[..., Record]


def f32(values: Sequence[float]) -> NDArray[np.float32]:
    return np.array(values, np.float32)


IN_ORDER = [0, 1, 3, 2]
"""The four sites as they are executed."""


def test_what_was_committed_is_read_back_bit_for_bit(writer: RunWriter, record: Make) -> None:
    records = [record(index) for index in range(5)]

    writer.commit(records, streams={"a": 4})

    run = open_run(writer.path)
    for made in records:
        labels, table = run.table(made.step)
        assert labels == [writer.catalog.meta.sites[site].label for site in IN_ORDER]
        assert table == made.merged.take(IN_ORDER)


@pytest.mark.parametrize("group", [7, 40, 600])
def test_records_survive_every_move_between_tiers(
    path: Path, record: Make, sites: list[SiteInfo], group: int
) -> None:
    records = [record(index) for index in range(600)]
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.add_sites(sites)
        for start in range(0, 600, group):
            writer.commit(records[start : start + group], streams={})
            writer.compact_if_due()

    run = open_run(path)
    rms = run.scalar("rms")
    spread = run.scalar("rms", view="max")
    of_rank = run.scalar("rms", view=0)
    assert rms.step.to_numpy().tolist() == list(range(600))
    for index in (0, 63, 64, 127, 128, 511, 512, 575, 599):
        expected = records[index].by_rank[0][IN_ORDER, 0]
        assert np.array_equal(rms.sel(step=index), expected)
        assert np.array_equal(spread.sel(step=index), expected)
        assert np.array_equal(of_rank.sel(step=index), expected)
        assert run.table(index)[1] == records[index].merged.take(IN_ORDER)


def test_sites_that_come_later_leave_the_others_as_they_are(path: Path, record: Make) -> None:
    """Chunks of the tail are cut at multiples of 32 sites, those of the history at 64 and 128."""
    sites = [SiteInfo(kind="activation", name=f"layers.{i}", order=i) for i in range(200)]
    tensors = {site: np.array([site + 1.0, 2.0**-site], np.float32) for site in range(200)}
    few = {site: tensors[site] for site in range(150)}
    records = [record(index, few if index < 10 else tensors) for index in range(20)]
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.add_sites(sites[:150])
        writer.commit(records[:10], streams={})
        writer.catalog.add_sites(sites)
        writer.commit(records[10:], streams={})
        writer.finish()

    run = open_run(path)
    for index in (0, 9, 10, 19):
        assert run.table(index)[1] == records[index].merged
        of_rank = run.scalar("rms", view=0).sel(step=index).dropna("site")
        assert np.array_equal(of_rank, records[index].by_rank[0][:, 0])


def test_a_finished_run_lies_in_its_history_and_can_go_on(
    path: Path, record: Make, sites: list[SiteInfo]
) -> None:
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.add_sites(sites)
        writer.commit([record(index) for index in range(100)], streams={})
        writer.finish()
    assert open_run(path).finished

    with RunWriter.open(path, run="gpt") as writer:
        assert writer.next_record == 100
        writer.commit([record(index) for index in range(100, 300)], streams={})
        writer.compact_if_due()
        assert not open_run(path).finished
        writer.finish()

    run = open_run(path)
    root: Any = run.zarr()  # zarr types what a group holds too widely
    assert root["history/scalars"].shape[0] == 300
    assert np.array_equal(root["history/records"][:, 0], np.arange(300))
    for index in (0, 99, 100, 130, 299):
        assert np.array_equal(
            run.scalar("std", steps=index, sites="activation:layers.1.up"),
            record(index).by_rank[0][1:2, 2][None],
        )


def test_streams_and_attempts_are_in_the_same_transaction_as_the_data(
    path: Path, record: Make, sites: list[SiteInfo]
) -> None:
    with RunWriter.open(path, run="gpt") as writer:
        assert writer.catalog.attempt_of("one") == 0
        assert writer.catalog.attempt_of("two") == 1
        assert writer.catalog.attempt_of("one") == 0
        writer.catalog.add_sites(sites)
        writer.catalog.set_attempt(1, 4, {"dp": 4}, [RankInfo(rank=3, host="b")])
        writer.catalog.set_attempt(1, 4, {"dp": 4}, [RankInfo(rank=1, host="a")])
        writer.commit([record(0, attempt=1)], streams={"s": 7})
        writer.commit([], streams={"t": 9})

    with RunWriter.open(path, run="gpt") as writer:
        assert writer.streams == {"s": 7, "t": 9}
        assert writer.catalog.attempt_of("three") == 2
        assert [rank.host for rank in writer.catalog.meta.attempts[1].ranks] == ["a", "b"]
        assert writer.catalog.add_sites(list(reversed(sites))) == [3, 2, 1, 0]


def told(attempt: int, placed: str, shape: tuple[int, ...]) -> SiteInfo:
    """A weight, as the ranks of an attempt have it."""
    return SiteInfo(kind="weight", name="w", placement={"dp": placed}, shape=shape, attempt=attempt)


def test_what_sites_were_in_each_attempt_is_kept(path: Path, record: Make) -> None:
    was = told(0, "shard", (2,)), told(1, "shard", (3,)), told(3, "replicate", (6,))
    with RunWriter.open(path, run="gpt") as writer:
        catalog = writer.catalog
        for number, ranks in enumerate((3, 2, 2, 2)):
            catalog.set_attempt(catalog.attempt_of(str(number)), ranks, {"dp": ranks}, [])
        for one in was:
            catalog.add_sites([one])
        catalog.add_sites([told(3, "replicate", (5,))])  # another rank has another shape
        catalog.add_sites([told(2, "partial", (1,))])  # it is late
        catalog.add_sites([SiteInfo(kind="weight", name="v")])
        assert catalog.knows([told(3, "replicate", (7,))])
        writer.commit([record(0, {})], streams={})

    run = open_run(path)
    for attempt, at in enumerate((0, 1, 2, 2)):
        site = run.sites(attempt=attempt).loc["weight:w"]
        assert (site["placement"], site["shape"]) == (was[at].placement, was[at].shape)
    assert run.sites().loc["weight:w", "shape"] == (6,)
    assert len(run.site_infos) == 2


def test_an_attempt_more_is_no_news_of_a_site(path: Path) -> None:
    with RunWriter.open(path, run="gpt") as writer:
        assert [writer.catalog.attempt_of(launch) for launch in ("one", "two")] == [0, 1]
        writer.catalog.add_sites([told(0, "shard", (2,))])
        again = [told(1, "shard", (4,))]
        assert not writer.catalog.knows(again), "its shape is another one"
        assert writer.catalog.knows([told(1, "shard", (2,))])
        writer.catalog.add_sites(again)
        assert not writer.catalog.meta.former, "which a shape alone does not make another site"


def test_sites_of_before_attempts_were_kept_are_of_the_latest(sites: list[SiteInfo]) -> None:
    stored = Meta(sites=tuple(sites), attempts=(Attempt(launch="a"), Attempt(launch="b"))).to_json()
    del stored["former"]
    for site in stored["sites"]:
        del site["attempt"]
    read = Meta.from_json(stored)
    assert {site.attempt for site in read.sites} == {1}
    assert read.site(0, 0) == read.site(0)


def test_what_was_not_committed_is_forgotten(path: Path) -> None:
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("one")

    with RunWriter.open(path, run="gpt") as writer:
        assert writer.catalog.meta.attempts == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": 5}, "would leave a hole: the next free index is 1"),
        ({"index": -1}, "has a negative index"),
        ({"attempt": 3}, "is of attempt 3; known are 1, see `attempt_of`"),
        ({"sites": np.array([0, 2, 1, 3])}, "needs sites strictly increasing below 4"),
        ({"sites": np.array([0, 1, 2, 9])}, "needs sites strictly increasing below 4"),
        ({"sites": np.array([0, 1, 2])}, r"needs counts as int64 \(3, 11\)"),
        ({"merged": SketchTable.empty(1)}, r"needs counts as int64 \(4, 11\), got int64 \(1, 11\)"),
        ({"spread": np.zeros((4, 16, 4))}, r"needs spread as float32"),
        ({"by_rank": {0: np.zeros((1, 16), np.float32)}}, "needs the numbers of rank 0 as"),
        ({"ranks": (1, 0)}, "needs its ranks ascending"),
        ({"ranks": (-1,)}, "has a negative rank in `ranks`"),
    ],
)
def test_a_record_that_cannot_be_stored_is_refused_before_anything_is_written(
    writer: RunWriter, record: Make, change: dict[str, object], message: str
) -> None:
    writer.commit([record(0)], streams={"a": 0})
    before = open_run(writer.path).snapshot

    with pytest.raises(StoreError, match=message):
        writer.commit([replace(record(1), **change)], streams={"a": 1})  # type: ignore[arg-type]

    assert open_run(writer.path).snapshot == before
    assert writer.streams == {"a": 0}


def test_a_negative_count_is_refused(writer: RunWriter, record: Make) -> None:
    bad = record(0)
    bad.merged.counts[2, 1] = -1

    with pytest.raises(StoreError, match="has a negative count"):
        writer.commit([bad], streams={})


@pytest.mark.parametrize("place", ["rankscope.store.chunks.encode", "icechunk.Session.commit"])
def test_a_failure_in_a_commit_leaves_the_last_snapshot_and_a_usable_writer(
    writer: RunWriter, record: Make, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    writer.commit([record(0)], streams={"a": 0})
    run = open_run(writer.path)

    def fail(*_: object, **__: object) -> bytes:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(place, fail)
        with pytest.raises(StoreError, match=r"Cannot write to .*: .*No space left on device"):
            writer.commit([record(1), record(2)], streams={"a": 1})

    assert not run.refresh()
    assert (writer.streams, writer.next_record) == ({"a": 0}, 1)
    stored = record(1, {0: {0: f32([5])}})
    writer.commit([stored], streams={"a": 1})
    assert run.refresh()
    assert len(run.records()) == 2
    assert run.table(0)[1] == record(0).merged.take(IN_ORDER)
    assert run.table(1)[1] == stored.merged


def test_a_late_rank_patches_its_record_wherever_it_lies(
    path: Path, record: Make, sites: list[SiteInfo]
) -> None:
    tensors = {0: f32([1, 2]), 1: f32([3, np.nan])}
    with RunWriter.open(path, run="gpt") as writer:
        writer.catalog.attempt_of("x")
        writer.catalog.set_attempt(0, 2, {}, [])
        writer.catalog.add_sites(sites)
        first = [record(index, complete=False) for index in range(700)]
        writer.commit(first, streams={})
        for _ in range(20):
            writer.compact_if_due()
        run = open_run(path)
        assert run.records().loc[3, "missing"] == [1]
        for index in (3, 520, 699):  # history, recent, tail
            writer.commit([record(index, {0: tensors, 1: tensors})], streams={})

    assert run.refresh()
    records = run.records()
    for index in (3, 520, 699):
        assert (records.loc[index, "ranks"], records.loc[index, "missing"]) == (2, [])
        labels, table = run.table(index)
        assert labels == ["activation:layers.0.up", "activation:layers.1.up"]
        assert table == record(index, {0: tensors, 1: tensors}).merged
        assert run.ranks("abs_max", site=labels[1], steps=index).to_numpy().tolist() == [[3, 3]]
    assert run.table(4)[1] == first[4].merged.take(IN_ORDER)


def test_one_commit_may_patch_and_append(writer: RunWriter, record: Make) -> None:
    writer.commit([record(0), record(1)], streams={})

    writer.commit([record(2), record(1, step=11), record(3)], streams={})

    assert open_run(writer.path).records(all_attempts=True).step.tolist() == [0, 11, 2, 3]


def test_sites_may_come_mid_run(writer: RunWriter, record: Make) -> None:
    writer.commit([record(index) for index in range(70)], streams={})
    new = [SiteInfo(kind="tap", name=f"extra.{number}", order=9) for number in range(200)]
    places = writer.catalog.add_sites(new)
    late = record(70, {place: f32([place]) for place in places})

    writer.commit([replace(late, index=index, step=index) for index in range(70, 130)], streams={})
    writer.compact_if_due()

    run = open_run(writer.path)
    extra = run.scalar("rms", kind="tap")
    assert extra.shape == (130, 200)
    assert np.isnan(extra[:70]).all()
    assert np.array_equal(extra[70:], np.tile(f32(places), (60, 1)))
    assert np.isnan(run.scalar("rms", kind="weight")[70:]).all()


def test_ranks_may_come_with_a_later_attempt(writer: RunWriter, record: Make) -> None:
    writer.commit([record(0)], streams={})
    writer.catalog.attempt_of("bigger")
    writer.catalog.set_attempt(1, 100, {"dp": 100}, [])
    one = {rank: {0: f32([rank])} for rank in (0, 70, 99)}

    writer.commit([record(1, one, attempt=1, complete=False)], streams={})

    run = open_run(writer.path)
    assert run.records()["ranks"].tolist() == [1, 3]
    assert run.records().loc[1, "missing"] == [r for r in range(100) if r not in one]
    ranks = run.ranks("abs_max", site="activation:layers.0.up", steps=1)
    assert ranks.sel(rank=70).item() == 70
    assert int(ranks.notnull().sum()) == 3


def test_a_slot_of_the_ring_forgets_the_ranks_of_its_last_record(
    writer: RunWriter, record: Make
) -> None:
    both = {rank: {0: f32([rank + 1])} for rank in (0, 1)}
    only = {0: {0: f32([7])}}
    for first in range(0, 300, 4):
        given = both if first < 128 else only
        writer.commit([record(index, given) for index in range(first, first + 4)], streams={})
        writer.compact_if_due()

    ranks = open_run(writer.path).ranks("abs_max", site="activation:layers.0.up")
    assert ranks.sel(rank=1).notnull().to_numpy().tolist() == [True] * 128 + [False] * 172


@pytest.mark.parametrize("when", [0, 100])
def test_counts_beyond_32_bits_are_exact(writer: RunWriter, record: Make, when: int) -> None:
    huge = 3 * 2**40 + 5

    def make(index: int) -> Record:
        made = record(index)
        if index >= when:
            made.merged.counts[1, 0] = huge
            made.merged.histogram[1, 150] = huge
        return made

    writer.commit([make(index) for index in range(150)], streams={})
    writer.compact_if_due()

    run = open_run(writer.path)
    got = run.exponents(sites="activation:layers.1.up")["count"].isel(site=0, exponent=150)
    assert got.to_numpy().tolist() == [int(make(i).merged.histogram[1, 150]) for i in range(150)]


def test_events_are_appended(writer: RunWriter, record: Make) -> None:
    gap = Event(kind="gap", attempt=0, rank=1, step=3, text="Steps 3 to 5 were dropped.", time_ns=5)
    late = Event(kind="overload", attempt=0, rank=0, step=4, text="Zu spät.")

    writer.commit([], streams={}, events=[gap])
    writer.commit([record(0)], streams={}, events=[late])

    events = open_run(writer.path).events()
    assert events["kind"].tolist() == ["gap", "overload"]
    assert events["text"].tolist() == [gap.text, late.text]
    assert str(events.loc[0, "time"]) == "1970-01-01 00:00:00.000000005+00:00"


def test_a_second_writer_is_told_who_writes(writer: RunWriter) -> None:
    with pytest.raises(BusyError, match=f"is being written by process {os.getpid()}"):
        RunWriter.open(writer.path, run="gpt")

    writer.close()
    RunWriter.open(writer.path, run="gpt").close()


def test_a_writer_that_waits_is_seen_and_comes_next(writer: RunWriter) -> None:
    with pytest.raises(BusyError, match="is being written by process"):
        RunWriter.open(writer.path, run="gpt", wait_s=0.2)
    assert not writer.is_awaited
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(RunWriter.open, writer.path, run="gpt", wait_s=60.0)
        while not writer.is_awaited:
            time.sleep(0.01)
        writer.close()
        second = waits.result()

    assert not second.is_awaited
    second.close()


def test_another_run_is_not_overwritten(writer: RunWriter) -> None:
    writer.close()

    with pytest.raises(StoreError, match=r"holds run 'gpt', not 'bert'; choose another --store"):
        RunWriter.open(writer.path, run="bert")

    RunWriter.open(writer.path, run="gpt").close()


def test_a_file_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")

    with pytest.raises(NotARunError, match=r"notes.txt is a file; choose a folder"):
        RunWriter.open(tmp_path / "notes.txt", run="gpt")


def test_nor_is_a_folder_with_something_else(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "other")

    with pytest.raises(NotARunError, match="is a plain Zarr store, not a run"):
        RunWriter.open(tmp_path / "other", run="gpt")


def test_nor_is_a_place_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    with pytest.raises(StoreError, match=r"Cannot make .*Not a directory"):
        RunWriter.open(tmp_path / "file" / "gpt", run="gpt")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_nor_is_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(StoreError, match="Permission denied"):
        RunWriter.open(tmp_path / "gpt", run="gpt")


def test_we_read_what_plain_zarr_writes() -> None:
    array = zarr.create_array(
        MemoryStore(),
        name="scalars",
        shape=(20, 7),
        chunks=(8, 5),
        dtype="float32",
        fill_value=np.nan,
        filters=None,
        compressors=[CODEC],
    )
    values = np.arange(70, dtype=np.float32).reshape(10, 7)
    array[3:13] = values
    block = np.zeros((17, 6), np.float32)
    read_regions([(array, (slice(3, 20), slice(1, 7)), block)])
    assert np.array_equal(block[:10], values[:, 1:])
    assert np.isnan(block[10:]).all()


def test_plain_zarr_reads_what_we_write(writer: RunWriter, record: Make) -> None:
    records = [record(index) for index in range(3)]
    writer.commit(records, streams={})

    root: Any = open_run(writer.path).zarr()  # zarr types what a group holds too widely
    scalars = root["tail/scalars"]
    assert np.array_equal(scalars[:3], np.stack([made.by_rank[0] for made in records]))
    assert root["tail/scalars"].metadata.dimension_names == ("slot", "site", "statistic")
    assert root["meta"].attrs["sites"][2]["shape"] == [4, 2]
    assert root["state"].attrs["records"] == 3


def test_plain_zarr_reads_a_finished_run_from_its_history_alone(
    writer: RunWriter, record: Make
) -> None:
    records = [record(index) for index in range(70)]
    writer.commit(records, streams={})
    writer.finish()

    root: Any = open_run(writer.path).zarr()
    for index in (0, 63, 64, 69):
        merged = records[index].merged
        counts, digits = root["history/counts"][index], root["history/digits"][index]
        told = root["history/scalars"][index][:, [MAIN.index(name) for name in TELLING]]
        assert np.array_equal(counts, merged.counts)
        assert np.array_equal(moments_of(digits, counts, told), merged.moments, equal_nan=True)
        assert np.array_equal(root["history/histogram"][index], merged.histogram)
    assert np.isnan(root["tail/scalars"][:]).all()
    assert np.isnan(root["recent/scalars"][:]).all()


WRITE_UNTIL_KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from conftest import SITES, build_record
from rankscope.store import RunWriter
writer = RunWriter.open(sys.argv[1], run="gpt")
attempt = writer.catalog.attempt_of("x")
writer.catalog.add_sites(SITES)
print("ready", flush=True)
while True:
    first = writer.next_record
    writer.commit([build_record(first + i) for i in range(5)], streams={"s": first + 4})
    writer.compact_if_due()
"""


@contextmanager
def another_process_writing(path: Path) -> Generator[subprocess.Popen[bytes]]:
    """A process that commits five records at a time until it is killed, at the latest here."""
    script = [sys.executable, "-c", WRITE_UNTIL_KILLED, str(path), str(Path(__file__).parent)]
    process = subprocess.Popen(script, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_nothing_is_torn_when_the_writer_is_killed(path: Path, record: Make) -> None:
    count = 0
    for trial in range(3):
        with another_process_writing(path):
            time.sleep(0.4 + 0.037 * trial)  # into the middle of a commit, somewhere

        with RunWriter.open(path, run="gpt") as writer:
            count = writer.next_record
            assert writer.streams.get("s", -1) == count - 1
        run = open_run(path)
        assert run.records().index.tolist() == list(range(count))
        if count:
            last = record(count - 1)
            assert run.table(last.step)[1] == last.merged.take(IN_ORDER)
            assert not run.scalar("rms").isnull().any()
    assert count > 0


def test_a_reader_never_sees_half_a_step(path: Path) -> None:
    seen = set[int]()
    with another_process_writing(path):
        run = open_run(path)
        while len(seen) < 8:
            if run.refresh():
                rms, training = run.scalar("rms"), run.training()
                seen.add(len(rms))
                assert len(rms) % 5 == 0
                assert not rms.isnull().any()
                assert not training.isnull().any()
                assert len(run.records()) == len(rms) == len(training)
