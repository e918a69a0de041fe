"""Runs in buckets: written, read and listed, with the errors that people meet."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.agent.torch import observe
from rankscope.sketch import NotARunError, SettingError, StoreError
from rankscope.store import Record, RunWriter, list_runs, open_run
from rankscope.viewer import serve

from ..collector.serving import outbox, send, serving
from .conftest import open_writer

if TYPE_CHECKING:
    from rankscope.agent import Outbox

    from .conftest import Bucket
    from .proxy import Proxy

Make = Callable[..., Record]
IN_ORDER = np.array([0, 1, 3, 2])


def test_a_run_is_written_and_read_back(writer: RunWriter, record: Make, bucket: Bucket) -> None:
    made = [record(index) for index in range(40)]
    writer.commit(made[:25], streams={"s": 24})
    writer.commit(made[25:], streams={"s": 39})
    writer.compact_if_due()

    run = open_run(str(writer.path))

    assert str(run.path) == str(writer.path) == f"{bucket.url}/team/gpt"
    assert run.records().index.tolist() == list(range(40))
    for one in (made[0], made[31], made[39]):
        assert run.table(one.step)[1] == one.merged.take(IN_ORDER)

    writer.finish()
    writer.close()
    assert run.refresh()
    assert run.finished
    assert run.table(31)[1] == made[31].merged.take(IN_ORDER)
    with RunWriter.open(str(writer.path), run="gpt") as again:
        assert (again.next_record, again.streams) == (40, {"s": 39})
        again.commit([record(40)], streams={"s": 40})
    assert run.refresh()
    assert len(run.records()) == 41


def test_runs_in_a_bucket_are_listed(writer: RunWriter, record: Make, bucket: Bucket) -> None:
    writer.commit([record(0, step=3), record(1, step=4)], streams={})
    folder = f"{bucket.url}/team"

    [run] = list_runs(folder)
    result = CliRunner().invoke(cli, ["runs", folder, "--json"])

    assert (run.name, run.first_step, run.last_step, run.records) == ("gpt", 3, 4, 2)
    [listed] = json.loads(result.output)
    assert (listed["name"], listed["path"]) == ("gpt", f"{folder}/gpt")
    assert [one.name for one in list_runs(f"{folder}/gpt/")] == ["gpt"]
    with pytest.raises(NotARunError, match="team is a folder of runs: gpt"):
        open_run(folder)


def test_where_no_run_lies_yet_there_is_none_and_the_viewer_waits_for_one(
    bucket: Bucket, record: Make
) -> None:
    folder = f"{bucket.url}/team"

    assert list_runs(folder) == []
    with pytest.raises(NotARunError, match="team holds nothing; give a run"):
        open_run(folder)
    server = serve(folder)
    try:
        assert server.runs.names() == []
        with open_writer(f"{folder}/gpt") as writer:
            writer.commit([record(0, step=3)], streams={})
        assert server.runs.names() == ["gpt"]
    finally:
        server.stop()


def test_a_place_that_holds_something_else_is_left_alone(bucket: Bucket) -> None:
    bucket.put("team/gpt/model.pt", b"weights")

    with pytest.raises(NotARunError, match="gpt is a folder without a run; choose a URL that"):
        RunWriter.open(bucket.run, run="gpt")

    assert bucket.names() == ["team/gpt/model.pt"]


def test_a_job_is_collected_into_a_bucket(bucket: Bucket) -> None:
    folder = f"{bucket.url}/jobs"
    command = [sys.executable, "-m", "rankscope", "collect", "--bind", "tcp://127.0.0.1:*"]
    command += ["--store", folder, "--announce", "--until-done"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as collector:
        assert collector.stdout is not None
        address = json.loads(collector.stdout.readline())["address"]
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        with observe(model, optimizer, run="tiny", to=address) as scope:
            for _ in range(5):
                loss = model(torch.ones(4, 3)).square().sum()
                loss.backward()
                optimizer.step()
                scope.step(loss=loss)
                optimizer.zero_grad()
            until = time.monotonic() + 60
            while not scope.statistics().acknowledged:  # the repository is made first
                assert time.monotonic() < until
                time.sleep(0.1)

        assert collector.wait(60) == 0
    run = open_run(f"{folder}/tiny")
    assert run.finished
    assert run.records()["step"].tolist() == list(range(6))  # the last is the final state
    assert not run.scalar("rms", kind="weight").isnull().any()


def test_frames_are_taken_in_while_a_commit_stands_still(bucket: Bucket, proxy: Proxy) -> None:
    with serving(f"{bucket.url}/jobs") as service:
        box = outbox(service.address)
        send(box, range(2))
        wait_for(box, lambda: box.statistics().acknowledged == 2)
        proxy.flows.clear()
        send(box, range(2, 102), pause_s=0.01)  # three times what a collector takes unanswered
        wait_for(box, lambda: box.statistics().sent == 102)
        assert box.statistics().acknowledged < 102
        proxy.flows.set()
        assert box.close(timeout_s=60)

    assert open_run(f"{bucket.url}/jobs/demo").records()["step"].tolist() == list(range(102))


def wait_for(box: Outbox, is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < until
        box.poll(time.monotonic())
        time.sleep(0.01)


def test_the_viewer_shows_runs_of_a_bucket(writer: RunWriter, record: Make, bucket: Bucket) -> None:
    writer.commit([record(0)], streams={})
    server = serve(f"{bucket.url}/team")
    try:
        follower = server.runs.find("gpt")
        assert follower is not None
        writer.commit([record(1)], streams={})
        follower.look()
        assert follower.version == 1
        assert len(follower.records()) == 2
    finally:
        server.stop()


def test_the_doctor_tries_a_bucket_and_leaves_nothing_there(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"{bucket.url}/team"
    result = CliRunner().invoke(cli, ["doctor", "--store", folder])

    assert f"ok    {folder} can be written, and takes writes on condition." in result.output
    assert "    A small commit takes " in result.output
    assert bucket.names() == []

    for name, value in bucket.server.environment(NOWHERE).items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(cli, ["doctor", "--store", folder])
    assert result.exit_code == 1
    assert f"bad   {folder} cannot be written (Cannot " in result.output
    assert "cannot be reached; look at the network" in result.output


NO_KEYS = "the credentials are refused; set "
NOWHERE = "http://127.0.0.1:1"
ERRORS = {
    ("s3", "bucket"): ({}, "s3://no-such/gpt", "there is no bucket 'no-such'; make it first"),
    ("s3", "key"): ({"AWS_ACCESS_KEY_ID": "wrong"}, "", f"{NO_KEYS}AWS_ACCESS_KEY_ID"),
    ("s3", "secret"): ({"AWS_SECRET_ACCESS_KEY": "no"}, "", f"{NO_KEYS}AWS_ACCESS_KEY_ID"),
    ("s3", "away"): ({"AWS_ENDPOINT_URL": NOWHERE}, "", f"cannot be reached; .*{NOWHERE}"),
    ("s3", "address"): (
        {"AWS_ENDPOINT_URL": "ceph:7480"},
        "",
        "must begin with http.*got 'ceph:7480'",
    ),
    ("az", "bucket"): ({}, "az://no-such/gpt", "there is no container 'no-such'; make it first"),
    ("az", "name"): ({}, "az://A_B/gpt", "'A_B' is no name for a container; correct it"),
    ("az", "key"): ({"AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}, "", f"{NO_KEYS}AZURE_STORAGE"),
    ("az", "no key"): ({"AZURE_STORAGE_ACCOUNT_KEY": "?"}, "", f"{NO_KEYS}AZURE_STORAGE"),
    ("az", "away"): ({"AZURE_STORAGE_ENDPOINT": NOWHERE}, "", f"cannot be reached; .*{NOWHERE}"),
    ("az", "address"): (
        {"AZURE_STORAGE_ENDPOINT": "azure"},
        "",
        "must begin with http.*got 'azure'",
    ),
    ("gs", "away"): ({"GOOGLE_BASE_URL": NOWHERE}, "", f"cannot be reached; .*{NOWHERE}"),
}


@pytest.mark.parametrize(("server", "case"), ERRORS, indirect=["server"])
def test_what_is_wrong_is_said_in_words_and_soon(
    case: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, url, said = ERRORS[bucket.server.scheme, case]
    url = url or bucket.run
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    asked = {
        "Cannot read": lambda: open_run(url),
        "Cannot": lambda: RunWriter.open(url, run="gpt"),
    }
    for begins, ask in asked.items():
        began = time.monotonic()
        with pytest.raises(StoreError, match=f"{begins}.* {url}: .*{said}"):
            ask()
        assert time.monotonic() - began < 60

    result = CliRunner().invoke(cli, ["collect", "--bind", "tcp://127.0.0.1:*", "--store", url])
    assert result.exit_code == 1
    assert result.output.startswith("Error: Cannot")
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://a/b", "ftp://a/b is neither a path nor a URL that begins with s3://, gs://, az://"),
        ("s3:///run", "s3:///run must be s3://BUCKET/FOLDER"),
        ("az://box/../run", "az://box/../run must be az://CONTAINER/FOLDER"),
    ],
)
def test_a_url_that_names_nothing_is_refused(url: str, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        open_run(url)


def test_a_collector_that_starts_by_itself_writes_to_disk_only() -> None:
    with pytest.raises(SettingError, match=r"folder, got 's3://b/runs': start `rankscope collect"):
        observe(torch.nn.Linear(3, 2), run="tiny", directory="s3://b/runs")
