"""A training process may end in any way, at any moment: as it would without the agent, and nothing
that is stored is spoilt."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from rankscope.agent.torch import leave_scopes, observe
from rankscope.sketch.errors import SettingError
from rankscope.store import Run, open_run

from .served import is_served

pytestmark = pytest.mark.timeout(900)  # on a busy machine: some eighty processes

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("ends_job.py")
BEFORE, SITES = 3, 18
"""Steps that are durable when a job ends, and the sites of each."""
CLOSE_S = 15.0
"""Leaving the block waits so long at most."""
SLACK_S = 30.0
"""A busy machine may take so much longer."""

Kept = Literal["all", "partial", "durable", "nothing"]
"""What of the last step is stored: all, and the last weights; what there was of it, and why it
ended; or only what was durable already, and that the rank is gone. Nothing: it sent nothing."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a job ends."""

    code: int = 0
    kept: Kept = "all"
    said: str = ""
    """What the run says of it."""
    to: Literal["collector", "nobody", "own"] = "collector"
    """Where it sends: `own` is one that it starts itself."""


def ended_with(text: str) -> str:
    """What is told where an error leaves the block."""
    return f"Training ended in step 3: {text}."


ERROR = Way(code=1, kept="partial", said=ended_with("ValueError: of the user's own"))
PREEMPTED = replace(ERROR, said=ended_with("Preempted: time is up"))
INTERRUPTED = Way(code=-2, kept="partial", said=": KeyboardInterrupt.")
GONE = Way(kept="durable", said="Rank 0 was silent for 6 s")
NEVER_LEFT = Way(kept="partial", said="The process ended in step 4, in the middle of the block.")
WAYS = {
    "return": Way(),
    "sys.exit": Way(code=3, kept="partial", said=ended_with("SystemExit: 3")),
    "error in forward": ERROR,
    "error in backward": ERROR,
    "error in a hook": ERROR,
    "error between steps": ERROR,
    "SIGINT in forward": INTERRUPTED,
    "SIGINT while the agent works": INTERRUPTED,
    "SIGINT while the block is left": Way(code=-2, kept="nothing", to="nobody"),
    "nobody to send to": Way(kept="nothing", to="nobody"),
    "SIGTERM": replace(GONE, code=-15),
    "SIGTERM, sys.exit": Way(code=5, kept="partial", said=ended_with("SystemExit: 5")),
    "SIGTERM, an error": PREEMPTED,
    "SIGTERM, an error in the agent": PREEMPTED,
    "alarms at any moment": Way(),
    "SIGKILL": replace(GONE, code=-9),
    "os._exit": replace(GONE, code=4),
    "os.abort": replace(GONE, code=-6),
    "a crash": replace(GONE, code=-11),
    "exec": replace(GONE, code=7),
    "fork, os._exit": Way(),
    "fork, sys.exit": Way(),
    "fork, an error": Way(),
    "fork, train on": Way(),
    "fork, outlive": Way(),
    "fork, observe": Way(),
    "multiprocessing fork": Way(),
    "multiprocessing spawn": Way(),
    "DataLoader fork": Way(),
    "DataLoader spawn": Way(),
    "a daemon thread trains": Way(kept="partial", said=", in the middle of the block."),
    "in a thread": Way(),
    "entered twice": Way(),
    "left twice": Way(),
    "never left": NEVER_LEFT,
    "never left, an error": replace(
        NEVER_LEFT,
        code=1,
        said="in step 4, in the middle of the block: ValueError: of the user's own.",
    ),
    "never left, several, nobody to send to": Way(kept="nothing", to="nobody"),
    "never left, train at exit": replace(
        NEVER_LEFT, said="The process ended in step 5, in the middle of the block."
    ),
    "dropped": NEVER_LEFT,
    "wait for children": Way(to="own"),
    "at once": Way(code=6, kept="nothing", to="own"),
}
"""As in `ends_job.WAYS`. The codes are those of Python and of the kernel."""


@dataclass(frozen=True)
class Ended:
    """What is left of a job, and of the same that nobody observed."""

    code: int
    seconds: float
    left: int
    said: str
    plain_code: int
    plain_seconds: float
    plain_said: str
    path: Path
    counted: dict[str, Any] | None

    @property
    def run(self) -> Run:
        """What is stored."""
        return open_run(self.path)


