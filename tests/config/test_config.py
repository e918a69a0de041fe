"""The file of settings: what `rankscope config` says of it, and that it holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.settings import VARIABLES

from ..release.config_schema import json_schema

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "config" / "config.schema.json"
RIGHT = """
[agent]
run = "gpt"
every = 10
kinds = ["weight", "weight_gradient"]
schedules = { weight = "logarithmic(10)", weight_gradient = 5 }
exact_counts = { "weight:.*mlp" = "cast_counts:float8_e4m3fn" }
quantities = { Linear = ["rank_me", ["input_cov_max_eig", "linear(100)"]] }

[collect]
bind = "tcp://127.0.0.1:7633"
keep_steps = 1000
sink = ["jsonl:numbers.jsonl"]

[relay]
to = "tcp://head:7600"
spool_bytes = "3GiB"
min_free = 1000000

[view]
directory = "runs"
port = 5010
open = false

[rules]
mute = ["nonfinite activation:.*mask"]

[rules.loss-spike]
off = true

[closer_look]
steps = 4

[[bounds]]
quantity = "rank_me"
below = 8
"""
FAULTS = [
    ("[agnet]", "there is no 'agnet'; did you mean agent?"),
    ("[agent]\nevry = 10", "[agent]: there is no 'evry'; did you mean every"),
    ("[agent]\nevery = 0", "[agent]: every cannot be 0: expected `int` >= 1."),
    ("[agent]\nbudget = 3", "[agent]: budget cannot be 3: expected `float` <= 1.0."),
    ("[agent]\nkinds = 'weights'", "[agent]: kinds is one of input,"),
    ("[agent]\ninclude = '('", "[agent]: include='(' is not a regular expression"),
    ("[agent]\nto = 'collector'", "[agent]: An address looks like tcp://"),
    ("[agent]\nrun = 'a/b'", "[agent]: A run's name is letters, digits"),
    ("[agent]\nschedules = {weight = 'lin(3)'}", "'lin(3)' is no schedule"),
    (
        "[agent]\nexact_counts = {x = 'casts'}",
        "exact_counts['x'] must be FineExponents, BlockExponents or",
    ),
    ("[agent]\nkeys = '/nope'", "[agent]: keys cannot be '/nope': There is no key /nope/own.key_s"),
    ("agent = 3", "[agent] is a table of settings, got 3."),
    ("[collect]\nkeep-steps = 9", "[collect]: there is no 'keep-steps'; did you mean keep_steps"),
    ("[collect]\nkeep_steps = '9'", "[collect]: keep_steps cannot be '9': expected `int`"),
    ("[collect]\ndeadline = 0", "[collect]: deadline cannot be 0: expected `float` > 0.0."),
    ("[collect]\nlog_format = 'xml'", "[collect]: log_format is one of text, json, got 'xml'."),
    ("[collect]\nsink = 'jsonl:x'", "[collect]: sink cannot be 'jsonl:x': expected `array`"),
    ("[relay]\nspool_bytes = '3XB'", "[relay]: spool_bytes cannot be '3XB': A size looks like"),
    ("[view]\nport = true", "[view]: port cannot be True: expected `int`, got `bool`."),
    ("view = 3", "[view] is a table of settings, got 3."),
    ("[rules.underflw]\noff = true", "[rules]: there is no 'underflw'; did you mean underflow"),
    ("[[bounds]]\nquantity = 'x'", "[[bounds]] 1: give one of above and below."),
    ("[[bounds]]\nbelow = 1", "[[bounds]] 1: quantity is missing."),
    ("[agent", "is no TOML"),
    ("[agent]\nkinds = ['weight', 'wieght']", "weight_gradient, local_weight_gradient"),
    ("[agent]\nkinds = ['weight', 'wieght']", ", got 'wieght'. Did you mean weight?"),
    ("[agent]\nschedules = { wieght = 3 }", ", got 'wieght'."),
    ("[agent]\nquantities = {Linear = 3}", "expected `str | array`, got `int`"),
    ("[agent]\nquantities = {Linear = [['rank_me', 'lin(3)']]}", "'lin(3)' is no schedule"),
    ("[agent]\nquantities = {Linear = [['rank_me', 3, 4]]}", "expected `array` of length <= 2"),
    ("[collect]\nbind = '0.0.0.0:7600'", "[collect]: bind cannot be '0.0.0.0:7600': An address"),
    ("[collect]\nstore = 's3:/b/runs'", "s3:/b/runs has one slash: write s3://b/runs, or ./s3:"),
    ("[collect]\nhealth = '7610'", "[collect]: health cannot be '7610': A place for /healthz"),
    ("[collect]\nsink = ['prometheus', 'foo:bar']", "There is no sink 'foo'; say jsonl:PATH"),
    ("[collect]\nkeys = '/nonexistent'", "There is no key /nonexistent/own.key_secret"),
    ("[collect]\nkeep_per_rank = 'alerts'", "kept per rank is all, none, alert, or ranks as 0,3"),
    ("[relay]\nto = 'http://x'", "[relay]: to cannot be 'http://x': An address looks like"),
    ("[relay]\nkeys = '/nonexistent'", "/nonexistent/collector.key, of the collector that"),
    ("[relay]\nmin_free = -1", "[relay]: min_free cannot be -1: "),
    ("[relay]\nspool_bytes = 0", "[relay]: spool_bytes cannot be 0: It must be 1 at least"),
]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    for name in list(os.environ):
        if name.startswith("RANKSCOPE_"):
            monkeypatch.delenv(name)
    # `--config` sets it for what is started from here: put back what was.
    monkeypatch.setenv("RANKSCOPE_CONFIG", "")
    return CliRunner()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "rankscope.toml"
    file.write_text(RIGHT)
    return file


@pytest.mark.usefixtures("runner")  # clears the environment
def test_a_file_that_is_right_is_told_so(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["config", "check", str(file)], ["--config", str(file), "config", "check"]):
        with pytest.raises(SystemExit) as ended:
            cli(arguments)
        said = capsys.readouterr()
        assert (ended.value.code, said.err) == (0, "")
        assert said.out.startswith(f"{file} is right: [agent], [collect], [relay], [view]")


@pytest.mark.usefixtures("runner")  # clears the environment
def test_it_tells_what_will_not_start_for_want_of_keys_or_a_token(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {
        "collect": 'bind = "tcp://0.0.0.0:7600"',
        "relay": 'bind = "tcp://*:7601"',
        "view": 'address = "0.0.0.0"',
    }

    def check(more: str = "") -> list[str]:
        file.write_text("\n".join(f"[{name}]\n{said}\n{more}" for name, said in tables.items()))
        with pytest.raises(SystemExit) as ended:
            cli(["config", "check", str(file)])
        assert ended.value.code == 0
        return capsys.readouterr().out.splitlines()

    *told, right = check()
    assert [line.partition(", so ")[0] for line in told] == [
        f"{file}, [collect]: others reach tcp://0.0.0.0:7600",
        f"{file}, [relay]: others reach tcp://*:7601",
        f"{file}, [view]: others reach 0.0.0.0",
    ]
    assert "without `--token-file`, or `--insecure`" in told[2]
    assert right == f"{file} is right: [collect], [relay], [view]."
    assert check("insecure = true") == [right]
    monkeypatch.setenv("RANKSCOPE_VIEW_TOKEN", "a" * 32)
    assert check() == [*told[:2], right]


@pytest.mark.parametrize(("text", "said"), FAULTS)
def test_a_fault_is_told_with_its_place_and_what_could_be(
    runner: CliRunner, file: Path, text: str, said: str
) -> None:
    file.write_text(text)
    result = runner.invoke(cli, ["config", "check", str(file)])
    assert result.exit_code == 1
    assert said in result.output
    assert result.output.count(str(file)) == 1


def test_all_faults_are_told_at_once(runner: CliRunner, file: Path) -> None:
    file.write_text("[agnet]\n[collect]\nkep_steps = 1\nmemory = 2\n[closer_look]\nsteps = 99\n")
    result = runner.invoke(cli, ["config", "check", str(file)])
    assert len(result.output.splitlines()) == 4


def test_all_faults_of_what_agents_are_told_are_told_at_once(runner: CliRunner, file: Path) -> None:
    tables = [text for text, _ in FAULTS if text.startswith("[agent]\n")]
    lines = {text.partition(" = ")[0]: text.removeprefix("[agent]\n") for text in tables}
    file.write_text("\n".join(["[agent]", *lines.values()]))
    result = runner.invoke(cli, ["config", "check", str(file)])
    assert len(lines) >= 10
    assert len(result.output.splitlines()) == len(lines)


def test_without_a_file_it_says_how_to_name_one(runner: CliRunner) -> None:
    result = runner.invoke(cli, ["config", "check"])
    assert result.exit_code == 2
    assert "rankscope config check FILE" in result.output


def test_without_a_file_the_variables_are_checked(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKSCOPE_TO", "tcp://head:7600")
    monkeypatch.setenv("RANKSCOPE_VIEW_OPEN", "0")
    result = runner.invoke(cli, ["config", "check"])
    assert (result.exit_code, result.output) == (
        0,
        "The variables are right: RANKSCOPE_TO, RANKSCOPE_VIEW_OPEN. No file was named.\n",
    )
    monkeypatch.setenv("RANKSCOPE_VIEW_OPEN", "maybe")
    monkeypatch.setenv("RANKSCOPE_EVERY", "3")
    result = runner.invoke(cli, ["config", "check"])
    every, maybe = result.output.splitlines()
    assert result.exit_code == 1
    assert every.startswith(
        "environment: there is no 'RANKSCOPE_EVERY'; did you mean RANKSCOPE_AGENT_EVERY"
    )
    assert maybe.startswith("RANKSCOPE_VIEW_OPEN: 'maybe' is not a valid boolean")


def test_a_variable_that_is_none_of_ours_is_told(
    runner: CliRunner, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKSCOPE_COLLECT_BNID", "tcp://127.0.0.1:1")
    monkeypatch.setenv("RANKSCOPE_COLLECT_PORT", "7600")
    monkeypatch.setenv("RANKSCOPE_VIEW_PORTT", "5006")
    of_kubernetes = {
        "RANKSCOPE_COLLECTOR_SERVICE_HOST": "10.0.0.1",
        "RANKSCOPE_COLLECTOR_SERVICE_PORT": "7600",
        "RANKSCOPE_COLLECTOR_SERVICE_PORT_FRAMES": "7600",
        "RANKSCOPE_COLLECTOR_PORT": "tcp://10.0.0.1:7600",
        "RANKSCOPE_COLLECTOR_PORT_7600_TCP": "tcp://10.0.0.1:7600",
        "RANKSCOPE_COLLECTOR_PORT_7600_TCP_ADDR": "10.0.0.1",
    }
    for name, value in of_kubernetes.items():
        monkeypatch.setenv(name, value)
    result = runner.invoke(cli, ["config", "check", str(file)])
    assert result.exit_code == 1
    assert (
        "there is no 'RANKSCOPE_COLLECT_BNID'; did you mean RANKSCOPE_COLLECT_BIND" in result.output
    )
    assert "there is no 'RANKSCOPE_COLLECT_PORT'; did you mean" in result.output
    assert "there is no 'RANKSCOPE_VIEW_PORTT'; did you mean RANKSCOPE_VIEW_PORT" in result.output
    assert "COLLECTOR" not in result.output


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RANKSCOPE_COLLECT_MEMORY", "4", "RANKSCOPE_COLLECT_MEMORY: 4 is not in the range x>=16"),
        ("RANKSCOPE_COLLECT_BIND", "0.0.0.0:7600", "RANKSCOPE_COLLECT_BIND: An address looks"),
        ("RANKSCOPE_SINKS", "webhook foo:bar", "RANKSCOPE_SINKS: There is no sink 'foo'"),
        ("RANKSCOPE_RELAY_SPOOL_BYTES", "xx", "RANKSCOPE_RELAY_SPOOL_BYTES: A size looks like"),
        ("RANKSCOPE_VIEW_OPEN", "maybe", "RANKSCOPE_VIEW_OPEN: 'maybe' is not a valid boolean"),
        ("RANKSCOPE_VIEW_PORT", "tcp://10.0.0.1:80", "RANKSCOPE_VIEW_PORT: 'tcp://10.0.0.1:80'"),
        ("RANKSCOPE_TO", "head:7600", "RANKSCOPE_TO: An address looks like"),
        ("RANKSCOPE_KEYS", "/nope", "RANKSCOPE_KEYS: keys cannot be '/nope': There is no key"),
        ("RANKSCOPE_RUN", "a/b", "RANKSCOPE_RUN: A run's name is letters"),
        ("RANKSCOPE_AGENT_EVERY", "0", "RANKSCOPE_AGENT_EVERY: every cannot be 0"),
        ("RANKSCOPE_AGENT_EVRY", "1", "no 'RANKSCOPE_AGENT_EVRY'; did you mean RANKSCOPE_AGENT_E"),
    ],
)
def test_a_variable_that_says_what_cannot_be_is_told(
    runner: CliRunner,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    said: str,
) -> None:
    monkeypatch.setenv(name, value)
    result = runner.invoke(cli, ["config", "check", str(file)])
    assert result.exit_code == 1
    assert said in result.output


@pytest.mark.usefixtures("runner")  # clears the environment
def test_a_misspelt_variable_is_told_as_a_command_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKSCOPE_COLLECT_KEEPSTEPS", "4")
    monkeypatch.setenv("RANKSCOPE_COLLECT_SERVICE_HOST", "10.0.0.1")  # as Kubernetes sets it
    with pytest.raises(SystemExit):
        cli(["collect", "--bind", "nowhere"])
    said = capsys.readouterr().err
    assert "Warning: environment: there is no 'RANKSCOPE_COLLECT_KEEPSTEPS'; did you mean " in said
    assert "RANKSCOPE_COLLECT_KEEP_STEPS" in said
    assert "SERVICE" not in said


def without_a_collector(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What `rankscope` does in an environment without a collector's libraries, as an agent's."""
    script = (
        "import sys; sys.modules['icechunk'] = None\n"
        f"from rankscope.__main__ import cli; cli({list(arguments)!r})"
    )
    plain = {name: value for name, value in os.environ.items() if "RANKSCOPE" not in name}
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, env=plain | variables, capture_output=True, text=True, check=False
    )


