"""The pieces that ranks hold of one weight merge to its sketch, to the last bit."""

from __future__ import annotations

import runpy
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rankscope.sketch import MOMENTS, sketch_array
from rankscope.store import open_run

JOB = Path(__file__).with_name("shards_job.py")
EXTREMES = slice(MOMENTS.index("min"), None)


@pytest.mark.parametrize("mode", ["fsdp", "tp"])
def test_weights_of_all_ranks_are_those_of_one_process(tmp_path: Path, mode: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(JOB), "run", str(tmp_path), mode]
    job = subprocess.run(command, timeout=120, check=False, stderr=subprocess.PIPE)
    assert job.returncode == 0, job.stderr.decode()
    deadline = time.monotonic() + 45
    while not open_run(tmp_path / "run").finished:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    run = open_run(tmp_path / "run")

    model = runpy.run_path(str(JOB))["make_model"]()
    for name, parameter in model.named_parameters():
        [_], merged = run.table(0, [f"weight:{name}"])
        whole = sketch_array(parameter.detach().numpy())
        assert np.array_equal(merged.counts, whole.counts), name
        assert np.array_equal(merged.histogram, whole.histogram), name
        assert np.array_equal(merged.checksum, whole.checksum), name
        assert np.array_equal(merged.moments[:, EXTREMES], whole.moments[:, EXTREMES]), name
        np.testing.assert_allclose(merged.moments, whole.moments, rtol=1e-9, atol=1e-9)
        for kind in ("weight_gradient", "optimizer_state"):
            sites = run.sites(kind=kind)
            mine = sites[sites["name"] == name].index
            assert len(mine) == (1 if kind == "weight_gradient" else 2)
            _, tables = run.table(1, list(mine))
            assert tables.counts[:, 0].tolist() == [parameter.numel()] * len(mine)
    told = run.events().query("kind == 'divergence'")["text"]
    assert [text for text in told if "weight" in text or "optimizer" in text] == []
