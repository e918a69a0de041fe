"""The histogram of gradients is drawn of a training with torch, and with PopTorch's stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.examples import gradient_histogram
from rankscope.store import open_run

STANDIN = Path(__file__).parents[1] / "agent" / "poptorch" / "standin"


@pytest.mark.parametrize("option", ["--poptorch", "--steps=2"])
def test_gradients_are_drawn(
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(STANDIN)
    monkeypatch.delenv("RANKSCOPE_TO", raising=False)
    gradient_histogram.main(["--steps=2", option])
    said = capsys.readouterr().out
    assert said == "Drawn in gradient_histogram.png; the run is rankscope-runs/gradients\n"
    assert (tmp_path / "gradient_histogram.png").read_bytes().startswith(b"\x89PNG")
    exponents = open_run(tmp_path / "rankscope-runs" / "gradients").exponents()
    assert exponents["observed"].all("site").sel(step=[0, 1]).all()
    assert {site.partition(":")[0] for site in exponents.site.values} == {"weight_gradient"}
