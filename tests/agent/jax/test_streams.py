"""One stream for each device of a process."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rankscope.agent.jax import observe
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


def test_a_collector_waits_for_a_first_step_that_is_long_in_coming(tmp_path: Path) -> None:
    """Without `mesh` no rank can say who it is before; a large step compiles for minutes."""
    settings = replace(QUICK, first_hello_s=3.0)
    with serving(tmp_path, settings, until_done=True) as service:
        with observe(run="late", to=service.address) as scope:
            time.sleep(4.0)
            scope.step(scope.sketch(weights={"w": jnp.ones(5)}))
        assert scope.statistics().acknowledged == 1
