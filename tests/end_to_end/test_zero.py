"""Of ZeroRedundancyOptimizer each rank holds the state of some parameters, and tells it."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import torch

from .launching import run_of

JOB = Path(__file__).with_name("zero_job.py")
SCRIPT = runpy.run_path(str(JOB))


def test_the_state_of_each_parameter_is_recorded_from_the_rank_that_holds_it(
    tmp_path: Path,
) -> None:
    run = run_of(JOB, 2, "zero", tmp_path)
    model = SCRIPT["make_model"]()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    owners = set[int]()
    for step in range(SCRIPT["STEPS"]):
        SCRIPT["loss_of"](model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        for name, parameter in model.named_parameters():
            for slot in ("exp_avg", "exp_avg_sq"):
                site, state = f"optimizer_state:{name}[{slot}]", optimizer.state[parameter][slot]
                stored = run.scalar("rms", sites=site, steps=step).item()
                np.testing.assert_allclose(stored, state.square().mean().sqrt(), rtol=1e-4)
                assert run.scalar("count", sites=site, steps=step).item() == state.numel()
                seen = run.ranks("rms", site=site, steps=step).values
                [owner] = np.flatnonzero(~np.isnan(seen.ravel()))
                owners.add(int(owner))
    assert owners == {0, 1}
    assert run.alerts().empty
    assert "report" not in set(run.events()["kind"])
