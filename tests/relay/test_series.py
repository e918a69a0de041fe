"""Series of derived quantities go up singly, through relays that merge all else."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from rankscope.agent import Outbox
from rankscope.sketch import Weighted
from rankscope.store import open_run
from rankscope.wire import Frame, MeshAxis, Reading, Series, pack_frame

from ..collector.serving import SITES, a_table, close_all, hello, start_collector
from .relaying import end, start_relay, statistics_of

RANKS, STEPS, EVERY = 3, 20, 5
SERIES = Series(
    of="fc",
    form="gram",
    size=2,
    readings=[Reading(quantity="rank_me", statistic="effective_rank")],
    axes={"dp": "merge"},
)


def outputs(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng([rank, step]).standard_normal((4, 2))


def send(box: Outbox, rank: int, step: int) -> None:
    x = outputs(rank, step)
    gram = Weighted(len(x), (x.T @ x)[np.triu_indices(2)])
    frame = Frame(
        step=step,
        time_ns=time.time_ns(),
        sites=np.arange(2, dtype=np.uint32),
        table=a_table(),
        series={0: gram} if step % EVERY == 0 else {},
    )
    box.send(pack_frame(frame))
    box.poll(time.monotonic())


def test_a_merging_relay_with_a_spool_passes_series_on(tmp_path: Path) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    spool = "--spool", str(tmp_path / "spool"), "--min-free", "0"
    relay, address = start_relay(at, "--merge", "--until-done", *spool)
    boxes = list[Outbox]()
    for rank in range(RANKS):
        mesh = [MeshAxis(name="dp", size=RANKS, coordinate=rank)]
        boxes.append(Outbox(address, hello(rank, RANKS, mesh=mesh)))
        boxes[-1].set_sites(SITES, (), [SERIES])
    for step in range(STEPS):
        for rank, box in enumerate(boxes):
            send(box, rank, step)
        time.sleep(0.01)
    assert close_all(boxes, timeout_s=40) == [True] * RANKS
    told = statistics_of(end(relay))
    end(collector)

    run = open_run(tmp_path / "runs" / "demo")
    assert run.records()["complete"].tolist() == [True] * STEPS
    found = run.quantity("rank_me", of="fc")
    assert found["step"].tolist() == list(range(0, STEPS, EVERY))
    for step, value in zip(found["step"], found["value"], strict=True):
        levels = np.linalg.svd(np.concatenate([outputs(r, step) for r in range(RANKS)]))[1]
        share = levels / levels.sum()
        np.testing.assert_allclose(value, np.exp(-(share * np.log(share)).sum()), rtol=1e-9)
    assert 0 < told["joined"] <= RANKS * (STEPS - STEPS // EVERY)
    assert told["dropped"] == {}
