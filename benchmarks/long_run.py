"""How long a heatmap takes of a very long run: 2,000 sites x 100,000 records, from cold.

Written record by record such a run would take an hour and 100 GB. So one stretch of it is written,
with its pyramid, and its chunks are put in the place of all others: of the arrays that the
questions read, and of no other. Every question therefore finds what it would find.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import queries
import zarr
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync

from rankscope.sketch import MAIN
from rankscope.store import RunWriter
from rankscope.store.arrays import Arrays, resize
from rankscope.store.layout import ARRAYS, BLOCKS, PYRAMID, STRETCH, pyramid_path
from rankscope.store.state import State

ASKED = [MAIN.index(name) for name in ("rms", "nonfinite", "zero_share")]
NAMES = ["heatmap, 1200 x 600", "exponents, 1200 sums"]


def prolong(arrays: Arrays, state: State, stretches: int, site: int) -> State:
    """Say that the first stretch came so many times, and store what is asked of the others."""
    records = stretches * STRETCH
    facts = arrays.at("history", "records")
    first = np.asarray(facts[:STRETCH])
    for name in ARRAYS:
        array = arrays.at("history", name)
        resize(array, (records, *array.shape[1:]))
    rows = np.tile(first, (stretches, 1))
    rows[:, 0] = np.arange(records)
    facts[:] = rows
    repeat(arrays.at("history", "scalars"), STRETCH, stretches, [None, ASKED])
    chunk = site // arrays.at("history", "histogram").chunks[1]
    for name in ("counts", "histogram"):
        repeat(arrays.at("history", name), STRETCH, stretches, [[chunk], None])
    for block, name in product(BLOCKS, PYRAMID):
        array = arrays.open(pyramid_path(block, name))
        resize(array, (records // block, *array.shape[1:]))
        if (STRETCH // block) % array.chunks[0] == 0:
            repeat(array, STRETCH // block, stretches, [None] * (array.ndim - 1))
        else:
            array[:] = np.tile(array[: STRETCH // block], (stretches, *[1] * (array.ndim - 1)))
    ends = dict.fromkeys(state.history, records)
    return replace(state, records=records, recent=records, history=ends, stretches=stretches)


def repeat(array: zarr.Array[Any], rows: int, times: int, wanted: list[list[int] | None]) -> None:
    """Put the chunks of the first rows in the place of all others, of the wanted places."""
    wanted += [None] * (array.ndim - 1 - len(wanted))
    grid = [-(-length // size) for length, size in zip(array.shape, array.chunks, strict=True)]
    later = [
        range(count) if some is None else some for count, some in zip(grid[1:], wanted, strict=True)
    ]
    each = rows // array.chunks[0]
    for place in product(range(each), *later):
        key = array.metadata.encode_chunk_key(place)
        found = sync(array.store.get(f"{array.path}/{key}", default_buffer_prototype()))
        for time_ in range(1, times):
            key = array.metadata.encode_chunk_key((place[0] + time_ * each, *place[1:]))
            if found is not None:
                sync(array.store.set(f"{array.path}/{key}", found))


def main() -> None:
    """Print one row a query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=2000)
    parser.add_argument("--stretches", type=int, default=49)
    parser.add_argument("--keep", type=Path, help="write the run here, or ask the one that is here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path: Path = options.keep or Path(folder) / "bench"
        begin = time.perf_counter()
        if not path.exists():
            queries.write(path, options.sites, STRETCH)
            with RunWriter.open(path, run="bench") as writer:
                writer.finish()
                writer._transact(  # pyright: ignore[reportPrivateUsage]
                    lambda arrays, state: prolong(
                        arrays, state, options.stretches, options.sites // 2
                    ),
                    "Prolonged",
                )
        print(
            f"{options.sites} sites x {options.stretches * STRETCH} records, "
            f"written in {time.perf_counter() - begin:.0f} s"
        )
        queries.report(path, NAMES)
        print("The same from the records:")
        queries.report(path, NAMES, dense=True)


if __name__ == "__main__":
    main()
