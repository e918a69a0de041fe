"""`rankscope run`: scripts that say nothing of rankscope are observed, and run as without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

from rankscope import launch
from rankscope.__main__ import cli
from rankscope.store import Run, RunWriter, open_run

JOB = Path(__file__).parent / "job.py"
KINDS = ("weight", "activation", "activation_gradient", "weight_gradient", "optimizer_state")
TORCHRUN = (
    *("-m", "torch.distributed.run", "--standalone"),
    *("--nproc-per-node", "2", "--max-restarts", "1"),
)


IN_HALVES = ("--run", "in_halves", "--", sys.executable, str(JOB), "in_halves")


def launched(folder: Path, words: Sequence[str], *, said: bytes) -> subprocess.Popen[bytes]:
    """`rankscope run` with these words, once its command has said something."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rankscope", "run", *words],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == said
    return process


def ran(folder: Path, name: str, *launcher: str, code: int = 0, options: Sequence[str] = ()) -> str:
    """What a script says that is run under the name of its function."""
    command = [sys.executable, "-m", "rankscope", "run", "--run", name, *options]
    done = subprocess.run(
        [*command, "--", sys.executable, *launcher, str(JOB), name],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if "RANKSCOPE" not in key},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stderr


def told(said: str) -> list[str]:
    """The lines that `rankscope run` and what it has installed say."""
    return [line for line in said.splitlines() if line.startswith("rankscope: ")]


def run_of(folder: Path, name: str) -> Run:
    run = open_run(folder / "rankscope-runs" / name)
    assert run.finished
    return run


@pytest.mark.parametrize("name", ["plain", "compiled", "compiles_itself", "after_a_look"])
def test_all_that_is_trained_is_seen_from_the_first_step_on(tmp_path: Path, name: str) -> None:
    said = ran(tmp_path, name)
    run = run_of(tmp_path, name)
    records = run.records()
    assert records["step"].tolist() == [0, 1, 2, 3]
    assert records["final"].tolist() == [False, False, False, True]
    assert records["partial"].tolist() == [False] * 4
    assert set(KINDS) == set(run.sites()["kind"])
    labels, table = run.table(0)
    counts = dict(zip(labels, table.counts[:, 0].tolist(), strict=True))
    assert counts["activation:0"] == 2 * 16 * 8
    assert said.splitlines()[-1].endswith(f"rankscope view rankscope-runs/{name}")


def test_parts_that_a_loop_calls_are_one_model_and_its_optimizers_make_one_step(
    tmp_path: Path,
) -> None:
    ran(tmp_path, "in_parts")
    run = run_of(tmp_path, "in_parts")
    assert run.records()["step"].tolist() == [0, 1, 2, 3]
    assert {"weight:0.weight", "weight:2.bias", "activation:1"} <= set(run.sites().index)


def test_optimizers_may_update_at_different_rates(tmp_path: Path) -> None:
    (tmp_path / "q.toml").write_text(
        '[quantities]\n"0.weight" = ["weight_gradient_cosine", "update_cosine"]\n'
    )
    ran(tmp_path, "at_two_rates", options=["--quantities", "q.toml"])
    run = run_of(tmp_path, "at_two_rates")
    assert run.records()["step"].tolist() == [0, 1, 2, 3, 4]
    gradients = run.scalar("max", sites="weight_gradient:0.weight").values[:4, 0]
    assert gradients.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_each_model_of_several_is_a_run(tmp_path: Path) -> None:
    ran(tmp_path, "two_models")
    first, second = run_of(tmp_path, "two_models"), run_of(tmp_path, "two_models-2-Sequential")
    assert set(first.sites(kind="weight").index) == {"weight:weight", "weight:bias"}
    assert len(second.sites(kind="weight")) == 4
    assert second.records()["step"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "old"), [("unfrozen", ""), ("unfrozen_beside", " in place of AdamW")]
)
def test_an_optimizer_that_replaces_another_goes_on_with_its_steps(
    tmp_path: Path, name: str, old: str
) -> None:
    ran(tmp_path, name)
    run = run_of(tmp_path, name)
    assert run.records()["step"].tolist() == [*range(16)]
    assert run.records()["partial"].tolist() == [False] * 16
    rates = run.training().sel(name="lr", rank=0).values[:15].tolist()
    assert rates == [0.5] * 5 + [0.25] * 10
    assert run.events()["text"].tolist() == [
        "The script has made another optimizer, AdamW, which updates the model from step 5 on"
        f"{old}."
    ]
    seen = run.scalar("count", sites=["optimizer_state:0.weight[exp_avg]", "activation:0"])
    assert np.isnan(seen.values[:15, 0]).tolist() == [True] * 5 + [False] * 10
    assert seen.values[:15, 1].tolist() == [16 * 8] * 15


