"""A run of very many sites and steps, made in seconds: most of it repeats what was written once."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync

from rankscope.sketch import SketchTable, main_statistics
from rankscope.sketch.reference import glance_at
from rankscope.store import RankInfo, Record, RunWriter, SiteInfo, pyramid
from rankscope.store.arrays import Arrays, resize
from rankscope.store.layout import ARRAYS, CHUNK
from rankscope.store.state import State

BLOCK = (
    *("norm1", "attn.q", "attn.k", "attn.v", "attn.proj", "attn", "norm2", "mlp.router"),
    *(f"mlp.experts.{n}" for n in range(10)),
    *("mlp", ""),
)
"""What is observed in a transformer's block, at last its own output."""
WRITTEN = CHUNK["history"]
"""Records that the writer is given; each chunk of the history holds as many, or a part of them."""
START_NS = 1_760_000_000_000_000_000


def write_big_run(
    path: Path, *, blocks: int, times: int, spikes: dict[tuple[int, str], float]
) -> None:
    """Write `blocks` x 20 sites x `times` x 512 steps.

    A sentinel looked at each step. The first 512 records are written as any are; their chunks are
    put in the place of all later ones. Then records with `spikes` (step, name: largest number)
    replace theirs, and the pyramid is made as the writer makes it: of it what a map asks for.
    """
    names = [f"layers.{n}.{part}".strip(".") for n in range(blocks) for part in BLOCK]
    sites = [SiteInfo(kind="activation", name=name, order=n) for n, name in enumerate(names)]
    numbers = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    sound = glance_at(numbers)

    def record(step: int) -> Record:
        hurt = {name: much for (at, name), much in spikes.items() if at == step}
        tables = [
            glance_at(np.append(numbers, np.float32(hurt[name]))) if name in hurt else sound
            for name in names
        ]
        table = SketchTable.concatenate(tables)
        extremes = main_statistics(table)
        ranks = np.where(np.isnan(extremes), np.nan, 0.0)
        spread = np.stack([extremes, extremes, ranks, ranks], axis=-1).astype(np.float32)
        return Record(
            index=step, step=step, attempt=0, time_ns=START_NS + step * 10**9, ranks=(0,),
            complete=True, partial=False, final=False, sites=np.arange(len(names)), merged=table,
            spread=spread, by_rank={}, training={0: {"loss": 1.0}}, health={0: {}},
        )  # fmt: skip

    with RunWriter.open(path, run="big") as writer:
        writer.catalog.attempt_of("launch")
        writer.catalog.set_attempt(0, 1, {"dp": 1}, [RankInfo(rank=0)])
        writer.catalog.add_sites(sites)
        one = record(-1)
        writer.commit(
            [replace(one, index=n, step=n, time_ns=START_NS + n * 10**9) for n in range(WRITTEN)],
            streams={},
        )
        writer.finish()
        writer._transact(  # pyright: ignore[reportPrivateUsage]
            lambda arrays, state: repeated(arrays, state, times), "Repeated"
        )
        writer.commit([record(step) for step, _ in spikes], streams={})
        writer._transact(with_extremes, "Pyramid")  # pyright: ignore[reportPrivateUsage]


def repeated(arrays: Arrays, state: State, times: int) -> State:
    """The state in which the records came so many times, each in a step of its own."""
    records = WRITTEN * times
    for name in ARRAYS:
        array = arrays.at("history", name)
        resize(array, (records, *array.shape[1:]))
        copy_chunks(array, times)
    facts = arrays.at("history", "records")
    rows = np.asarray(facts[:])
    rows[:, 0] = np.arange(records)
    facts[:] = rows
    ends = dict.fromkeys(state.history, records)
    return replace(state, records=records, recent=records, history=ends)


def with_extremes(arrays: Arrays, state: State) -> State:
    """The state in which each whole stretch has its extremes."""
    pieces = [piece for piece in pyramid.pieces_of(arrays) if not piece.sums]
    while (stretch := pyramid.stretch_due(state)) is not None:
        for piece in pieces:
            pyramid.make(arrays, state, stretch, piece)
        state = pyramid.with_stretch(state, stretch)
    return state


def copy_chunks(array: zarr.Array[Any], times: int) -> None:
    """Put the chunks of the first records in the place of all others."""
    each = WRITTEN // array.chunks[0]
    grid = [-(-length // size) for length, size in zip(array.shape, array.chunks, strict=True)]
    for first, *inner in product(range(each), *map(range, grid[1:])):
        key = array.metadata.encode_chunk_key((first, *inner))
        found = sync(array.store.get(f"{array.path}/{key}", default_buffer_prototype()))
        if found is not None:
            for time in range(1, times):
                key = array.metadata.encode_chunk_key((first + time * each, *inner))
                sync(array.store.set(f"{array.path}/{key}", found))
