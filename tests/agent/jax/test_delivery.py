"""What waits to be sent is bounded, and what is lost is counted and told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from rankscope.agent.jax.delivery import FULL, HELD, MOST, UNSENT, Delivery
from rankscope.agent.jax.due import Due
from rankscope.agent.jax.gathering import Trees, gather
from rankscope.agent.jax.layout import Layout
from rankscope.agent.jax.meshes import Ranks
from rankscope.agent.jax.parcel import Parcel
from rankscope.agent.jax.streams import Streams
from rankscope.agent.outbox import Outbox
from rankscope.agent.printing import Printer
from rankscope.agent.sitebook import SiteBook
from rankscope.agent.telling import Telling
from rankscope.wire.messages import Gap, Hello


def hello_of(rank: int) -> Hello:
    """A greeting; nobody hears it."""
    return Hello(
        protocol_min=1,
        protocol_max=1,
        run="run",
        launch="launch",
        stream="stream",
        rank=rank,
        world_size=1,
        mesh=[],
        host="host",
        process=1,
        device="cpu",
        facts={},
    )


def parcel_of(step: int, name: str = "w", size: int = 3) -> Parcel:
    """A closed step."""
    trees = Trees(weights={name: jnp.full(size, step, jnp.float32)}, numbers={"loss": 1.0})
    return Parcel(step, gather(trees, {"weight"}, lambda name: True, in_program=False), {})


@dataclass
class Line:
    """A delivery whose agent's thread never runs by itself, and whose frames nobody takes."""

    mesh: Mesh | None = None
    in_program: bool = False
    found: Callable[[], object] = lambda: None
    """Called before the streams are opened."""
    telling: Telling = field(default_factory=Telling)

    def __post_init__(self) -> None:
        self.streams = Streams(lambda ranks, rank: Outbox("tcp://127.0.0.1:1", hello_of(rank)))
        book = SiteBook(lambda name: True)
        layout = Layout(book, self.mesh, {}, self.in_program, self.telling, self._open)
        printer = Printer(lambda job: None)
        self.delivery = Delivery(
            layout, self.streams, self.telling, lambda job: None, dict, printer
        )

    @property
    def frames(self) -> int:
        """How many were made."""
        return self.streams.statistics().pending_frames

    def send(self, step: int, name: str = "w", size: int = 3) -> Parcel:
        """A step with one tensor, and a number."""
        parcel = parcel_of(step, name, size)
        self.delivery.send(parcel)
        return parcel

    def _open(self, ranks: Ranks) -> None:
        self.found()
        self.streams.open(ranks)


def test_steps_that_wait_are_bounded_and_those_beyond_are_a_gap() -> None:
    line = Line()
    parcels = [line.send(step) for step in range(40)]
    assert sum(parcel.is_read for parcel in parcels) == HELD - MOST
    assert line.telling.counters["steps_dropped"] == 40 - HELD
    assert line.telling.take_lost() == [
        Gap(first_step=HELD, last_step=39, frames=40 - HELD, cause=FULL)
    ]
    line.delivery.finish(5)
    assert line.frames == HELD
    assert line.delivery.lost == 40 - HELD


def test_a_step_that_its_reader_left_is_read_by_the_other_thread() -> None:
    interrupts = [KeyboardInterrupt()]

    def found() -> None:
        if interrupts:
            raise interrupts.pop()

    line = Line(mesh=Mesh(np.array(jax.devices()[:1]), ("dp",)), found=found)
    for step in range(MOST):
        line.send(step)
    with pytest.raises(KeyboardInterrupt):
        line.send(MOST)
    line.delivery.finish(5)
    assert line.frames == MOST + 1
    assert line.delivery.lost == 0


def test_where_nothing_can_be_told_steps_are_lost_and_training_goes_on() -> None:
    def found() -> None:
        raise RuntimeError("no device")

    line = Line(found=found)
    parcels = [line.send(step) for step in range(40)]
    assert sum(not parcel.telemetry.is_empty for parcel in parcels[:HELD]) == MOST
    line.delivery.finish(5)
    assert line.delivery.lost == 40
    assert "no device" in line.telling.take_reports()[0]


def test_a_step_whose_frame_cannot_be_made_is_a_gap() -> None:
    line = Line()
    line.send(0)
    line.send(1, name="\ud800")
    line.delivery.attend()
    assert line.frames == 1
    assert line.delivery.lost == 1
    assert line.telling.take_lost() == [Gap(first_step=1, last_step=1, frames=1, cause=UNSENT)]
    assert "Step 1 could not be sent: UnicodeEncodeError" in line.telling.take_reports()[0]


def test_a_step_whose_numbers_are_deleted_is_told() -> None:
    line, parcel = Line(), parcel_of(0)
    jax.tree.map(lambda leaf: leaf.delete(), parcel.telemetry)
    line.delivery.send(parcel)
    line.delivery.finish(5)
    assert line.frames == 1
    assert line.telling.counters["hook_errors"] == 1


def test_the_last_step_does_not_wait_for_those_before() -> None:
    line = Line()
    parcels = [line.send(step) for step in range(MOST)]
    line.delivery.put(parcel_of(MOST))
    assert not any(parcel.is_read for parcel in parcels)


def test_what_is_not_computed_is_counted_by_device() -> None:
    line = Line(mesh=Mesh(np.array(jax.devices()[:2]), ("dp",)))
    line.send(0)
    line.delivery.attend()
    line.send(1)
    line.delivery.finish(-1)
    assert line.delivery.lost == 2
    line.delivery.attend()
    assert line.frames == 2


def test_our_own_programs_are_compiled_once_whatever_is_due(
    caplog: pytest.LogCaptureFixture,
) -> None:
    due, line = Due(), Line(in_program=True)
    with jax.log_compiles():
        for step, kinds in enumerate(("weight", "tap", "weight_gradient")):
            due.turn_to([kinds])
            line.send(step, size=77)
            line.delivery.attend()
    due.turn_to(())
    lines = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("Compiling jit(sketch_pieces)") for line in lines) == 1