def test_quantities_of_a_replaced_optimizers_weights_are_taken_on(tmp_path: Path) -> None:
    (tmp_path / "q.toml").write_text(
        '[quantities]\n"2.weight" = ["weight_gradient_cosine", "update_cosine"]\n'
    )
    ran(tmp_path, "unfrozen", options=["--quantities", "q.toml"])
    run = run_of(tmp_path, "unfrozen")
    assert run.records()["step"].tolist() == [*range(16)]
    assert len(run.events()) == 1
    for name in ("weight_gradient_cosine", "update_cosine"):
        assert run.quantity(name)["step"].tolist() == [*range(1, 15)]


@pytest.mark.parametrize(
    ("name", "steps", "both"), [("thawed", 6, [3, 4, 5]), ("in_phases", 8, [])]
)
def test_an_optimizer_that_comes_to_another_ends_steps_with_it(
    tmp_path: Path, name: str, steps: int, both: list[int]
) -> None:
    ran(tmp_path, name)
    run = run_of(tmp_path, name)
    assert run.records()["step"].tolist() == [*range(steps + 1)]
    sites = ["weight_gradient:0.weight", "weight_gradient:2.weight", "activation:0"]
    seen = run.scalar("count", sites=sites).values[:steps]
    assert seen[:, 2].tolist() == [16 * 8] * steps
    assert ((seen[:, 0] > 0) & (seen[:, 1] > 0)).nonzero()[0].tolist() == both


def test_networks_that_are_frozen_in_turns_make_one_step(tmp_path: Path) -> None:
    ran(tmp_path, "in_turns")
    run = run_of(tmp_path, "in_turns")
    records = run.records()
    assert records["step"].tolist() == [*range(9)]
    assert records["partial"].tolist() == [False] * 9
    sites = ["activation:0", "weight_gradient:0.weight", "weight_gradient:2.weight"]
    output, first, second = run.scalar("count", sites=sites).values[:8].T
    trains_both = [step % 3 == 0 for step in range(8)]
    assert output.tolist() == [(1 + both) * 16 * 8 for both in trains_both]
    assert (first > 0).tolist() == trains_both
    assert (second > 0).all()


def test_a_scaler_that_each_of_these_networks_updates_ends_no_step(tmp_path: Path) -> None:
    ran(tmp_path, "scaled_in_turns")
    run = run_of(tmp_path, "scaled_in_turns")
    assert run.records()["step"].tolist() == [*range(4)]
    outputs = run.scalar("count", sites="activation:0").values[:3, 0]
    assert outputs.tolist() == [2 * 16 * 8] * 3


def test_an_optimizer_that_was_replaced_and_updates_again_ends_steps_again(tmp_path: Path) -> None:
    ran(tmp_path, "come_back")
    run = run_of(tmp_path, "come_back")
    # In its first iteration the second one has a step of its own, for the first has ended one.
    assert run.records()["step"].tolist() == [*range(9)]
    rates = run.training().sel(rank=0)
    assert rates.sel(name="lr").values[:8].tolist() == [0.5] * 4 + [0.25] * 4
    assert rates.sel(name="lr.1").values[5:8].tolist() == [0.5] * 3
    assert [text.count("in place of") for text in run.events()["text"]] == [1, 0]


