"""One stream for each device of a process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from rankscope.agent.jax.meshes import Ranks
from rankscope.agent.jax.streams import Streams
from rankscope.store import open_run

from ...collector.serving import QUICK, outbox, send, serving


def test_all_devices_say_goodbye_at_once(tmp_path: Path) -> None:
    """A goodbye that was awaited alone would be answered after a minute here, eight after eight."""
    devices = jax.devices()
    with serving(tmp_path, replace(QUICK, commit_s=60.0)) as service:
        streams = Streams(lambda ranks, rank: outbox(service.address, rank, len(ranks.devices)))
        streams.open(Ranks.of(Mesh(np.array(devices), "dp"), {}))
        for box in streams.outboxes:
            send(box, [0])
        assert streams.close(timeout_s=30)
    run = open_run(tmp_path / "demo")
    assert run.records()["complete"].tolist() == [True]
    assert run.attempts["left"].tolist() == [tuple(range(len(devices)))]
