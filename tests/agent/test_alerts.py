"""What an agent does when the collector found something wrong."""

from __future__ import annotations

import re
import time
from itertools import count
from typing import TYPE_CHECKING

import pytest
import torch
import zmq
from torch import nn

from rankscope.agent import RankscopeWarning
from rankscope.agent.torch import AlertSummary, Scope, observe
from rankscope.store import open_run
from rankscope.wire import (
    PROTOCOL,
    Alerts,
    FrameHeader,
    Hello,
    Welcome,
    decode,
    encode,
)

if TYPE_CHECKING:
    from conftest import Observed

STEP_S = 0.02
FOUND = AlertSummary(
    rule="nonfinite",
    severity="error",
    site="tap:x",
    ranks=[7],
    step=3,
    value=1.0,
    threshold=0.0,
    text="It is not finite.",
)


def test_the_training_is_told_and_looked_at_in_detail(observed: Observed) -> None:
    """A fault in a step that was sketched; all steps of a while after it are, too."""
    heard = list[tuple[int, AlertSummary]]()
    with observed.observe(nn.Linear(2, 2), kinds=["tap"], every=50) as scope:

        @scope.on_alert
        def _(alert: AlertSummary) -> None:
            heard.append((step, alert))

        for step in range(400):
            scope.tap("x", torch.full((2,), torch.nan if step >= 50 else 1.0))
            time.sleep(STEP_S)
            scope.step()
    run = open_run(observed.path)
    [asked] = run.events().query("kind == 'closer-look'")["text"]
    often = [step for step in observed.steps() if step % 50]

    assert [(alert.rule, alert.site, alert.step) for _, alert in heard] == [
        ("nonfinite", "tap:x", 50)
    ]
    assert 50 < heard[0][0] < 200
    first, last = map(int, re.findall(r"sketch all sites in steps (\d+) to (\d+)", asked)[0])
    assert last - first == 7
    assert often == [step for step in range(first, last + 1) if step % 50]


def test_a_callback_that_fails_is_told_and_training_goes_on(
    observed: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    heard = list[str]()
    scope = observed.observe(nn.Linear(2, 2), kinds=["tap"])

    @scope.on_alert
    def _(alert: AlertSummary) -> None:
        heard.append(alert.site)
        raise ValueError(alert.rule)

    with scope:
        for step in range(120):
            names = [name for name, since in (("x", 10), ("y", 80)) if step >= since]
            for name in names:
                scope.tap(name, torch.full((2,), torch.nan))
            time.sleep(STEP_S)
            scope.step()

    assert heard == ["tap:x"]
    assert "failed, and is not called again: ValueError: nonfinite." in observed.reports()
    assert "is not called again" in caplog.text


def test_steps_that_were_kept_are_sent_when_another_rank_is_in_trouble(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A collector that is played says so: there is no fault on this rank."""
    monkeypatch.setattr("rankscope.agent.block.CLOSE_S", 0.5)  # of no frame it says it is stored
    with zmq.Context() as context, context.socket(zmq.ROUTER) as collector:
        collector.linger = 0
        port = collector.bind_to_random_port("tcp://127.0.0.1")
        scope = observe(
            nn.Linear(2, 2),
            run="away",
            to=f"tcp://127.0.0.1:{port}",
            kinds=["tap"],
            every=100,
            ring=5,
        )
        with pytest.warns(RankscopeWarning, match="were not stored"):
            headers = frames_of(scope, collector)
    steps = [header.step for header in headers]
    kept = [header.step for header in headers if header.kept]
    detail = [step for step in steps if step > kept[-1]]

    assert steps[0] == 0, "as scheduled"
    assert kept == list(range(kept[0], kept[0] + 5))
    assert detail == [60, 61, 62]


def frames_of(scope: Scope, collector: zmq.Socket[bytes]) -> list[FrameHeader]:
    """Train for 70 steps, and be told of an alert after the 20th; what comes."""
    headers = list[FrameHeader]()
    welcome = Welcome(
        protocol=PROTOCOL, attempt=0, committed=-1, credit_frames=1000, credit_bytes=1 << 30
    )
    told = Alerts(alerts=[FOUND], send_ring=True, detail_from=60, detail_steps=3)

    def read(timeout_ms: int) -> None:
        while collector.poll(timeout_ms):
            peer, head, *_ = collector.recv_multipart()
            message = decode(head, "agent")
            if isinstance(message, Hello):
                collector.send_multipart((peer, encode(welcome)))
                peers.append(peer)
            elif isinstance(message, FrameHeader):
                headers.append(message)

    peers, steps = list[bytes](), count()
    with scope:
        while not peers:
            read(20)
        for step in steps:
            scope.tap("x", torch.ones(2))
            scope.step()
            time.sleep(STEP_S)
            read(0)
            if step == 20:
                collector.send_multipart((peers[-1], encode(told)))
            if step == 70:
                break
        read(300)
    return headers
