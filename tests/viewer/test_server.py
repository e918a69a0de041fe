"""The server: its handle, its sessions, and what it says when it cannot start."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
import urllib.request
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from tornado.websocket import WebSocketClosedError

from rankscope.sketch import AddressError, NotARunError
from rankscope.viewer import Server, markup, serve
from rankscope.viewer.command import view
from rankscope.viewer.server import Runs, tell_failure


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read().decode()


def test_the_page_is_served_without_foreign_addresses_until_it_is_stopped(broken_job: Path) -> None:
    server = serve(broken_job)
    try:
        page = get(server.address)
        assert "<title>rankscope</title>" in page
        assert 'src="http' not in page
        assert 'href="http' not in page
        assert server.runs.only is not None
        assert server.runs.only.listeners == 0, "a client that never loads costs nothing"
    finally:
        server.stop()
    with pytest.raises(OSError, match="refused"):
        get(server.address)


def test_a_session_that_no_browser_loaded_is_freed(broken_job: Path) -> None:
    server = serve(broken_job, forget_s=1.0)
    try:
        get(server.address)
        freed = weakref.ref(server.open[0].visited.page)
        deadline = time.monotonic() + 20
        while freed() is not None and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.1)  # the server frees by its own clock
        assert server.open == []
        assert freed() is None
    finally:
        server.stop()


def test_a_directory_of_runs_lists_them_and_opens_one_by_its_name(
    new_job: Callable, tmp_path: Path
) -> None:
    new_job("first", run="gpt <small>").commit(range(2))
    new_job("second").commit(range(3))
    runs = Runs(tmp_path)

    page = markup.index(runs.list(), path=runs.path, now_s=1_760_000_062)

    assert (
        '<a href="?run=first">gpt &lt;small&gt;</a></th><td>live, 1 min ago</td><td>0–1</td>'
        in page
    )
    assert runs.only is None
    second = runs.find("second")
    assert second is not None
    assert second.run.name == "gpt-small"
    assert runs.find("second") is second
    assert runs.find("third") is None
    assert runs.find("../first") is None


def test_an_empty_directory_says_so(tmp_path: Path) -> None:
    runs = Runs(tmp_path)

    assert "There is no run in" in markup.index(runs.list(), path=runs.path, now_s=0)


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


def test_the_command_asks_for_the_token_of_a_file_and_tells_it_to_nobody(
    broken_job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Server] = []
    monkeypatch.setattr("rankscope.viewer.server.Server.wait", lambda one: seen.append(one))
    file = tmp_path / "view.token"
    command = [str(broken_job), "--port", "0", "--no-open", "--address", "0.0.0.0"]

    for said in ("Made a token in", "It asks for the token in"):
        result = CliRunner().invoke(
            view, [*command, "--token-file", str(file), "--prefix", "/r", "--allow-origin", "b.org"]
        )
        seen[-1].stop()
        assert result.exit_code == 0
        assert result.output.startswith(f"{said} {file}\nShowing {broken_job} at http://127.0.0.1:")
        assert result.output.endswith("/r/ (Ctrl+C ends)\n")
        assert file.read_text().strip() not in result.output
    assert seen[-1].access.token == file.read_text().strip()
    assert seen[-1].access.origins == ("b.org",)


def test_the_command_takes_the_token_of_its_environment_out_of_it(
    broken_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Server] = []
    monkeypatch.setattr("rankscope.viewer.server.Server.wait", lambda one: seen.append(one))
    monkeypatch.setenv("RANKSCOPE_VIEW_TOKEN", "correct horse")

    result = CliRunner().invoke(view, [str(broken_job), "--port", "0", "--no-open"])
    seen[0].stop()

    assert seen[0].access.token == "correct horse"
    assert "RANKSCOPE_VIEW_TOKEN" not in os.environ
    assert "It asks for the token in RANKSCOPE_VIEW_TOKEN" in result.output


def test_the_command_opens_to_others_without_a_token_only_if_told_to(
    broken_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.viewer.server.Server.wait", lambda server: server.stop())
    command = [str(broken_job), "--port", "0", "--no-open", "--address", "0.0.0.0"]

    refused = CliRunner().invoke(view, command)
    told = CliRunner().invoke(view, [*command, "--insecure"])
    behind = [*command[:-2], "--allow-origin", "runs.example.org"]
    proxied = CliRunner().invoke(view, behind)

    assert isinstance(refused.exception, AddressError)
    assert "Whoever reaches 0.0.0.0 can look at all of it." in told.output
    assert "Browsers on other machines need `--allow-origin NAME:PORT`" in told.output
    assert "Whoever reaches runs.example.org can look at all of it, unless" in proxied.output


def test_the_viewer_loads_no_socket_library_and_no_framework() -> None:
    code = (
        "import sys, rankscope.viewer; "
        "print(sorted({'zmq', 'torch', 'jax', 'holoviews', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


SCRIPT = """
import sys, threading, time
from rankscope.viewer import serve

server, begun = serve(sys.argv[1], interval_s=0.001), threading.Event()

def told():
    begun.set()
    time.sleep(0.5)
    print("looked")

server.runs.only.listen(told)
begun.wait()
"""


def test_a_script_that_does_not_stop_its_server_ends_after_the_look_that_is_under_way(
    broken_job: Path,
) -> None:
    """A thread that still looks when the interpreter is taken apart has aborted the process."""
    command = [sys.executable, "-c", SCRIPT, str(broken_job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "looked\n", "")


def test_a_page_that_is_left_is_no_failure_and_any_other_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(tell_failure)
    told = "Task exception was never retrieved"

    loop.call_exception_handler({"message": told, "exception": WebSocketClosedError()})
    assert caplog.messages == []
    loop.call_exception_handler({"message": told, "exception": ValueError("lost")})
    assert caplog.messages == [told]
    loop.close()
