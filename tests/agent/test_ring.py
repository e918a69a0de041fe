"""The ring: what schedules leave out is there when something goes wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import zmq
from torch import nn

from rankscope.agent import RankscopeWarning
from rankscope.agent.ring import MAX_BYTES, NO_ROOM, Ring
from rankscope.agent.torch import observe, tap
from rankscope.sketch import SettingError, SketchTable
from rankscope.store import open_run
from rankscope.wire import (
    PROTOCOL,
    Frame,
    FrameHeader,
    Gap,
    Hello,
    Welcome,
    decode,
    encode,
    pack_frame,
)

if TYPE_CHECKING:
    from conftest import Observed

Train = Callable[..., list[float]]


def new_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def batches(count: int, bad: int | None = None, value: float = torch.inf) -> list[torch.Tensor]:
    torch.manual_seed(1)
    made = [torch.randn(3, 4) for _ in range(count)]
    if bad is not None:
        made[bad][1, 0] = value
    return made


def test_the_steps_before_a_fault_are_there_in_full(
    new_observed: Callable[[], Observed], train: Train
) -> None:
    model, optimizer = new_model()
    observed = new_observed()
    with observed.observe(model, optimizer, every=10, ring=4) as scope:
        train(scope, model, optimizer, batches(12, bad=7))
    assert observed.steps() == [0, 3, 4, 5, 6, 7, 8, 10, 12]  # the weights are bad from 8 on
    found = open_run(observed.path).first_bad()
    assert found is not None
    assert (found.site, found.step, found.cause) == ("activation:0", 7, "forward")
    assert "are not finite or overflow, and had none in the steps before" in observed.reports()

    model, optimizer = new_model()
    every = new_observed()
    with every.observe(model, optimizer) as scope:
        train(scope, model, optimizer, batches(12, bad=7))
    for step in observed.steps():
        assert observed.sketches(step) == every.sketches(step)


def test_numbers_beyond_a_format_send_it(observed: Observed, train: Train) -> None:
    model, optimizer = new_model()
    with observed.observe(
        model,
        optimizer,
        kinds=["input"],
        include="^0$",
        every=100,
        ring=2,
        overflow="float8_e4m3fn",
    ) as scope:
        train(scope, model, optimizer, batches(9, bad=4, value=400.0) + batches(3, 1, -500.0))
    assert observed.steps() == [0, 8, 9, 10, 12]


def test_an_error_sends_it(observed: Observed, train: Train) -> None:
    model, optimizer = new_model()
    wrong = [*batches(6), torch.ones(3, 5)]
    with (
        pytest.raises(RuntimeError, match="shapes"),
        observed.observe(model, optimizer, every=100, ring=3) as scope,
    ):
        train(scope, model, optimizer, wrong)
    assert observed.steps() == [0, 3, 4, 5, 6]
    assert open_run(observed.path).records()["partial"].tolist() == [False] * 4 + [True]


class Masked(nn.Module):
    """Has -inf in every forward, as attention masks do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        scores = tap("scores", self.inner(batch).masked_fill(torch.eye(3, 4) > 0, -torch.inf))
        return scores.softmax(dim=1)


def test_what_is_always_so_is_news_once(observed: Observed, train: Train) -> None:
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with observed.observe(model, optimizer, every=100, ring=3) as scope:
        train(scope, model, optimizer, batches(20))
    assert observed.steps() == [0, 20]


def test_sites_that_are_new_in_what_was_kept_are_known(observed: Observed, train: Train) -> None:
    model, optimizer = new_model()
    with observed.observe(model, optimizer, every=100, ring=3, start=41) as scope:
        train(scope, model, optimizer, batches(6, bad=4))
    assert observed.steps() == [42, 43, 44, 45, 46, 47]
    assert "activation:0" in observed.sketches(42)


def test_slow_steps_are_no_reason_to_send_it(observed: Observed, train: Train) -> None:
    model, optimizer = new_model()
    model.register_forward_hook(lambda *_: time.sleep(1.1))
    with observed.observe(model, optimizer, every=100, ring=3) as scope:
        train(scope, model, optimizer, batches(3))
    assert observed.steps() == [0, 3]


def test_what_was_kept_and_comes_late_is_no_rewind(observed: Observed, train: Train) -> None:
    model, optimizer = new_model()
    with observed.observe(model, optimizer, every=5, ring=4) as scope:
        train(scope, model, optimizer, batches(6))
        deadline = time.monotonic() + 20
        while 5 not in observed.steps():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with torch.no_grad():  # as a bad update of step 5 would
            next(model.parameters()).fill_(torch.nan)
        train(scope, model, optimizer, batches(1))
    run = open_run(observed.path)
    assert run.records(all_attempts=True)["step"].tolist() == [0, 5, 1, 2, 3, 4, 6, 7]
    found = run.first_bad()
    assert found is not None
    assert (found.site, found.cause, found.first_step) == ("weight:0.weight", "update", 5)


