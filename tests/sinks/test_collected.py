"""A real collector with sinks: each hears what is stored, and none delays the store."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rankscope.sinks import Ended, Feed, News, Numbers, Sinks, Trouble
from rankscope.store import open_run

from ..collector.serving import (
    QUICK,
    close_all,
    outbox,
    send,
    serving,
    start_with_health,
    stop_collectors,
    wait_until,
)
from .reading_wandb import history
from .telling import Listener
from .test_tensorboard import read
from .test_webhook import answering

JOB = """
import torch
from rankscope.agent.torch import observe

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
with observe(model, optimizer, run="job") as scope:
    for _ in range(5):
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        scope.step(loss=loss)
        optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def no_collector_stays() -> Iterator[None]:
    """Whatever happens to a test."""
    yield
    stop_collectors()


def metrics(where: dict[str, str]) -> dict[str, float]:
    """Name, and labels in the order of the alphabet, as one string."""
    with urllib.request.urlopen(f"{where['health']}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        " ".join(
            [sample.name, *(value for _, value in sorted(sample.labels.items()))]
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def counters(where: dict[str, str]) -> dict[str, Any]:
    with urllib.request.urlopen(f"{where['health']}/counters", timeout=10) as answer:
        return json.load(answer)


def test_every_sink_hears_what_a_job_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    with answering(200) as server:
        monkeypatch.setenv("RANKSCOPE_WEBHOOK", server.url)
        asked = (f"jsonl:{tmp_path / 'news.jsonl'}", f"tensorboard:{tmp_path / 'board'}")
        kinds = (*asked, "wandb:numerics", "webhook", "prometheus")
        options = [option for kind in kinds for option in ("--sink", kind)]
        process, where = start_with_health(tmp_path, *options)
        boxes = [outbox(where["address"], rank, 2) for rank in range(2)]
        for step in range(10):
            for rank, box in enumerate(boxes):
                weight = 1.0 + (rank if 4 <= step < 7 else 0)  # copies that differ
                send(box, [step], weight=weight, health={"stretch": float(rank)})
        assert close_all(boxes) == [True] * 2
        wait_until(lambda: metrics(where).get("rankscope_step demo") == 9)
        wait_until(lambda: counters(where)["records"] == 10)
        found = metrics(where)
        wait_until(lambda: server.posted and server.posted[-1]["rankscope"]["last_step"] == 6)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)

    assert process.returncode == 0
    assert "The sink " not in log
    assert found["rankscope_training loss demo"] == 9
    assert found["rankscope_statistic weight demo rms"] == 1
    assert found["rankscope_agent stretch demo"] == 1
    assert found["rankscope_alerts_total replica-divergence demo"] == 1
    assert found["rankscope_alerts_firing replica-divergence demo"] == 0
    assert found["rankscope_collector_frames_total"] == 20
    assert 0 < found["rankscope_collector_lag_seconds"] < 10
    assert 0 < found["rankscope_collector_commit_seconds"] < 10
    assert found["rankscope_collector_resident_bytes"] > 1e7
    assert found["rankscope_collector_lost_frames_total"] == 0

    # One that is over before it could be told is told once.
    assert [one["rankscope"]["state"] for one in server.posted][-1] == "is over"
    assert len(server.posted) <= 2
    said = ": error replica-divergence. Copies of weight:fc differ"
    assert server.posted[-1]["text"].startswith(f"demo, step 4, over since step 6{said}")

    lines = [json.loads(line) for line in (tmp_path / "news.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["event"] == "numbers"]
    assert [line["step"] for line in told] == list(range(10))
    assert told[3]["numbers"]["training/loss"] == 3
    assert told[3]["numbers"]["activation/all/count"] == 16
    assert told[3]["numbers"]["pipeline/frames"] >= 0
    assert [line["state"] for line in lines if line["event"] == "alert"] == ["begins", "ends"]
    assert lines[-1] == {"event": "ended", "run": "demo"}

    board = read(tmp_path / "board" / "demo" / "attempt-0")
    assert [one.step for one in board.Scalars("training/loss")] == list(range(10))
    [file] = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    logged = [line for line in history(file) if "training/loss" in line]
    assert [line["step"] for line in logged] == list(range(10))


def test_that_a_rank_is_lost_or_ended_early_is_told_to_sinks(tmp_path: Path) -> None:
    listener = Listener()
    sinks = Sinks([Feed("listener", listener)])
    settings = replace(QUICK, joiner=replace(QUICK.joiner, lost_after_s=1.0))
    with serving(tmp_path, settings, sinks=sinks) as service:
        stays, dies = (outbox(service.address, rank, 2) for rank in range(2))
        step = 0
        while dies.statistics().acknowledged < 3:
            send(stays, [step])
            send(dies, [step] if step < 3 else [])
            dies.poll(time.monotonic())
            step += 1
        while not any(isinstance(one, Trouble) for one in listener.heard):
            send(stays, [step], pause_s=0.05)
            step += 1
        send(stays, [step], reports=["Training ended in step 9: RuntimeError: closed by peer."])
        assert stays.close(timeout_s=20)
        dies.close(timeout_s=0.0)
    sinks.close()

    lost, ended = (one for one in listener.heard if isinstance(one, Trouble))
    assert (lost.kind, lost.ranks, lost.step) == ("ranks-lost", (1,), 2)
    assert lost.text == "Ranks lost: 1 (last seen in step 2)."
    assert (ended.kind, ended.ranks) == ("ended-early", (0,))
    assert ended.text == "Ended early in step 9: RuntimeError: closed by peer."


def test_what_sinks_hear_is_what_the_store_answers(tmp_path: Path) -> None:
    news = tmp_path / "news.jsonl"
    process, where = start_with_health(tmp_path, "--until-done", "--sink", f"jsonl:{news}")
    boxes = [outbox(where["address"], rank, 2) for rank in range(2)]
    for rank, box in enumerate(boxes):
        send(box, range(3), value=1.0 + rank)
    assert close_all(boxes) == [True] * 2
    assert process.wait(30) == 0
    run = open_run(tmp_path / "demo")
    lines = [json.loads(line) for line in news.read_text().splitlines()]

    for line in (line for line in lines if line["event"] == "numbers"):
        for statistic in ("rms", "l2", "abs_max", "skewness"):
            stored = run.scalar(statistic).sel(step=line["step"], site="activation:fc").item()
            told = line["numbers"][f"activation/{statistic}"]
            assert told == pytest.approx(stored, rel=1e-6), statistic
        formats = run.formats(site="activation:fc", step=line["step"])
        for name in ("float16", "float8_e4m3fn"):
            for question in ("underflow", "overflow"):
                told = line["numbers"][f"activation/{question}/{name}"]
                assert told == pytest.approx(formats.loc[name, question])


def test_tables_come_seldom(tmp_path: Path) -> None:
    news = tmp_path / "news.jsonl"
    process, where = start_with_health(tmp_path, "--until-done", "--sink", f"jsonl:{news}")
    box = outbox(where["address"])
    send(box, range(2))
    assert box.close(timeout_s=15)
    assert process.wait(30) == 0
    tables = [line for line in map(json.loads, news.read_text().splitlines()) if "sites" in line]

    assert [(table["step"], set(table["sites"])) for table in tables] == [
        (0, {"activation:fc", "weight:fc"})
    ]


def test_an_alert_goes_out_while_nothing_can_be_stored(tmp_path: Path) -> None:
    with answering(200) as server:
        process, where = start_with_health(tmp_path, "--sink", f"webhook:{server.url}")
        boxes = [outbox(where["address"], rank, 2) for rank in range(2)]
        for box in boxes:
            send(box, [0])
        wait_until(lambda: _poll(boxes) and counters(where)["records"] == 1)
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))
        began = time.monotonic()
        for rank, box in enumerate(boxes):
            send(box, [1], weight=1.0 + rank)
        wait_until(lambda: _poll(boxes) and server.posted)
        took_s = time.monotonic() - began
        assert counters(where)["records"] == 1
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert close_all(boxes) == [True] * 2

    assert took_s < 4.0  # 2 s, and what this machine is busy with