def test_a_variable_that_was_not_checked_is_no_success() -> None:
    variables = {"RANKSCOPE_TO": "tcp://head:7600", "RANKSCOPE_COLLECT_MEMORY": "1"}
    done = without_a_collector("config", "check", **variables)
    assert done.returncode == 2
    assert done.stdout == (
        "The variables are right in what was checked: RANKSCOPE_TO. No file was named.\n"
    )
    assert done.stderr == (
        "Not checked, for what their commands need is not installed: RANKSCOPE_COLLECT_MEMORY.\n"
    )


def test_what_was_not_checked_is_no_success(file: Path) -> None:
    done = without_a_collector("config", "check", str(file))
    assert done.returncode == 2
    assert done.stdout == f"{file} is right in what was checked: [agent], [relay].\n"
    for name in ("collect", "rules", "bounds"):
        assert f"[{name}] was not checked: `rankscope " in done.stderr
    assert done.stderr.count("pip install 'rankscope[collector]'") == 4
    assert done.stderr.count("pip install 'rankscope[viewer]'") == 1


def test_every_variable_of_the_code_is_known() -> None:
    rooms = [file for file in ROOT.rglob("*.py") if file.relative_to(ROOT).parts[0][0] != "."]
    left_out = {"tests", "benchmarks", "build", "docs"}
    texts = [file.read_text() for file in rooms if file.relative_to(ROOT).parts[0] not in left_out]
    named = {name for text in texts for name in re.findall(r'"(RANKSCOPE_[A-Z_]+)"', text)}
    assert named - set(VARIABLES) == {"RANKSCOPE_COLLECT", "RANKSCOPE_RELAY", "RANKSCOPE_VIEW"} - {
        "RANKSCOPE_RELAY"
    }


