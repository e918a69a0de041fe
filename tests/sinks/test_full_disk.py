"""A file that takes only a part of what is written loses that part again, and goes on later."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from .test_tensorboard import read

WRITER = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from rankscope.sinks import Numbers
from rankscope.sinks.json_lines import JsonLines
from rankscope.sinks.tensorboard import TensorBoard

def news(step, names=1):
    return Numbers(run="demo", attempt=0, launch="one", record=step, step=step, time_ns=10**18,
                   values={f"training/{place}": 1.0 for place in range(names)}, exponents={})

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sink = (JsonLines if sys.argv[1] == "jsonl" else TensorBoard)(Path(sys.argv[2]))
sink.take(news(0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    sink.take(news(1, names=500))
except OSError as error:
    print(error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
sink.take(news(2))
"""


def said_by(kind: str, target: Path) -> str:
    return subprocess.check_output([sys.executable, "-c", WRITER, kind, str(target)], text=True)


def test_lines_of_json_stay_whole(tmp_path: Path) -> None:
    said = said_by("jsonl", tmp_path / "news")

    assert said == "No space left on device\n"
    steps = [json.loads(line)["step"] for line in (tmp_path / "news").read_text().splitlines()]
    assert steps == [0, 2]


def test_events_of_tensorboard_stay_whole(tmp_path: Path) -> None:
    said = said_by("tensorboard", tmp_path)

    assert said == "No space left on device\n"
    found = read(tmp_path / "demo" / "attempt-0")
    assert [one.step for one in found.Scalars("training/0")] == [0, 2]
