"""A real collector for the tests of the agent, and what it stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from rankscope.agent.torch import Scope, observe
from rankscope.sketch import NotARunError, SketchTable
from rankscope.store import open_run

_runs = count()

if not torch.cuda.is_available():  # Triton asks when it is imported, which nothing above does
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address and store of a collector process that serves all tests of a session."""
    store = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "rankscope", "collect", "--bind", "tcp://127.0.0.1:*"]
    process = subprocess.Popen(
        [*command, "--store", str(store), "--announce"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())["address"], store
    process.terminate()
    assert process.wait(20) == 0
    process.stdout.close()


@dataclass
class Observed:
    """A run under observation, and what of it was stored."""

    address: str
    path: Path

    def observe(self, model: torch.nn.Module, optimizer: Any = None, **options: Any) -> Scope:
        """`observe` with this run's name and collector."""
        return observe(model, optimizer, run=self.path.name, to=self.address, **options)

    def steps(self) -> list[int]:
        """The steps that are stored by now."""
        try:
            return open_run(self.path).records()["step"].tolist()
        except NotARunError:  # nothing is committed yet
            return []

    def sketches(self, step: int) -> dict[str, SketchTable]:
        """The exact sketch of each site of a step."""
        labels, table = open_run(self.path).table(step)
        return {label: table.take([row]) for row, label in enumerate(labels)}

    def means(self, kind: str, name: str, slot: str = "") -> dict[int, float]:
        """The mean of a site by step."""
        site = f"{kind}:{name}" + (f"[{slot}]" if slot else "")
        array = open_run(self.path).scalar("mean", sites=[site]).squeeze("site").dropna("step")
        return dict(zip(array.step.values.tolist(), array.values.tolist(), strict=True))

    def labels(self) -> list[str]:
        """The labels of all sites."""
        return open_run(self.path).sites().index.tolist()

    def reports(self) -> str:
        """The agent's sentences, as one text."""
        events = open_run(self.path).events()
        return "\n".join(events[events["kind"] == "report"]["text"])


@pytest.fixture
def new_observed(collector: tuple[str, Path]) -> Callable[[], Observed]:
    """Makes a run of its own at each call."""
    address, store = collector
    return lambda: Observed(address, store / f"run-{next(_runs)}")


@pytest.fixture
def observed(new_observed: Callable[[], Observed]) -> Observed:
    """A run of its own."""
    return new_observed()


@pytest.fixture
def train() -> Callable[..., list[float]]:
    """A plain training loop."""

    def loop(
        scope: Scope,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: list[torch.Tensor],
    ) -> list[float]:
        losses: list[float] = []
        for batch in batches:
            output = model(batch)
            while not isinstance(output, torch.Tensor):
                output = next(iter(output.values() if isinstance(output, dict) else output))
            loss = output.float().square().mean()
            loss.backward()
            optimizer.step()
            scope.step(loss=loss)
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    return loop