def test_show_names_who_said_what(
    runner: CliRunner, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKSCOPE_COLLECT_KEEP_STEPS", "7")
    monkeypatch.setenv("RANKSCOPE_SINKS", "webhook")
    monkeypatch.setenv("RANKSCOPE_TO", "tcp://head:7600")
    said = runner.invoke(cli, ["--config", str(file), "config", "show"]).output.splitlines()
    assert f'agent.run = "gpt"  # {file}' in said
    assert 'agent.to = "tcp://head:7600"  # RANKSCOPE_TO' in said
    assert 'collect.sink = ["webhook"]  # RANKSCOPE_SINKS' in said
    assert "collect.keep_steps = 7  # RANKSCOPE_COLLECT_KEEP_STEPS" in said
    assert f'collect.bind = "tcp://127.0.0.1:7633"  # {file}' in said
    assert f"view.open = false  # {file}" in said
    assert not any(line.startswith("collect.deadline") for line in said)


def test_show_shows_what_is_said_beside_what_is_wrong(runner: CliRunner, file: Path) -> None:
    said = (
        "[agent]\nrun = 'gpt'\nevry = 3\nbudget = 3\n[collect]\nkeep_steps = 9\nsink = 'jsonl:x'\n"
    )
    file.write_text(f"{said}keys = 'keys/none'\n[relay]\nspool_bytes = '1KiB'\n")
    result = runner.invoke(cli, ["--config", str(file), "config", "show"])
    assert result.exit_code == 1
    shown = {
        'agent.run = "gpt"',
        "agent.budget = 3",
        "collect.keep_steps = 9",
        'collect.sink = "jsonl:x"',
        'collect.keys = "keys/none"',
        "relay.spool_bytes = 1024",
    }
    assert {f"{line}  # {file}" for line in shown} <= set(result.stdout.splitlines())
    checked = runner.invoke(cli, ["config", "check", str(file)])
    assert len(checked.output.splitlines()) == 4
    assert result.stderr == checked.output


def test_show_of_the_example_of_the_documentation_shows_all_of_it(
    runner: CliRunner, file: Path
) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    file.write_text(text.partition("```toml")[2].partition("```")[0])
    result = runner.invoke(cli, ["--config", str(file), "config", "show"])
    assert f'collect.keys = "keys/collector"  # {file}' in result.stdout
    assert f'relay.spool = "/scratch/rankscope"  # {file}' in result.stdout
    assert f"view.open = false  # {file}" in result.stdout
    assert "keys cannot be 'keys/collector': There is no key" in result.stderr


def listens_at(folder: Path, *arguments: str, **variables: str) -> str:
    """Where a collector listens that is started with these arguments and variables."""
    plain = {name: value for name, value in os.environ.items() if "RANKSCOPE" not in name}
    command = [sys.executable, "-m", "rankscope", *arguments]
    with subprocess.Popen(
        command, cwd=folder, env=plain | variables, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
    return str(json.loads(line)["address"])


def test_flags_go_before_variables_and_these_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[collect]\nbind = 'ipc://by-file'\nannounce = true\n")
    collect = ("--config", "r.toml", "collect")
    assert listens_at(tmp_path, *collect) == "ipc://by-file"
    by_variable = {"RANKSCOPE_COLLECT_BIND": "ipc://by-variable"}
    assert listens_at(tmp_path, *collect, **by_variable) == "ipc://by-variable"
    flag = ("--bind", "ipc://by-flag")
    assert listens_at(tmp_path, *collect, *flag, **by_variable) == "ipc://by-flag"
    named = {"RANKSCOPE_CONFIG": "r.toml"}
    assert listens_at(tmp_path, "collect", **named) == "ipc://by-file"


def test_a_command_refuses_a_file_with_faults_in_its_table(runner: CliRunner, file: Path) -> None:
    file.write_text("[agnet]\n[collect]\nkep_steps = 1\nmemory = 2\n[closer_look]\nstps = 9\n")
    result = runner.invoke(cli, ["--config", str(file), "collect"])
    assert result.exit_code == 1
    assert "there is no 'kep_steps'; did you mean keep_steps" in result.output
    assert "memory cannot be 2: expected `int` >= 16." in result.output
    assert "there is no 'agnet'; did you mean agent?" in result.output
    assert "there is no 'stps'; did you mean steps?" in result.output


def test_run_tells_all_faults_of_what_it_takes_from_a_file(runner: CliRunner, file: Path) -> None:
    file.write_text("[agnet]\n[agent]\nevry = 1\nbudget = 3\n")
    result = runner.invoke(cli, ["--config", str(file), "run", "--run", "x", "true"])
    agnet, evry, budget = result.output.splitlines()
    assert result.exit_code == 1
    assert "there is no 'agnet'; did you mean agent?" in agnet
    assert "there is no 'evry'; did you mean every" in evry
    assert "budget cannot be 3: expected `float` <= 1.0." in budget


def test_rules_are_those_of_the_file(runner: CliRunner, file: Path) -> None:
    plain = runner.invoke(cli, ["rules", "list"]).output
    changed = runner.invoke(cli, ["--config", str(file), "rules", "list"]).output
    assert "loss-spike (" in plain
    assert "loss-spike (" not in changed
    assert "rank_me below (warning)" in changed


def test_the_published_schema_is_that_of_the_code() -> None:
    assert json.dumps(json_schema(), indent=2) + "\n" == SCHEMA.read_text(), "make schema"


def test_the_schema_is_printed_without_a_collectors_libraries() -> None:
    assert without_a_collector("config", "schema").stdout == SCHEMA.read_text()


def test_the_schema_takes_what_is_right_and_refuses_what_is_not() -> None:
    schema = json.loads(SCHEMA.read_text())
    checker = jsonschema.Draft202012Validator(schema)
    checker.check_schema(schema)
    checker.validate(tomllib.loads(RIGHT))
    for wrong in ("[agnet]", "[agent]\nevry = 1", "[collect]\nmemory = 2", "[closer_look]\nx = 1"):
        assert not checker.is_valid(tomllib.loads(wrong))
