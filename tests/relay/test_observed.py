"""A model that is observed through a relay which its environment names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankscope.agent.torch import observe
from rankscope.store import open_run

from ..collector.serving import start_collector
from .relaying import end, start_relay


def test_the_environment_names_a_relay_before_a_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector, at = start_collector(tmp_path / "runs", "--until-done")
    relay, address = start_relay(at, "--until-done")
    monkeypatch.setenv("RANKSCOPE_TO", "tcp://127.0.0.1:9")
    monkeypatch.setenv("RANKSCOPE_RELAY", address)
    model = torch.nn.Linear(4, 2)
    with observe(model, run="seen") as scope:
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()
            scope.step()
    end(relay)
    end(collector)

    records = open_run(tmp_path / "runs" / "seen").records()
    assert records.step.tolist() == [0, 1, 2, 3]  # the last is the state at the end