def test_models_that_are_trained_one_after_another_are_a_run_each(tmp_path: Path) -> None:
    said = ran(tmp_path, "folds")
    assert len(told(said)) == 1
    for number, name in enumerate(["folds", "folds-2-Sequential", "folds-3-Sequential"]):
        run = run_of(tmp_path, name)
        assert run.records()["step"].tolist() == [*range(6)]
        assert run.records()["partial"].tolist() == [False] * 6
        weight = run.sites(kind="weight").loc["weight:0.weight"]
        assert list(weight["shape"]) == [2 + number, 4]
        assert run.ending.state == "finished"


def test_all_ranks_find_the_same_models_and_optimizers(tmp_path: Path) -> None:
    ran(tmp_path, "folds_of_ranks", *TORCHRUN)
    for name in ("folds_of_ranks", "folds_of_ranks-2-Linear"):
        run = run_of(tmp_path, name)
        assert len(run.hosts()) == 2
        assert run.records()["step"].tolist() == [*range(7)]
        assert run.records()["partial"].tolist() == [False] * 7


def test_a_sharded_root_is_seen_from_its_first_micro_batch_on(tmp_path: Path) -> None:
    ran(tmp_path, "shards", *TORCHRUN)
    run = run_of(tmp_path, "shards")
    assert run.alerts()["text"].tolist() == []
    for site in ("local_weight_gradient:2.weight", "local_weight_gradient:0.weight"):
        of_steps = run.ranks("l2", site=site, steps=(0, 2)).values
        assert np.unique(of_steps, axis=0).shape == (1, 2), site
    gathered = run.scalar("count", site="unsharded_weight:2.weight", steps=(0, 2))
    assert gathered.values.tolist() == [[8.0]] * 3


def test_a_later_model_is_compiled_with_what_observes_it(tmp_path: Path) -> None:
    ran(tmp_path, "compiled_folds")
    runs = [run_of(tmp_path, f"compiled_folds{one}") for one in ("", "-2-Sequential")]
    assert set(runs[0].sites().index) == set(runs[1].sites().index)
    assert [one.records()["step"].tolist() for one in runs] == [[*range(4)]] * 2


def test_twins_in_a_list_are_one_model_and_what_is_trained_after_them_is_seen_whole(
    tmp_path: Path,
) -> None:
    assert len(told(ran(tmp_path, "twins"))) == 1
    critics, actor = run_of(tmp_path, "twins"), run_of(tmp_path, "twins-2-Linear")
    assert set(critics.sites(kind="weight").index) == {
        *("weight:0.weight", "weight:0.bias"),
        *("weight:1.weight", "weight:1.bias"),
    }
    assert {"activation:0", "activation:1"} <= set(critics.sites(kind="activation").index)
    assert actor.records()["step"].tolist() == [*range(4)]
    assert {*KINDS} == {*actor.sites()["kind"]}


def test_a_model_whose_optimizer_was_made_long_before_is_seen_from_its_second_step_on(
    tmp_path: Path,
) -> None:
    ran(tmp_path, "made_before")
    assert run_of(tmp_path, "made_before").records()["step"].tolist() == [*range(13)]
    second = run_of(tmp_path, "made_before-2-Sequential")
    assert second.records()["step"].tolist() == [*range(5)]
    assert {*KINDS} - {"optimizer_state"} == {*second.sites()["kind"]}


def test_a_model_that_becomes_a_part_of_another_ends_its_run(tmp_path: Path) -> None:
    ran(tmp_path, "pretrained")
    assert run_of(tmp_path, "pretrained").records()["step"].tolist() == [*range(4)]
    whole = run_of(tmp_path, "pretrained-2-Sequential")
    assert whole.records()["step"].tolist() == [*range(5)]
    assert "activation:0" in whole.sites().index


def test_more_models_than_are_observed_are_told_once(tmp_path: Path) -> None:
    assert told(ran(tmp_path, "many"))[:-1] == [
        "rankscope: Linear is not observed, nor are further models: a process observes 8 at once "
        "at most."
    ]
    assert len(list((tmp_path / "rankscope-runs").glob("many*/"))) == 8