def name_of(way: str) -> str:
    """Of its run."""
    return re.sub(r"\W+", "-", way)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Every job, once observed and once not."""
    folder = tmp_path_factory.mktemp("ends")
    command = [sys.executable, "-m", "rankscope", "collect", "--bind", "tcp://127.0.0.1:*"]
    command += ["--store", str(folder / "store"), "--announce"]
    command += ["--lost-after", "6", "--deadline", "2"]
    collector = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert collector.stdout is not None
    with collector.stdout as said:
        address = json.loads(said.readline())["address"]
    found = zygote(folder, address)
    collector.terminate()
    assert collector.wait(60) == 0
    return {way: ended(folder, way, found) for way in WAYS}


def zygote(folder: Path, address: str) -> dict[str, dict[str, Any]]:
    """Run all jobs; by name what came of them."""
    addresses = {"collector": address, "nobody": "tcp://127.0.0.1:9", "own": None}
    requests = [
        {"name": name, "way": way, "to": addresses[WAYS[way].to], "observed": observed}
        for way in sorted(WAYS, key=lambda way: WAYS[way].to, reverse=True)  # these take longest
        for name, observed in ((name_of(way), True), (f"plain-{name_of(way)}", False))
    ]
    # From Python 3.12 on it warns of each fork where there are threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(JOB), str(folder)]
    done = subprocess.run(
        command,
        input="\n".join(map(json.dumps, requests)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = map(json.loads, done.stdout.splitlines())
    return {one["name"]: one for one in lines}


def ended(folder: Path, way: str, found: dict[str, dict[str, Any]]) -> Ended:
    """What is left of it."""
    name = name_of(way)
    one, plain = found[name], found[f"plain-{name}"]
    counted = folder / f"{name}.json"
    return Ended(
        code=one["code"],
        seconds=one["seconds"],
        left=one["left"] + plain["left"],
        said=said_in(folder / f"{name}.txt"),
        plain_code=plain["code"],
        plain_seconds=plain["seconds"],
        plain_said=said_in(folder / f"plain-{name}.txt"),
        path=folder / ("embedded" if WAYS[way].to == "own" else "store") / name,
        counted=json.loads(counted.read_text()) if counted.exists() else None,
    )


def said_in(file: Path) -> str:
    """The last words of a job, if these are of an error."""
    lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines and re.match(r"\w+(: |$)", lines[-1]) else ""


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> str:
    """One of them."""
    return request.param


def test_it_ends_as_without_the_agent(jobs: dict[str, Ended], way: str) -> None:
    job, expected = jobs[way], WAYS[way]

    if way != "a daemon thread trains":  # then torch aborts now and then, at the very end
        assert (job.code, job.said) == (expected.code, job.plain_said)
        assert job.plain_code == expected.code
    assert job.code in (expected.code, -6)
    assert job.seconds < job.plain_seconds + CLOSE_S + SLACK_S, "it hung"
    assert job.left == 0, "a process was left behind"


def test_what_was_durable_is_there_once_and_what_is_not_was_counted(
    jobs: dict[str, Ended], way: str
) -> None:
    job, expected = jobs[way], WAYS[way]
    if expected.kept == "nothing":
        assert job.counted is None or job.counted["acknowledged"] == 0
        return
    records, gaps = job.run.records(all_attempts=True), job.run.gaps()
    steps = records["step"].tolist()

    assert steps[:BEFORE] == list(range(BEFORE))
    assert len(set(steps)) == len(steps), "a step is there twice"
    ends = zip(gaps["first_step"], gaps["last_step"], strict=True)
    lost = [step for first, last in ends for step in range(first, last + 1)]
    assert sorted(lost) == sorted(set(range(max(steps))) - set(steps))
    assert len(lost) == sum(gaps["frames"])
    assert records["sites"].tolist()[:BEFORE] == [SITES] * BEFORE
    counts = job.run.scalar("count", sites="activation:0").values[:BEFORE, 0]
    assert counts.tolist() == [8.0] * BEFORE
    if job.counted is not None:
        texts = job.run.events()["text"].tolist()
        twice = sum("No tensor was seen" in text for text in texts)  # what there was, and then all
        assert job.counted["acknowledged"] <= len(steps) + twice
        assert job.counted["dropped_frames"] == 0


def test_the_run_says_how_it_ended(jobs: dict[str, Ended], way: str) -> None:
    job, expected = jobs[way], WAYS[way]
    if expected.kept == "nothing":
        return
    records, told = job.run.records(), job.run.events()["text"].tolist()
    *whole, last = records["sites"].tolist()

    assert records["final"].tolist() == [False] * len(whole) + [expected.kept == "all"]
    assert any(expected.said in text for text in told) or not expected.said, told
    assert any("was silent" in text for text in told) == (expected.kept == "durable")
    assert job.run.ending.is_bad == (expected.kept != "all")
    if expected.kept == "all":
        assert whole[-1] == SITES, "and after what interrupted it everything is recorded"
        assert (last, job.counted and job.counted["pending_frames"]) == (4, 0)


def test_a_child_that_observes_has_a_run_of_its_own(jobs: dict[str, Ended]) -> None:
    path = jobs["fork, observe"].path
    records = open_run(path.with_name(f"{path.name}-child")).records()

    assert records["step"].tolist() == [*range(BEFORE + 1)]
    assert all(records["complete"].tolist())


def test_collectors_of_jobs_end_by_themselves(jobs: dict[str, Ended]) -> None:
    for way in (way for way, how in WAYS.items() if how.to == "own"):
        until = time.monotonic() + 90
        while is_served(jobs[way].path.parent, jobs[way].path.name):
            assert time.monotonic() < until, way
            time.sleep(0.2)
        assert jobs[way].run.finished


def entered(folder: Path, moment: str) -> Any:
    """What is left of a block that is interrupted as it is entered, see `entry_job`."""
    command = [sys.executable, "-m", "tests.agent.entry_job", str(folder), moment]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("moment", ["0.01", "1.5", "begin", "exit"])
def test_a_block_that_was_not_entered_leaves_nothing_behind(tmp_path: Path, moment: str) -> None:
    found = entered(tmp_path, moment)
    run = open_run(tmp_path / "runs" / "entered")

    assert (found["hooks"], found["threads"]) == (0, 0)
    assert found["gone_s"] < SLACK_S, "its collector stays"
    assert run.records()["step"].tolist() == [0, 1, 2, 3]
    assert not run.ending.is_bad
    told = [
        f"ended early in step 0: {'SystemExit: 3' if moment == 'exit' else 'KeyboardInterrupt'}"
    ]
    can_be = {"0.01": [[]], "1.5": [[], told]}  # kernels are loaded after it has said hello
    assert [one.text for one in run.ending.earlier] in can_be.get(moment, [told])


def test_a_run_that_is_observed_already_is_refused_at_once(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 1)
    observe(model, run="open", directory=tmp_path).__enter__().step()

    with (
        pytest.raises(
            SettingError, match=r"Run 'open' .* rankscope\.agent\.torch\.leave_scopes\(\)"
        ),
        observe(model, run="open", directory=tmp_path),
    ):
        pass
    with observe(model, run="another", directory=tmp_path) as other:
        other.step()
    leave_scopes()
    with observe(model, run="open", directory=tmp_path) as scope:
        scope.step()

    assert len(open_run(tmp_path / "open").attempts) == 2
    assert not open_run(tmp_path / "open").ending.earlier


def test_an_interrupted_import_of_numba_is_not_left_half_done(tmp_path: Path) -> None:
    assert entered(tmp_path, "import")["hooks"] == 0
    assert open_run(tmp_path / "runs" / "entered").records()["step"].tolist() == [0, 1, 2, 3]


def test_a_scope_says_what_it_observes_and_how_far_it_is(tmp_path: Path) -> None:
    scope = observe(torch.nn.Linear(4, 1), run="told", directory=tmp_path)
    said = [repr(scope)]
    with scope:
        scope.step()
        said.append(repr(scope))
    said.append(repr(scope))

    assert said == [
        "<Scope of run 'told' at step 0, new>",
        "<Scope of run 'told' at step 1, open>",
        "<Scope of run 'told' at step 1, closed>",
    ]
