"""What an operator has of a relay: its health, and its log."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from ..collector.serving import STARTED, outbox, send, start_collector, wait_until
from ..collector.test_operation import ask
from .relaying import end, free_port


def start(to: str, *options: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A relay with /healthz, and where it is."""
    relay = [sys.executable, "-m", "rankscope", "relay", "--announce", "--to", to]
    process = subprocess.Popen(
        [*relay, "--bind", "tcp://127.0.0.1:*", "--health", "127.0.0.1:0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    STARTED.append(process)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_spool_and_upstream_are_told_over_http(tmp_path: Path) -> None:
    port = free_port()
    options = ["--spool", str(tmp_path / "spool"), "--min-free", "0"]
    process, where = start(f"tcp://127.0.0.1:{port}", *options)
    assert ask(f"{where['health']}/healthz")[0] == 200
    box = outbox(where["address"])
    send(box, range(5))
    assert box.close(timeout_s=15)
    wait_until(lambda: ask(f"{where['health']}/counters")[1]["spool_frames"] == 5)
    code, said = ask(f"{where['health']}/healthz")
    counters = ask(f"{where['health']}/counters")[1]
    assert (code, counters["is_connected"]) == (200, False)
    assert (
        said["status"]
        == f"There is no connection to tcp://127.0.0.1:{port} yet: what comes is kept."
    )
    assert counters["status"] == said["status"]
    assert counters["dropped"] == {}
    collector, _ = start_collector(tmp_path / "runs", "--until-done", port=port)
    wait_until(lambda: ask(f"{where['health']}/counters")[1]["is_connected"])
    assert ask(f"{where['health']}/healthz") == (200, {"status": "ok"})
    end(collector)
    wait_until(lambda: ask(f"{where['health']}/counters")[1]["held_frames"] == 0)
    assert ask(f"{where['health']}/other")[0] == 404
    process.send_signal(signal.SIGTERM)
    end(process)


def test_a_relay_knows_its_connection_before_a_rank_comes(tmp_path: Path) -> None:
    port = free_port()
    process, where = start(f"tcp://127.0.0.1:{port}")
    health, counters = f"{where['health']}/healthz", f"{where['health']}/counters"
    wait_until(lambda: ask(health)[1]["status"].startswith("There is no connection to"))
    assert not ask(counters)[1]["is_connected"]

    collector, _ = start_collector(tmp_path / "runs", port=port)
    wait_until(lambda: ask(health) == (200, {"status": "ok"}))
    assert ask(counters)[1]["is_connected"]

    collector.send_signal(signal.SIGTERM)
    end(collector)
    wait_until(lambda: not ask(counters)[1]["is_connected"])
    process.send_signal(signal.SIGTERM)
    end(process)


def test_log_lines_are_json_if_wanted_and_else_have_a_time() -> None:
    to = f"tcp://127.0.0.1:{free_port()}"
    process, _ = start(to, "--log-format", "json")
    process.send_signal(signal.SIGTERM)
    lines = [json.loads(line) for line in end(process).splitlines()]
    assert lines[0]["message"].startswith("Listening on tcp://127.0.0.1:")
    assert json.loads(lines[-1]["message"])["frames"] == 0
    process, _ = start(to)
    process.send_signal(signal.SIGTERM)
    when = end(process).partition(" ")[0]
    assert abs(time.mktime(time.strptime(when[:19], "%Y-%m-%dT%H:%M:%S")) - time.time()) < 60