def test_a_ring_is_bounded_in_steps_and_in_bytes() -> None:
    nothing = Frame(step=0, time_ns=0, sites=np.zeros(0, np.uint32), table=SketchTable.empty(0))
    header, _ = pack_frame(nothing)
    ring = Ring(3)
    for size in (1, 2, 3, 4):
        ring.keep((header, bytes(size)))
    taken = [[len(blob) for _, blob in ring.take()] for _ in range(2)]
    assert (ring.dropped, *taken) == (0, [2, 3, 4], [])
    for size in (MAX_BYTES // 2, MAX_BYTES // 2, 1):
        ring.keep((header, bytes(size)))
    assert (ring.dropped, [len(blob) for _, blob in ring.take()]) == (1, [MAX_BYTES // 2, 1])
    assert ring.take_lost() == [Gap(first_step=0, last_step=0, frames=1, cause=NO_ROOM)]
    assert ring.take_lost() == []


def test_a_ring_tells_as_lost_only_what_it_should_still_hold() -> None:
    ring = Ring(3)
    for step in range(9):
        nothing = Frame(
            step=step, time_ns=0, sites=np.zeros(0, np.uint32), table=SketchTable.empty(0)
        )
        ring.keep((pack_frame(nothing)[0], bytes(MAX_BYTES // 2)))
    assert [header.step for header, _ in ring.take()] == [7, 8]
    assert ring.take_lost() == [Gap(first_step=6, last_step=6, frames=1, cause=NO_ROOM)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ring": -1}, "a number of steps from 0 to 128, got -1"),
        ({"ring": 4, "sentinel": True}, "does not go with `sentinel`, `budget` or `sample`"),
        ({"ring": 4, "budget": 0.01}, "does not go with"),
        ({"ring": 4, "sample": 1 / 8}, "does not go with"),
        ({"ring": 4, "staggered": True}, "one schedule for all kinds"),
        ({"ring": 4, "schedules": {"weight": 3}}, "one schedule for all kinds"),
        ({"overflow": "float16"}, "give ring=16"),
        ({"ring": 4, "overflow": "float17"}, "no number format 'float17'"),
    ],
)
def test_what_does_not_go_together_is_refused(
    observed: Observed, options: dict[str, object], message: str
) -> None:
    model, optimizer = new_model()
    with pytest.raises(SettingError, match=message):
        observed.observe(model, optimizer, **options)


def test_while_nobody_takes_frames_those_of_steps_that_matter_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rankscope.agent.block.CLOSE_S", 0.5)
    steps, bad = 600, 5
    headers = list[FrameHeader]()

    def job(collector: zmq.Socket[bytes], port: int) -> None:
        to = f"tcp://127.0.0.1:{port}"
        with observe(nn.Linear(2, 2), run="away", to=to, kinds=["tap"]) as scope:
            for step in range(steps):
                scope.tap("x", torch.full((2,), torch.nan if step == bad else 1.0))
                scope.step()
                while (now := scope.statistics()).pending_frames + now.dropped_frames <= step:
                    time.sleep(0.001)
            headers.extend(taken_by(collector, steps - 1))

    with zmq.Context() as context, context.socket(zmq.ROUTER) as collector:
        collector.linger = 0
        port = collector.bind_to_random_port("tcp://127.0.0.1")
        with pytest.warns(RankscopeWarning, match="were not stored"):
            job(collector, port)
    kept = [header.step for header in headers]

    assert [header.step for header in headers if header.alarming] == [bad]
    assert max(behind - before for before, behind in pairwise(kept)) < 40
    assert sum(gap.frames for header in headers for gap in header.gaps) == steps - len(kept)


def taken_by(collector: zmq.Socket[bytes], last: int) -> list[FrameHeader]:
    """The headers of all frames up to that step, by a collector that has just come."""
    headers = list[FrameHeader]()
    welcome = Welcome(
        protocol=PROTOCOL, attempt=0, committed=-1, credit_frames=1000, credit_bytes=1 << 30
    )
    while not headers or headers[-1].step < last:
        peer, head, *_ = collector.recv_multipart()
        message = decode(head, "agent")
        if isinstance(message, Hello):
            headers.clear()
            collector.send_multipart((peer, encode(welcome)))
        elif isinstance(message, FrameHeader):
            headers.append(message)
    return headers
