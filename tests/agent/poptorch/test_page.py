"""The page for IPUs: its code runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankscope.store import open_run

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "ipu.md"


def test_the_code_of_the_page_observes_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKSCOPE_TO", raising=False)
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)

    exec(code, {"__name__": "page"})

    run = open_run(tmp_path / "rankscope-runs" / "ipu").wait()
    assert set(run.records()["step"]) == {*range(10), 10}  # the last weights have one of their own
    wanted = {"weight:net.weight", "weight_gradient:net.bias", "optimizer_state:net.bias[exp_avg]"}
    assert wanted <= set(run.sites().index)
