"""A training process ends as it would without the agent, and what is stored is not spoilt."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from rankscope.agent import RankscopeWarning
from rankscope.agent.jax import AlertSummary, observe
from rankscope.sketch import AddressError, SettingError, derive, sketch_array
from rankscope.store import open_run

from ..conftest import Observed
from .conftest import Watch

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ended(collector: tuple[str, Path]) -> Observed:
    """The run of a job that forks, deletes what it gave, and never leaves its block."""
    address, store = collector
    job = HERE / "ends_job.py"
    command = [sys.executable, str(job), address, "jax-ends"]
    subprocess.check_call(command, stderr=subprocess.DEVNULL, timeout=120)
    return Observed(address, store / "jax-ends")


def test_an_error_goes_through_and_is_told(watch: Watch, observed: Observed) -> None:
    def train() -> None:
        with watch() as scope:
            for number in range(4):
                scope.step(scope.sketch(weights={"w": jnp.full(5, number, jnp.float32)}))
                if number == 2:
                    raise ValueError("of the user's own")

    with pytest.raises(ValueError, match="of the user's own"):
        train()
    assert observed.steps() == [0, 1, 2, 3]
    assert observed.reports() == "Training ended in step 3: ValueError: of the user's own."


@pytest.mark.parametrize("moment", ["0.01", "1.5", "begin"])
def test_a_block_that_was_not_entered_leaves_nothing_behind(tmp_path: Path, moment: str) -> None:
    command = [sys.executable, str(HERE / "entry_job.py"), str(tmp_path), moment]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=200)
    run = open_run(tmp_path / "runs" / "entered")

    assert json.loads(done.stdout) == []
    assert run.records()["step"].tolist() == [0, 1, 2]
    assert not run.ending.is_bad
    told = ["ended early in step 0: KeyboardInterrupt"]
    can_be = {"0.01": [[]], "1.5": [[], told]}  # it may have said hello
    assert [one.text for one in run.ending.earlier] in can_be.get(moment, [told])


def test_a_block_that_is_never_left_is_left_at_exit(ended: Observed) -> None:
    assert ended.steps() == [0, 1, 2, 3, 4]
    assert "The process ended in step 4, in the middle of the block." in ended.reports()


def test_a_forked_child_says_nothing(ended: Observed) -> None:
    assert ended.means("weight", "w") == {0: 0.0, 1: 1.0, 3: 3.0}
    told = {line.partition(" could not be read:")[0] for line in ended.reports().splitlines()}
    assert told == {"Step 2", "The process ended in step 4, in the middle of the block."}


def test_where_nobody_can_be_told_is_refused_at_once() -> None:
    with pytest.raises(AddressError, match="An address looks like"):
        observe(run="alone", to="head-node:7600")
    with pytest.raises(SettingError, match="has a host and a port"):
        observe(run="alone", to="tcp://*:7600")


def test_what_is_deleted_before_it_is_read_is_told(ended: Observed) -> None:
    assert ended.means("weight", "w") == {0: 0.0, 1: 1.0, 3: 3.0}
    assert "Step 2 could not be read: RuntimeError: Array has been deleted" in ended.reports()


def test_nobody_to_send_to_costs_a_warning_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.agent.block.CLOSE_S", 1.0)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        scope = observe(run="alone", to=address).__enter__()
        for _ in range(2):
            scope.step(scope.sketch(weights={"w": jnp.ones(3)}))
        with pytest.warns(
            RankscopeWarning, match="2 of 2 frames of rank telemetry were not"
        ) as told:
            scope.__exit__(None, None, None)
    assert told[0].filename == __file__


def test_that_nobody_answers_is_logged_once_for_all_devices(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rankscope.agent.block.CLOSE_S", 1.0)
    monkeypatch.setattr("rankscope.agent.outbox.ALONE_S", 0.2)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        mesh = Mesh(np.array(jax.devices()), ("dp",))
        with observe(run="alone", to=address, mesh=mesh):
            deadline = time.monotonic() + 20
            while not caplog.messages and time.monotonic() < deadline:
                time.sleep(0.05)
    told = [text for text in caplog.messages if text.startswith("No collector has answered")]
    assert len(told) == 1


def test_alerts_are_told_to_the_training(watch: Watch) -> None:
    heard = list[AlertSummary]()
    with watch() as scope:
        scope.on_alert(heard.append)
        step = jax.jit(lambda w: scope.sketch(weights={"w": w}))
        deadline = time.monotonic() + 20
        while not heard and time.monotonic() < deadline:
            scope.step(step(jnp.array([1.0, np.nan])))
            time.sleep(0.05)
    assert heard[0].site == "weight:w"


def test_two_processes_send_their_own_devices(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    job = HERE / "processes_job.py"
    command = [sys.executable, str(job), port]
    processes = [
        subprocess.Popen([*command, str(number), "two", str(tmp_path)]) for number in range(2)
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    run, deadline = open_run(tmp_path / "two"), time.monotonic() + 45
    while not open_run(tmp_path / "two").finished:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    labels, merged = run.table(2)
    exact = sketch_array(np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32))
    weights = merged.take([labels.index("weight:w")])
    assert np.array_equal(weights.counts, exact.counts)
    assert np.array_equal(weights.checksum, exact.checksum)
    assert run.ranks("l2", site="weight:w", steps=2).sizes["rank"] == 8
    assert run.records()["complete"].tolist() == [True] * 3
    assert run.alerts()["text"].tolist() == []
    one, other = (json.loads((tmp_path / f"found{number}.json").read_text()) for number in range(2))
    assert one == other
    assert one["own"] == {"w": 128, "batch": 64}
    samples = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
    expected = {"w": derive(exact, "l1")[0], "batch": derive(sketch_array(samples), "l1")[0]}
    assert one["across"] == pytest.approx(expected, rel=1e-12)
