"""The server: its handle, its sessions, and what it says when it cannot start."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from rankscope.sketch import AddressError, NotARunError
from rankscope.viewer import serve
from rankscope.viewer.command import view


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read().decode()


def test_the_page_is_served_without_foreign_addresses_until_it_is_stopped(broken_job: Path) -> None:
    server = serve(broken_job)
    try:
        page = get(server.address)
        assert "<title>gpt-small – rankscope</title>" in page
        assert 'src="http' not in page
        assert 'href="http' not in page
        assert server.runs.only.listeners == 0, "a client that never loads costs nothing"
    finally:
        server.stop()
    with pytest.raises(OSError, match="refused"):
        get(server.address)


def test_a_directory_of_runs_has_an_index(new_job: Callable, tmp_path: Path) -> None:
    new_job("first", run="first").commit(range(2))
    new_job("second", run="second").commit(range(3))
    server = serve(tmp_path)
    try:
        assert "?run=second" in get(server.address)
        assert "<title>second – rankscope</title>" in get(server.address + "?run=second")
        assert "There is no run “third” here." in get(server.address + "?run=third")
    finally:
        server.stop()


def test_a_port_that_is_taken_is_told_with_the_cure(broken_job: Path) -> None:
    server = serve(broken_job)
    port = int(server.address.rstrip("/").rpartition(":")[2])
    try:
        cure = f"Port {port} on 127.0.0.1 is in use: take another with --port {port + 1}"
        with pytest.raises(AddressError, match=cure):
            serve(broken_job, port=port)
    finally:
        server.stop()


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotARunError, match="nowhere"):
        serve(tmp_path / "nowhere")


def test_the_command_prints_the_address(broken_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.viewer.server.Server.wait", lambda server: server.stop())

    result = CliRunner().invoke(view, [str(broken_job), "--port", "0", "--no-open"])

    assert result.exit_code == 0
    assert result.output.startswith(f"Showing {broken_job} at http://127.0.0.1:")


def test_the_viewer_loads_no_socket_library_and_no_framework() -> None:
    code = (
        "import sys, rankscope.viewer; "
        "print(sorted({'zmq', 'torch', 'jax', 'holoviews', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