def _poll(boxes: list[Any]) -> bool:
    for box in boxes:
        box.poll(time.monotonic())
    return True


def test_sinks_that_hang_or_fail_delay_nothing(tmp_path: Path) -> None:
    go_on, steps = threading.Event(), 100

    def hang(news: News) -> None:
        go_on.wait(60)

    def fail(news: News) -> None:
        raise OSError("no")

    well = Listener()
    sinks = Sinks(
        [
            Feed("hangs", Listener(hang), most=8),
            Feed("fails", Listener(fail), pauses_s=(0.001,)),
            Feed("well", well),
        ]
    )
    with serving(tmp_path, sinks=sinks) as service:
        began = time.monotonic()
        box = outbox(service.address)
        send(box, range(steps))
        assert box.close(timeout_s=30)
        took_s = time.monotonic() - began
        wait_until(lambda: service.health.sinks["hangs"].dropped)
    wait_until(lambda: sinks.counts()["fails"].dropped >= steps)
    wait_until(lambda: len(well.steps()) == steps)
    counts = sinks.counts()
    began = time.monotonic()
    sinks.close(timeout_s=0.5)
    closing_s = time.monotonic() - began
    go_on.set()

    assert took_s < 10.0
    assert closing_s < 2.0
    assert well.steps() == list(range(steps))
    assert counts["hangs"].dropped >= steps - 9
    assert counts["fails"].retried >= steps
    assert len(open_run(tmp_path / "demo").records()) == steps


