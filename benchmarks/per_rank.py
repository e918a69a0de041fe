"""What `--keep-per-rank` costs: a commit, room on disk, and questions of one rank, side by side."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from rankscope.collector import Joiner, JoinerSettings
from rankscope.collector.keeper import per_rank
from rankscope.merge import lay_out
from rankscope.sketch import SketchTable, sketch_array
from rankscope.store import RankInfo, RunWriter, SiteInfo, open_run
from rankscope.wire import Frame, MeshAxis, Site, make_schema, open_frame, pack_frame
from rankscope.wire.codec import PackedFrame

POOL = 24
"""Frames that are made; ranks and steps take them in turn."""


def frames(sites: list[Site]) -> list[PackedFrame]:
    """Frames of normal tensors of many scales."""
    random, schema = np.random.default_rng(0), make_schema(sites)
    rows = np.arange(len(sites), dtype=np.uint32)

    def made() -> PackedFrame:
        tensors = (random.standard_normal(2048) * 2.0 ** (row % 11) for row in rows.tolist())
        table = SketchTable.concatenate([sketch_array(one.astype(np.float32)) for one in tensors])
        header, blob = pack_frame(Frame(step=0, time_ns=1, sites=rows, table=table), schema.hash)
        return open_frame(header, blob, schema)

    return [made() for _ in range(POOL)]


def fill(folder: Path, policy: str, pool: list[PackedFrame], sites: list[Site], ranks: int) -> str:
    """Store 100 steps; what that took."""
    schema, took = make_schema(sites), list[float]()
    with RunWriter.open(folder, run="run") as writer:
        writer.catalog.attempt_of("launch")
        known = [RankInfo(rank=rank, coordinates={"dp": rank}) for rank in range(ranks)]
        writer.catalog.set_attempt(0, ranks, {"dp": ranks}, known)
        places = writer.catalog.add_sites(
            [SiteInfo(kind=site.kind, name=site.name) for site in sites]
        )
        settings = JoinerSettings(per_rank=per_rank(policy))
        joiner = Joiner(0, ranks, site=writer.catalog.meta.sites.__getitem__, settings=settings)
        meshes = [[MeshAxis(name="dp", size=ranks, coordinate=rank)] for rank in range(ranks)]
        layouts = [replace(lay_out(sites, places, mesh), schema=schema) for mesh in meshes]
        for step in range(100):
            for rank, layout in enumerate(layouts):
                frame = pool[(step * ranks + rank) % POOL]
                header = msgspec.structs.replace(frame.header, step=step, sequence=step)
                frame = replace(frame, header=header)
                joiner.feed(rank, f"stream-{rank}", frame, layout, float(step))
            batch = joiner.tick(float(step), writer.next_record)
            begun = time.perf_counter()
            writer.commit(batch.records, streams={}, rank_frames=batch.rank_frames)
            took.append(time.perf_counter() - begun)
        writer.finish()
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"| {policy} | {median(took) * 1e3:.1f} | {size / 100 / len(sites):.0f} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--sites", type=int, default=500)
    options = parser.parse_args()
    sites = [
        Site(kind="activation", name=f"layer.{number}", placement={"dp": "shard"})
        for number in range(options.sites)
    ]
    pool = frames(sites)
    print(f"{options.ranks} ranks, {options.sites} sites, 100 records, each its own commit")
    print("| kept of ranks | commit ms, median | B a site and record, nothing cleaned |")
    print("|---|---|---|")
    with TemporaryDirectory() as folder:
        for policy in ("none", "0,3", "all"):
            print(fill(Path(folder) / policy, policy, pool, sites, options.ranks), flush=True)
        run = open_run(Path(folder) / "all")
        for what, ask in {
            "a statistic of rank 3, all steps and sites": lambda: run.scalar("var", view=3),
            "exponents of one site of rank 3, all steps": lambda: run.exponents(
                sites="activation:layer.3", view=3
            ),
            "one step of rank 3": lambda: run.table(50, view=3),
        }.items():
            begun = time.perf_counter()
            ask()
            print(f"{what}: {(time.perf_counter() - begun) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
