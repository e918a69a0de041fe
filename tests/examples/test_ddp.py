"""The smallest data-parallel example says where its run is, if it is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ..relay.relaying import free_port

SCRIPT = Path(__file__).parents[2] / "examples" / "ddp.py"


def test_what_nobody_took_is_not_told_as_sent(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", str(SCRIPT)]
    environment = {**os.environ, "RANKSCOPE_TO": f"tcp://127.0.0.1:{free_port()}"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )

    assert "frames of rank telemetry were not stored: no collector has answered" in done.stderr
    assert done.stdout == ""
