"""`rankscope doctor`: a line for each thing that is well, or not, and what to do."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner, Result

from rankscope.__main__ import cli
from rankscope.wire import PROTOCOL
from rankscope.wire.keys import CollectorKeys

from ..collector.serving import serving, start_collector, wait_until
from ..relay.relaying import free_port, relaying


def examine(*options: str) -> Result:
    """What it says."""
    return CliRunner().invoke(cli, ["doctor", *options])


def test_a_healthy_place_is_told_so_and_left_as_it_was(tmp_path: Path) -> None:
    result = examine("--store", str(tmp_path / "runs"))

    assert result.exit_code == 0
    assert f"(protocol {PROTOCOL}), Python 3." in result.output
    assert f"ok    {tmp_path}/runs can be written and has " in result.output
    assert "ok    A small commit takes " in result.output
    assert " frames a second, of 100 sites each" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_collector_that_answers_is_measured_and_no_run_is_made(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        result = examine("--to", service.address)

        assert service.statistics().streams == 0
    assert result.exit_code == 0
    assert f"ok    {service.address} answers in " in result.output
    assert "it is a collector of rankscope " in result.output
    assert "ok    Both clocks agree within " in result.output
    assert list(tmp_path.iterdir()) == []


def test_who_is_well_logs_nothing_of_being_asked(tmp_path: Path) -> None:
    process, address = start_collector(tmp_path)
    try:
        result = examine("--to", address)
        time.sleep(0.5)  # it would be logged when the collector looks at its connections next
    finally:
        process.terminate()
        log = process.communicate()[1]

    assert result.exit_code == 0
    assert "refused" not in log
    assert "Listening on" in log


def test_a_relay_is_told_as_one_with_whether_it_has_anybody_to_send_to(tmp_path: Path) -> None:
    with serving(tmp_path) as collector, relaying(collector.address) as relay:
        reaches = examine("--to", relay.address)
    nobody = f"tcp://127.0.0.1:{free_port()}"
    with relaying(nobody) as relay:
        wait_until(lambda: relay.health.lost)
        alone = examine("--to", relay.address)

    assert reaches.exit_code == 0
    assert "it is a relay of rankscope " in reaches.output
    assert alone.exit_code == 1
    text = f"That relay has nobody to send to (There is no connection to {nobody} yet: what comes"
    assert text in alone.output


def test_agents_and_relays_have_a_doctor_without_a_collectors_packages(tmp_path: Path) -> None:
    script = (
        "import sys\nsys.modules['icechunk'] = None\nfrom rankscope.__main__ import main\nmain()"
    )
    with serving(tmp_path / "runs") as service:
        command = [sys.executable, "-c", script, "doctor", "--to", service.address]
        done = [
            subprocess.run([*command, *more], capture_output=True, text=True, check=False)
            for more in ([], ["--store", str(tmp_path)])
        ]

    assert [one.returncode for one in done] == [0, 1]
    assert f"ok    {service.address} answers in " in done[0].stdout
    assert "bad   --store needs icechunk, which is not installed: pip install" in done[1].stdout


def test_nothing_that_listens_is_told_with_the_command_to_give() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    result = examine("--to", address)

    assert result.exit_code == 1
    assert (
        f"cannot be reached (Connection refused): start `rankscope collect --bind {address}`"
        in (result.output)
    )


def test_what_is_no_collector_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.doctor.network.ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = examine("--to", f"tcp://127.0.0.1:{server.getsockname()[1]}")
    assert result.exit_code == 1
    assert "does not answer: it is no collector, or it asks for keys" in result.output

    with zmq.Context() as context, context.socket(zmq.REP) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")
        assert examine("--to", f"tcp://127.0.0.1:{port}").exit_code == 1


def test_a_collector_with_keys_answers_to_those_of_its_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.doctor.network.ANSWER_S", 2.0)
    for name in ("keys", "others"):
        assert CliRunner().invoke(cli, ["keygen", str(tmp_path / name)]).exit_code == 0
    with serving(tmp_path / "runs", keys=CollectorKeys.load(tmp_path / "keys/collector")) as it:
        ours = examine("--to", it.address, "--keys", str(tmp_path / "keys/agent"))
        others = examine("--to", it.address, "--keys", str(tmp_path / "others/agent"))
        none = examine("--to", it.address)

    assert ours.exit_code == 0
    assert f"ok    {it.address} answers in " in ours.output
    assert (others.exit_code, none.exit_code) == (1, 1)
    assert f"or other ones than {tmp_path}/others/agent/collector.key" in others.output
    assert "then give those of an agent, --keys keys/agent." in none.output
    assert "nowhere/own.key_secret" in examine("--to", it.address, "--keys", "nowhere").output


def test_an_address_that_is_none_is_told() -> None:
    result = examine("--to", "somewhere")

    assert result.exit_code == 1
    assert "bad   An address looks like tcp://127.0.0.1:7600" in result.output


def test_a_store_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(cli, ["doctor", "--store", str(tmp_path / "file" / "runs")])

    assert result.exit_code == 1
    assert "cannot be written (Not a directory): give another --store." in result.output

    result = CliRunner().invoke(cli, ["doctor", "--store", "ftp://host/runs"])
    assert result.exit_code == 1
    assert "neither a path nor a URL that begins with s3://, gs://, az://): give" in result.output


def test_a_collector_with_keys_on_this_machine_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.doctor.network.ANSWER_S", 1.0)
    assert CliRunner().invoke(cli, ["keygen", str(tmp_path / "keys")]).exit_code == 0
    with serving(tmp_path / "runs", keys=CollectorKeys.load(tmp_path / "keys/collector")) as it:
        monkeypatch.setattr("rankscope.doctor.network.DEFAULT", it.address)
        result = examine()

    assert result.exit_code == 0
    assert f"note  {it.address}: what listens there does not answer" in result.output
    assert "then give those of an agent, --keys keys/agent." in result.output
