"""The example for JAX runs as it is documented, and leaves a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rankscope.store import open_run

SCRIPT = Path(__file__).parents[2] / "examples" / "flax_train.py"


def test_a_transformer_is_trained_and_watched(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--devices", "2", "--steps", "3", "--run", "flax"]
    environment = {name: value for name, value in os.environ.items() if name != "RANKSCOPE_TO"}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # to compile it takes less long
    said = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True, timeout=120)
    assert "look at it: rankscope view rankscope-runs/flax" in said
    run = open_run(tmp_path / "rankscope-runs" / "flax")
    assert run.records()["step"].tolist() == [0, 1, 2]
    assert run.ranks("rms", site="activation:block0.attention", steps=1).sizes["rank"] == 2
    assert {"loss", "learning_rate"} <= set(run.training()["name"].values.tolist())
    assert run.alerts()["text"].tolist() == []
