"""What agents take from a file of settings: what a script leaves out."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from rankscope.agent import RankscopeWarning
from rankscope.agent.jax import observe as observe_jax
from rankscope.agent.poptorch import observe as observe_poptorch
from rankscope.agent.settings import AgentSettings
from rankscope.agent.torch import observe
from rankscope.sketch import CastCounts, SettingError
from rankscope.store import Run, open_run

from ..collector.serving import wait_until

OBJECTS = {"model", "optimizer", "options", "scaler", "start"}
"""What no file can say: objects of the framework, and where a job is resumed."""


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes the file of settings of this process."""
    for name in ("RUN", "TO", "RELAY", "KEYS", "DIR"):
        monkeypatch.delenv(f"RANKSCOPE_{name}", raising=False)

    def write(text: str) -> Path:
        file = tmp_path / "rankscope.toml"
        file.write_text(text)
        monkeypatch.setenv("RANKSCOPE_CONFIG", str(file))
        return file

    return write


def train(**options: Any) -> None:
    """Four steps of a small model under observation."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe(model, optimizer, **options) as scope:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            scope.step()


def run_in(folder: Path, name: str) -> Run:
    def has_ended() -> bool:
        return open_run(folder / name).finished

    wait_until(has_ended)
    return open_run(folder / name)


def test_the_log_says_where_the_run_of_an_own_collector_lies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="rankscope"):
        train(run="here", directory=str(tmp_path))

    [said] = [one for one in caplog.messages if one.startswith("A collector has started at tcp://")]
    assert said.endswith(f"; the run lies in {tmp_path / 'here'}.")
    run_in(tmp_path, "here")
    last = caplog.messages[-1]
    assert last.startswith("Run 'here': all ")
    assert "frames of this process are stored (tcp://127.0.0.1:" in last


def test_a_scope_says_whom_it_was_told_to_send_to(
    say: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(2, 2)

    assert observe(model, run="x").destination is None
    say('[agent]\nto = "tcp://file:7600"')
    assert observe(model, run="x").destination == "tcp://file:7600"
    monkeypatch.setenv("RANKSCOPE_TO", "tcp://variable:7600")
    assert observe(model, run="x").destination == "tcp://variable:7600"
    assert observe_jax(run="x").destination == "tcp://variable:7600"


def test_a_file_can_say_what_observe_takes_and_nothing_else() -> None:
    taken: set[str] = set()
    for one in (observe, observe_jax, observe_poptorch):
        taken |= signature(one).parameters.keys()
    assert set(AgentSettings.__struct_fields__) == taken - OBJECTS


def test_what_a_script_leaves_out_is_taken_from_the_file(
    tmp_path: Path, say: Callable[[str], Path]
) -> None:
    say(f"""
        [agent]
        run = "by-file"
        directory = "{tmp_path}"
        every = 2
        kinds = ["weight", "activation"]
        exclude = "bias"
        exact_counts = {{ "weight:" = "cast_counts:float8_e4m3fn" }}

        [collect]
        sink = ["jsonl:{tmp_path}/numbers.jsonl"]
    """)
    train()
    run = run_in(tmp_path, "by-file")
    assert run.records()["step"].tolist()[:2] == [0, 2]
    assert set(run.sites().index) == {
        "weight:0.weight",
        "activation:0",
        "activation:1",
        "activation:(root)",
    }
    counted = run.exact_count(CastCounts("float8_e4m3fn"), site="weight:0.weight")
    assert counted.isel(step=0).values[-1] == 16  # what is not zero
    lines = (tmp_path / "numbers.jsonl").read_text().splitlines()
    assert {json.loads(line)["run"] for line in lines} == {"by-file"}


def test_what_a_script_says_goes_before_the_file(
    tmp_path: Path, say: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(f'[agent]\nrun = "by-file"\ndirectory = "{tmp_path}"\nevery = 2\nkinds = "weight"')
    monkeypatch.setenv("RANKSCOPE_RUN", "by-variable")
    train(every=1, kinds=None)
    run = run_in(tmp_path, "by-variable")
    assert run.records()["step"].tolist()[:4] == [0, 1, 2, 3]
    assert set(run.sites()["kind"]) == {"weight"}
    train(run="by-argument")
    assert run_in(tmp_path, "by-argument").records()["step"].tolist()[:2] == [0, 2]


def test_variables_say_what_the_file_does_not_and_the_script_goes_before_them(
    tmp_path: Path, say: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(f'[agent]\nrun = "by-file"\ndirectory = "{tmp_path}"\nevery = 4\nkinds = "weight"')
    for option, text in {
        "EVERY": "2",
        "KINDS": '["weight", "weight_gradient"]',
        "SCHEDULES": '{weight_gradient = "linear(3)"}',
        "SENTINEL": "0",
        "TRAINING_ONLY": "True",
        "BUDGET": "",
    }.items():
        monkeypatch.setenv(f"RANKSCOPE_AGENT_{option}", text)
    train()
    run = run_in(tmp_path, "by-file")
    assert set(run.sites()["kind"]) == {"weight", "weight_gradient"}
    assert run.records()["step"].tolist()[:3] == [0, 2, 3]
    train(run="by-argument", every=1, kinds="weight")
    assert run_in(tmp_path, "by-argument").records()["step"].tolist()[:3] == [0, 1, 2]


@pytest.mark.parametrize(
    ("start", "option", "text", "said"),
    [
        (train, "EVERY", "often", "RANKSCOPE_AGENT_EVERY: every cannot be 'often': expected `int`"),
        (train, "KINDS", "wieght", "RANKSCOPE_AGENT_KINDS: kinds is one of .*mean weight"),
        (train, "SENTINEL", "maybe", "RANKSCOPE_AGENT_SENTINEL: sentinel cannot be 'maybe'"),
        (train, "SCHEDULES", "{weight = 0}", "RANKSCOPE_AGENT_SCHEDULES: schedules cannot be"),
        (train, "TAPS", "1\n2", "RANKSCOPE_AGENT_TAPS: taps cannot be said of rankscope.agent.tor"),
        (
            observe_jax,
            "RING",
            "3",
            "RANKSCOPE_AGENT_RING: ring cannot be said of rankscope.agent.j",
        ),
    ],
)
def test_a_variable_that_says_what_an_agent_cannot_take_is_told(
    start: Callable[[], object],
    option: str,
    text: str,
    said: str,
    say: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    say("[agent]\nrun = 'x'")
    monkeypatch.setenv(f"RANKSCOPE_AGENT_{option}", text)
    with pytest.raises(SettingError, match=said):
        start()


@pytest.mark.parametrize(
    ("start", "text", "said"),
    [
        (train, "axes = {data = 'dp'}", "axes cannot be said of rankscope.agent.torch"),
        (observe_jax, "ring = 3", "ring cannot be said of rankscope.agent.jax"),
        (observe_jax, "budget = 0.5\nring = 3", "(?s)budget cannot be.*ring cannot be said"),
        (observe_jax, "mesh = {dp = 2}", "mesh cannot be said of rankscope.agent.jax"),
        (train, "evry = 3", r"\[agent\]: there is no 'evry'; did you mean every"),
    ],
)
def test_what_an_agent_cannot_take_is_told(
    say: Callable[[str], Path], start: Callable[[], object], text: str, said: str
) -> None:
    file = say(f"[agent]\nrun = 'x'\n{text}")
    with pytest.raises(SettingError, match=said) as error:
        start()
    assert str(file) in str(error.value)


def test_a_file_that_is_gone_is_told(say: Callable[[str], Path]) -> None:
    say("").unlink()
    with pytest.raises(SettingError, match="Settings cannot be read from"):
        train()


def test_a_warning_names_the_line_that_called_observe() -> None:
    model = torch.nn.Linear(2, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        observe(model, run="x", include="nothing-of-this-name")
    assert [(one.category, one.filename) for one in caught] == [(RankscopeWarning, __file__)]


def test_a_script_as_it_is_takes_the_name_of_its_run_and_its_options_from_the_file(
    tmp_path: Path, say: Callable[[str], Path]
) -> None:
    say('[agent]\nrun = "as-it-is"\nkinds = "weight"\nevery = 3')
    job = Path(__file__).parents[1] / "launch" / "job.py"
    command = [sys.executable, "-m", "rankscope", "run", "--every", "2"]
    subprocess.run(
        [*command, "--", sys.executable, str(job), "plain"], cwd=tmp_path, check=True, timeout=100
    )
    run = run_in(tmp_path / "rankscope-runs", "as-it-is")
    assert set(run.sites()["kind"]) == {"weight"}
    assert run.records()["step"].tolist()[:2] == [0, 2]


@pytest.mark.parametrize("observing", [observe, observe_jax, observe_poptorch])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("RANKSCOPE_RELAI", r"no 'RANKSCOPE_RELAI'; did you mean RANKSCOPE_RELAY\?"),
        ("RANKSCOPE_EVERY", r"no 'RANKSCOPE_EVERY'; did you mean RANKSCOPE_AGENT_EVERY\?"),
        ("RANKSCOPE_AGENT_RUN", r"no 'RANKSCOPE_AGENT_RUN'; did you mean RANKSCOPE_RUN\?"),
        ("RANKSCOPE_AGENT_LEARNING", r"no 'RANKSCOPE_AGENT_LEARNING'; did you mean RANKSCOPE_"),
    ],
)
def test_a_variable_that_says_nothing_is_told(
    observing: Callable[..., Any],
    name: str,
    told: str,
    say: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    say("[agent]\nrun = 'no name/'")  # so that nothing is observed
    monkeypatch.setenv("RANKSCOPE_COLLECT_BIND", "of another process")
    monkeypatch.setenv("RANKSCOPE_MINE", "of somebody else")
    monkeypatch.setenv(name, "3")
    with pytest.warns(RankscopeWarning, match=told) as warned, pytest.raises(SettingError):
        observing(None)
    assert len(warned) == 1
    assert warned[0].filename == __file__