def test_what_is_updated_and_not_found_is_told_and_no_longer_looked_for(tmp_path: Path) -> None:
    assert told(ran(tmp_path, "without_module"))[:-1] == [
        "rankscope: what SGD updates is not observed, or not all of it: no module with these "
        "parameters was called in training mode."
    ]


def test_a_model_whose_optimizer_has_copies_of_its_weights_is_observed(tmp_path: Path) -> None:
    assert told(ran(tmp_path, "main_weights"))[0] == (
        "rankscope: Sequential is observed without its optimizer's state: AdamW updates other "
        "tensors, of as many elements, which may be main weights in float32."
    )
    run = run_of(tmp_path, "main_weights")
    assert run.records()["step"].tolist() == [*range(9, 17)]
    assert run.records()["partial"].tolist() == [False] * 8
    assert set(run.sites()["kind"]) == set(KINDS) - {"optimizer_state"}
    weights = run.scalar("l2", site="weight:0.0.weight").values.ravel()
    assert len(set(weights)) == 8, "it is trained"


def test_what_the_script_observes_itself_is_not_observed_twice(tmp_path: Path) -> None:
    said = ran(tmp_path, "observed")
    assert "Sequential is not observed twice: the script itself does, as run 'its-own'." in said
    assert len(run_of(tmp_path, "its-own").sites(kind="weight")) == 4
    assert set(run_of(tmp_path, "observed").sites(kind="weight").index) == {
        "weight:weight",
        "weight:bias",
    }


def test_a_step_whose_update_a_scaler_leaves_out_is_a_step(tmp_path: Path) -> None:
    ran(tmp_path, "scaled")
    run = run_of(tmp_path, "scaled")
    assert run.records()["step"].tolist() == [0, 1, 2, 3]
    scales = run.training().sel(name="loss_scale", rank=0).values[:3].tolist()
    assert scales == [2.0**127, 1.0, 1.0]
    assert run.scalar("nonfinite", sites="weight_gradient:weight").values[:2, 0].tolist() == [12, 0]


def test_a_restart_by_torchrun_is_another_attempt(tmp_path: Path) -> None:
    ran(tmp_path, "ranks", *TORCHRUN)
    run = run_of(tmp_path, "ranks")
    assert len(run.attempts) == 2
    assert len(run.hosts()) == 2
    assert run.records()["step"].tolist()[-4:] == [0, 1, 2, 3]


def test_a_job_that_resumes_goes_on_with_the_steps_that_its_optimizer_has_counted(
    tmp_path: Path,
) -> None:
    ran(tmp_path, "resumed", "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1")
    run = run_of(tmp_path, "resumed")
    records = run.records()[["attempt", "step"]]
    assert records.groupby("attempt")["step"].apply(list).to_dict() == {
        0: [0, 1, 2],
        1: [3, 4, 5, 6],
    }


def test_the_exit_code_is_the_scripts_own_and_an_error_is_told(tmp_path: Path) -> None:
    ran(tmp_path, "fails", code=7)
    assert run_of(tmp_path, "fails").records()["partial"].tolist() == [False] * 4
    ran(tmp_path, "raises", code=1)
    events = run_of(tmp_path, "raises").events()
    assert "Training ended in step 3: ValueError: out of data." in events["text"].tolist()