def test_a_server_of_wandb_that_hangs_keeps_nothing_from_beginning_or_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections, and is silent
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        news = tmp_path / "news.jsonl"
        kinds = ("--sink", "wandb:numerics", "--sink", f"jsonl:{news}")
        process, where = start_with_health(tmp_path, *kinds)
        box = outbox(where["address"])
        send(box, range(20))
        assert box.close(timeout_s=15)
        wait_until(lambda: counters(where)["sinks"]["jsonl"]["delivered"] >= 20)
        assert counters(where)["sinks"]["wandb"]["delivered"] == 0
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)

    assert process.returncode == 0
    assert time.monotonic() - began < 15.0
    assert "The sink wandb hangs: " in log
    assert len(open_run(tmp_path / "demo").records()) == 20


def test_each_start_of_a_job_is_told_as_such(tmp_path: Path) -> None:
    sink = Listener()
    for launch in ("one", "two"):
        sinks = Sinks([Feed("it", sink)])
        with serving(tmp_path, sinks=sinks) as service:
            box = outbox(service.address, launch=launch, stream=launch)
            send(box, range(2))
            assert box.close(timeout_s=15)
        sinks.close()

    told = [
        (one.attempt, one.launch, one.step) if isinstance(one, Numbers) else type(one)
        for one in sink.heard
    ]
    first = [(0, "one", 0), (0, "one", 1), Ended]
    assert told == [*first, (1, "two", 0), (1, "two", 1), Ended]


def test_the_collector_that_a_job_starts_has_sinks_by_the_environment(tmp_path: Path) -> None:
    news = tmp_path / "news.jsonl"
    environment = {**os.environ, "RANKSCOPE_SINKS": f"jsonl:{news} tensorboard:{tmp_path / 'tb'}"}
    command = [sys.executable, "-c", JOB]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    wait_until(lambda: '"ended"' in news.read_text(), timeout_s=30)
    lines = [json.loads(line) for line in news.read_text().splitlines()]
    told = [line for line in lines if line["event"] == "numbers"]

    assert [line["step"] for line in told][:5] == list(range(5))
    assert told[4]["numbers"]["weight/all/count"] == 4 * 8 + 8 + 8 + 1
    assert told[4]["numbers"]["optimizer_state.exp_avg/rms"] > 0
    assert next(line["step"] for line in lines if line["event"] == "table") == 0
    found = read(tmp_path / "tb" / "job" / "attempt-0")
    assert found.Scalars("training/loss")[0].value == pytest.approx(
        told[0]["numbers"]["training/loss"]
    )
