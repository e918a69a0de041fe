"""Frames of single ranks beside what all make up: kept once, replaced, found again, deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from rankscope.sketch import SketchTable, sketch_array
from rankscope.store import RankFrame, RankFrames, Record, Run, RunWriter, SiteInfo, open_run
from rankscope.wire import Frame, Site, make_schema, open_frame, pack_frame

Make = Callable[..., Record]


def frame_of(sites: list[SiteInfo], value: float) -> RankFrame:
    """A rank whose tensors all hold that value."""
    schema = make_schema(
        [
            Site(
                kind=cast("Any", site.kind),
                name=site.name,
                slot=site.slot,
                occurrence=site.occurrence,
            )
            for site in sites
        ]
    )
    table = SketchTable.concatenate([sketch_array(np.full(8, value, np.float32)) for _ in sites])
    rows = np.arange(len(sites), dtype=np.uint32)
    header, blob = pack_frame(Frame(step=1, time_ns=1, sites=rows, table=table), schema.hash)
    return RankFrame(open_frame(header, blob, schema), schema)


def two_ranks(record: Record, sites: list[SiteInfo], value: float) -> RankFrames:
    frames = {rank: frame_of(sites, value + rank) for rank in (0, 1)}
    return RankFrames(record=record.index, frames=frames)


def mean_of(run: Run, rank: int, step: int) -> float:
    _, table = run.table(step, view=rank)
    return float(table.moments[0, 0] / 8)


def test_frames_are_found_again_and_the_last_of_a_record_count(
    writer: RunWriter, record: Make, sites: list[SiteInfo], path: Path
) -> None:
    tensors = {site: np.ones(8, np.float32) for site in range(4)}
    records = [replace(record(0, tensors), index=at, step=at, ranks=(0, 1)) for at in range(3)]
    some = [two_ranks(one, sites, 10.0 * one.step) for one in records]
    writer.commit(records, streams={}, rank_frames=some[:2])
    writer.commit([], streams={"stream": 1}, rank_frames=[two_ranks(records[2], sites, 20.0)])
    run = open_run(path)
    assert [mean_of(run, rank, step) for step in range(3) for rank in (0, 1)] == [
        *(0.0, 1.0),
        *(10.0, 11.0),
        *(20.0, 21.0),
    ]

    writer.close()
    with RunWriter.open(path, run="gpt") as again:
        again.commit([], streams={"stream": 2}, rank_frames=[two_ranks(records[1], sites, 5.0)])
        again.finish()
    assert run.refresh()
    assert [mean_of(run, 1, step) for step in range(3)] == [1.0, 6.0, 21.0]
    schemas = np.asarray(cast("Any", run.zarr())["schemas"]).tobytes().splitlines()
    assert len(schemas) == 1


def test_frames_that_come_late_are_in_the_heatmap_of_a_run_that_is_followed(
    writer: RunWriter, record: Make, sites: list[SiteInfo], path: Path
) -> None:
    tensors = {site: np.ones(8, np.float32) for site in range(4)}
    records = [replace(record(0, tensors), index=at, step=at, ranks=(0, 1)) for at in range(2)]
    writer.commit(records, streams={}, rank_frames=[two_ranks(records[1], sites, 20.0)])
    run = open_run(path)
    assert np.isnan(run.heatmap("l1", view=1).values[:, 0]).all()

    writer.commit([], streams={"stream": 1}, rank_frames=[two_ranks(records[0], sites, 10.0)])
    assert run.refresh()
    assert run.heatmap("l1", view=1).values.tolist() == [[8 * 11, 8 * 21]] * 4


def test_old_frames_go_with_their_records(
    writer: RunWriter, record: Make, sites: list[SiteInfo], path: Path
) -> None:
    one = record(0, {site: np.ones(8, np.float32) for site in range(4)})
    many = 600
    for start in range(0, many, 50):
        records = [replace(one, index=at, step=at, ranks=(0, 1)) for at in range(start, start + 50)]
        kept = [two_ranks(each, sites, 1.0) for each in records if each.step % 25 == 0]
        writer.commit(records, streams={}, rank_frames=kept)
    writer.finish()
    before = open_run(path).kept_ranks()
    writer.prune(50, free=True)
    run = open_run(path)

    assert before.index.tolist() == list(range(0, many, 25))
    assert run.kept_ranks().index.tolist() == [525, 550, 575]
    assert [mean_of(run, 1, step) for step in (525, 575)] == [2.0, 2.0]
    assert not np.asarray(cast("Any", run.zarr())["rank_frames"][: 1 << 20]).any()