@pytest.mark.parametrize(
    ("name", "code", "ending"),
    [
        ("in_child", 0, "finished"),
        ("fails_in_child", 1, "ended early in step 3: ValueError: out of data"),
    ],
)
def test_a_process_that_multiprocessing_has_forked_ends_its_run(
    tmp_path: Path, name: str, code: int, ending: str
) -> None:
    ran(tmp_path, name, code=code)
    run = run_of(tmp_path, name)
    assert run.ending.text == ending
    assert run.records()["step"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGTERM", "SIGHUP"])
def test_a_signal_goes_to_the_command(tmp_path: Path, name: str) -> None:
    script = f"""if True:
        import signal, sys, time
        signal.signal(signal.{name}, lambda *_: sys.exit(9))
        print("ready", flush=True)
        while True:
            time.sleep(0.1)
    """
    words = ["--run", "x", "--to", "tcp://127.0.0.1:9", "--", sys.executable, "-c", script]
    process = launched(tmp_path, words, said=b"ready\n")
    process.send_signal(getattr(signal, name))
    process.communicate(timeout=60)
    assert process.returncode == 9


def test_a_signal_that_is_ignored_stays_so_for_the_command(tmp_path: Path) -> None:
    """As nohup has it."""
    script = "import signal; print('ready', flush=True); input(); "
    script += "print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    words = ["--run", "x", "--to", "tcp://127.0.0.1:9", "--", sys.executable, "-c", script]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = launched(tmp_path, words, said=b"ready\n")
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    said, _ = process.communicate(b"\n", timeout=60)
    assert (said, process.returncode) == (b"True\n", 0)


@pytest.mark.parametrize(
    ("imports", "is_told"), [("jax", True), ("jax, rankscope.agent.jax", False)]
)
def test_a_script_of_jax_is_told_that_it_is_not_observed_from_outside(
    tmp_path: Path, imports: str, is_told: bool
) -> None:
    words = ["--run", "x", "--to", "tcp://127.0.0.1:9", "--", sys.executable, "-c"]
    process = launched(tmp_path, [*words, f"print('ready', flush=True); import {imports}"],
                       said=b"ready\n")  # fmt: skip
    _, complained = process.communicate(timeout=60)
    assert (process.returncode, b"nothing is observed: a jitted step" in complained) == (0, is_told)


def test_keys_without_the_collector_that_they_are_for_are_refused(tmp_path: Path) -> None:
    said = ran(tmp_path, "plain", code=1, options=["--keys", "keys/agent"])
    assert said.startswith("Error: `keys` (or RANKSCOPE_KEYS) are for the collector that `to`")


def test_keys_that_are_not_there_are_refused_before_the_job_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--run", "x", "--keys", "/nonexist", "--to", "tcp://127.0.0.1:7999"]
    result = CliRunner().invoke(cli, ["run", *words, "--", "touch", "started"])

    assert result.exit_code == 1
    assert result.output.startswith("Error: There is no key /nonexist/own.key_secret: make keys")
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_what_stands_behind_the_first_word_of_the_command_is_its_own(dashes: list[str]) -> None:
    own = ["--every", "3", "--directory", "out", "--", "--help", "--nproc-per-node"]
    script = "import os, sys; print(*sys.argv[1:], os.environ['RANKSCOPE_OBSERVE'])"
    words = ["--run", "x", "--to", "tcp://127.0.0.1:9", *dashes, sys.executable, "-c", script]
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", "run", *words, *own],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{' '.join(own)} {{}}\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["train.py", "2"], "train.py cannot be run: No such file or directory. It is a script; "
                            "say what runs it: python train.py 2"),
        (["./train.py"], "Permission denied. It is a script; say what runs it: python ./train.py"),
        (["./go.sh"], "Permission denied. It is a script; say what runs it: bash ./go.sh"),
        (["./go"], "It may not be executed: chmod +x ./go, or say what runs it before it."),
        (["ready"], "ready cannot be run: No such file or directory. Say where it is: ./ready"),
        (["./ready"], "Exec format error. Say what runs it, before its name."),
        (["python train.py 2"], "Say its words apart, without quotes: python train.py 2"),
        (["."], "That is a folder."),
        (["nowhere.py"], "Error: nowhere.py cannot be run: No such file or directory."),
    ],
)  # fmt: skip
def test_of_a_command_that_cannot_be_run_it_is_said_what_may_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "go.sh", "go", "ready"):
        (tmp_path / name).write_text("echo")
    (tmp_path / "ready").chmod(0o755)
    words = ["--run", "x", "--to", "tcp://127.0.0.1:9"]
    result = CliRunner().invoke(cli, ["run", *words, "--", *command])

    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert result.output.endswith(f"{said}\n")


