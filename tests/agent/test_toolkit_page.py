"""The page of the toolkit says what is so: its code runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "toolkit.md"


def test_all_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 9

    found = {"scale": None}
    exec("\n".join(blocks), found)

    assert found["scale"] is not None
    assert 0 < found["scale"].b_noise_error < found["scale"].b_noise < 1000
