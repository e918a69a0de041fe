"""Reading a run asks for no right to write, and writes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LOOK = """
import sys, urllib.request
from contextlib import suppress
from rankscope.__main__ import cli
from rankscope.viewer import serve

run, report = sys.argv[1:]
try:
    open(run + "/new", "w")
except PermissionError:
    print("may not write")
for line in (["why", run], ["report", run, "-o", report]):
    with suppress(SystemExit):  # `why` tells by its code whether something is wrong
        cli(line, standalone_mode=False)
for path, query in ((run, "?"), (run.rpartition("/")[0], "?run=read-only&")):
    server = serve(path)
    for name in ("triage", "map"):
        page = urllib.request.urlopen(server.address + query + "page=" + name, timeout=30)
        print("shown", name, page.status)
    server.stop()
"""


def facts(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Size, mode and time of change of all that is in a folder, and of itself."""
    places = [folder, *folder.rglob("*")]
    return {str(one): (one.stat().st_size, one.stat().st_mode, one.stat().st_mtime_ns)
            for one in places}  # fmt: skip


def test_a_run_is_shown_reported_and_judged_by_who_may_not_write_it(
    judged_job: Path, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "read-only"
    shutil.copytree(judged_job, run)
    for place in [*run.rglob("*"), run, run.parent]:
        place.chmod(0o555 if place.is_dir() else 0o444)
    before = facts(run.parent)
    command = [sys.executable, "-c", LOOK, str(run), str(tmp_path / "report.html")]
    if os.geteuid() == 0:
        # Root minds no modes unless it gives up the right to.
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("without setpriv root cannot give up the right to write")
        command = [setpriv, "--bounding-set=-dac_override", "--inh-caps=-dac_override", *command]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    after = facts(run.parent)
    for place in (run.parent, run, *run.rglob("*")):
        place.chmod(0o755)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("may not write\n")
    assert done.stdout.endswith("shown triage 200\nshown map 200\n" * 2)
    assert "blocks.2.mlp.act" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert after == before