def test_kinds_may_have_blanks_between() -> None:
    words = ["--run", "x", "--kinds", "weight, activation", "--print-environment"]
    result = CliRunner().invoke(cli, ["run", *words])
    assert """RANKSCOPE_OBSERVE='{"kinds": ["weight", "activation"]}'""" in result.output


def test_a_variable_that_is_none_of_ours_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANKSCOPE_EVRY", "RANKSCOPE_KIND", "RANKSCOPE_DRI", "RANKSCOPE_RUN"):
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("RANKSCOPE_COLLECT_MEMORY", "64")
    monkeypatch.setenv("RANKSCOPE_COLLECT_MEMROY", "64")
    result = CliRunner().invoke(cli, ["run", "--print-environment"])
    evry, kind, dri, memory = result.stderr.splitlines()
    assert evry.startswith("Warning: environment: there is no 'RANKSCOPE_EVRY'; did you mean ")
    assert "RANKSCOPE_AGENT_EVERY" in evry
    assert "there is no 'RANKSCOPE_KIND'; did you mean RANKSCOPE_AGENT_KINDS" in kind
    assert "there is no 'RANKSCOPE_DRI'; did you mean RANKSCOPE_DIR" in dri
    assert "there is no 'RANKSCOPE_COLLECT_MEMROY'; did you mean RANKSCOPE_COLLECT_MEM" in memory


def test_a_run_that_another_collector_writes_is_refused_before_the_job_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with RunWriter.open("rankscope-runs/same", run="same"):
        result = CliRunner().invoke(cli, ["run", "--run", "same", "--", "touch", "started"])

    assert result.exit_code == 1
    assert result.output == (
        f"Error: rankscope-runs/same is being written by process {os.getpid()}; stop that one or "
        "choose another --run, or another --directory.\n"
    )
    assert not (tmp_path / "started").exists()


def test_a_run_that_another_collector_has_taken_meanwhile_is_not_what_was_observed(
    tmp_path: Path,
) -> None:
    words = ["--run", "taken", "--", sys.executable, str(JOB), "taken"]
    process = launched(tmp_path, words, said=b"ready\n")
    with RunWriter.open(tmp_path / "rankscope-runs" / "taken", run="taken"):
        _, said = process.communicate(timeout=100)

    last = said.decode().splitlines()[-1]
    assert last.startswith("rankscope: what was observed was not stored, or not all of it: ")
    assert "rankscope-runs/taken is being written by process " in last


def test_a_process_that_is_killed_is_told_as_lost(tmp_path: Path) -> None:
    ran(tmp_path, "killed", code=137)
    run = run_of(tmp_path, "killed")
    assert run.ending.state == "ranks lost"
    [text] = run.events().query("kind == 'rank-lost'")["text"]
    assert "Rank 0 had not said goodbye when the collector was stopped" in text


def test_when_it_is_killed_the_command_is_observed_to_its_end_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    process = launched(tmp_path, IN_HALVES, said=b"half\n")
    started = psutil.Process(process.pid).children()

    process.kill()
    process.communicate()

    assert len(started) == 2
    assert psutil.wait_procs(started, timeout=60)[1] == []
    assert run_of(tmp_path, "in_halves").records()["step"].tolist() == [*range(5)]


def test_a_collector_that_dies_is_told_and_leaves_its_log(tmp_path: Path) -> None:
    process = launched(tmp_path, IN_HALVES, said=b"half\n")
    [collector] = [
        one for one in psutil.Process(process.pid).children() if "collect" in one.cmdline()
    ]

    collector.kill()
    _, said = process.communicate(timeout=100)

    [last] = [line for line in said.decode().splitlines() if "the collector ended" in line]
    log = (tmp_path / "rankscope-runs" / "in_halves.log").read_text()
    told = "the collector ended before the command did; it said last: "
    assert last == f"rankscope: {told}{log.splitlines()[-1]}"


def test_the_words_to_look_at_a_run_can_be_pasted(tmp_path: Path) -> None:
    said = ran(tmp_path, "plain", options=["--run", "my run=3@x"])
    assert said.splitlines()[-1].endswith(": rankscope view 'rankscope-runs/my run=3@x'")


