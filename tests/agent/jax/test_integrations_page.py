"""The code of the page for Flax and optax runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rankscope.store import open_run

PAGE = Path(__file__).parents[3] / "docs" / "integrations.md"


def test_the_code_of_the_page_records_each_step(
    collector: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, store = collector
    monkeypatch.setenv("RANKSCOPE_TO", address)
    [block] = re.findall(r"^```python\n(import jax.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)

    exec(block, {})

    told = open_run(store / "flax").training().squeeze("rank")
    assert told["step"].values.tolist() == [0, 1, 2, 3]
    rates = [1e-2 * (1 - step / 100) for step in range(4)]
    np.testing.assert_allclose(told.sel(name="learning_rate"), rates, rtol=1e-5)
    assert (told.sel(name="loss") > 0).all()
