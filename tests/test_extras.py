"""What is said where an extra is not installed: which one, and how to install it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("hidden", "line", "purpose", "extra"),
    [
        ("icechunk", "from rankscope.store import open_run", "The store of runs", "collector"),
        ("pandas", "from rankscope.store import open_run", "The store of runs", "collector"),
        ("icechunk", "import rankscope.logframe", "The store of runs", "collector"),
        ("icechunk", "import rankscope.collector", "The store of runs", "collector"),
        ("panel", "from rankscope.viewer import plots", "The viewer", "viewer"),
        ("holoviews", "from rankscope.viewer import plots", "Plots of runs", "notebook"),
        ("jax", "import rankscope.agent.jax", "The agent for JAX", "jax"),
        ("jax", "from rankscope.agent.jax import tensors", "The agent for JAX", "jax"),
        ("torch", "import rankscope.agent.torch", "The agent for PyTorch", "torch"),
    ],
)
def test_an_import_names_the_extra_that_is_missing(
    hidden: str, line: str, purpose: str, extra: str, tmp_path: Path
) -> None:
    script = f"import sys\nsys.modules[{hidden!r}] = None\n{line}"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )

    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: {purpose} needs {hidden}, which is not installed: "
        f"pip install 'rankscope[{extra}]'."
    )


def test_a_module_of_ours_that_is_gone_is_not_explained_away(tmp_path: Path) -> None:
    script = "import sys\nsys.modules['rankscope.store.writer'] = None\nimport rankscope.store"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )

    assert "pip install" not in done.stderr
    assert "rankscope.store.writer" in done.stderr


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        (["--to", "tcp://127.0.0.1:7600", "--print-environment"], 0, ""),
        (
            ["--", sys.executable, "-c", "pass"],
            1,
            "Error: `rankscope run` needs icechunk, which is not installed. "
            "Install it with: pip install 'rankscope[torch,collector]'\n",
        ),
    ],
    ids=["of another host", "of its own"],
)
def test_a_job_needs_the_extra_of_the_collector_where_it_starts_one(
    asked: list[str], code: int, said: str, tmp_path: Path
) -> None:
    hidden = "import sys\nsys.modules['icechunk'] = None\n"
    script = f"{hidden}from rankscope.__main__ import main\nmain()"
    command = [sys.executable, "-c", script, "run", "--run", "x", *asked]

    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        # Settings of the tests are strange to the command, which says so.
        env={name: value for name, value in os.environ.items() if "RANKSCOPE_" not in name},
        check=False,
    )

    assert (done.returncode, done.stderr) == (code, said)