def test_what_trains_nothing_has_no_run(tmp_path: Path) -> None:
    said = ran(tmp_path, "nothing")
    assert "no process trained anything that could be observed" in said
    assert "in training mode (`model.train()`)" in said
    assert "`python -I` or `-E`" in said


@pytest.mark.parametrize("options", [[], ["--to", "tcp://127.0.0.1:1"]])
def test_a_process_that_trains_what_cannot_be_observed_says_so(
    tmp_path: Path, options: list[str]
) -> None:
    said = ran(tmp_path, "evaluating", options=options)
    assert said.startswith(
        "rankscope: nothing was observed in this process: an optimizer was made, and no module "
        "that it updates was called in training mode (`model.train()`).\n"
    )


def test_a_run_of_before_is_not_what_was_observed(tmp_path: Path) -> None:
    with RunWriter.open(tmp_path / "rankscope-runs" / "nothing", run="nothing"):
        pass

    said = ran(tmp_path, "nothing")

    assert "nothing was observed: " in said
    assert said.endswith(" What is in rankscope-runs/nothing is from before.\n")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--run", "bad/name"], "A run's name is letters, digits and ._+=@ -, got 'bad/name'."),
        (["--run", "x" * 300], "A run's name has 128 characters at most, got 300: 'xxx"),
        (["--run", "x", "--kinds", "weights"], "kinds is one of input, local_activation, "),
        (["--run", "x", "--kinds", "weight,weights"], "got 'weights'."),
        (["--run", "x", "--include", "("], "include='(' is not a regular expression"),
        (["--run", "x", "--kinds", "activatoin"], "got 'activatoin'. Did you mean activation?"),
        (["--run", "x", "--to", "tcp://127.0.0.1"], "An address looks like tcp://127.0.0.1:7600"),
        (["--run", "x", "--budget", "2"], "budget cannot be 2.0: expected `float` <= 1.0."),
    ],
)
def test_what_every_rank_would_refuse_is_refused_before_the_job_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["run", *options, "--", "touch", "started"])

    assert result.exit_code == 1
    assert result.output.startswith("Error: rankscope run: ")
    assert why in result.output
    assert not (tmp_path / "started").exists()


def test_why_a_collector_did_not_start_is_said_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", "run", "--run", "x", "--", "true"],
        cwd=tmp_path,
        env={**os.environ, "RANKSCOPE_COLLECT_MEMORY": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Invalid value for '--memory': 1 is not in the range")


def test_all_faults_that_a_collector_finds_in_the_file_of_settings_are_told(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[collect]\nkep_steps = 3\nmemory = 2\n")
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", "--config", "r.toml", "run", "--run", "x", "true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    steps, memory = done.stderr.splitlines()
    assert done.returncode == 1
    assert "there is no 'kep_steps'; did you mean keep_steps" in steps
    assert memory.endswith("memory cannot be 2: expected `int` >= 16.")


def test_the_environment_alone_switches_it_on_and_another_sitecustomize_is_kept(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.stderr.write('mine\\n')\n")
    shown = subprocess.run(
        [
            *(sys.executable, "-m", "rankscope", "run", "--run", "x", "--every", "3"),
            *("--to", "tcp://127.0.0.1:9", "--print-environment"),
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    script = f"{shown}\n{sys.executable} -c 'import os; print(os.environ[\"RANKSCOPE_OBSERVE\"])'"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ('{"every": 3}\n', "mine\n")


def test_an_interpreter_without_rankscope_is_named(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv")
    (tmp_path / "torch.py").write_text("")
    startup = Path(launch.__file__).parent / "startup"
    python = tmp_path / "venv" / "bin" / "python"
    done = subprocess.run(
        [python, "-c", "import torch"],
        env={"PYTHONPATH": f"{startup}{os.pathsep}{tmp_path}", "RANKSCOPE_OBSERVE": "{}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == (
        f"rankscope: nothing is observed: {python} has no rankscope; install rankscope[torch] "
        "there, too.\n"
    )
