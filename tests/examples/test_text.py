"""The demo reads the standard library's source and guesses each next byte."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankscope.examples.text import MOST_BYTES, draw_batch, read_text
from rankscope.sketch import RankscopeError


def test_the_text_is_source_and_its_length_is_bounded() -> None:
    text = read_text()

    assert text.dtype == torch.uint8
    assert 1 << 20 < len(text) <= MOST_BYTES
    assert b"import " in bytes(text[:100_000].tolist())


def test_a_python_without_its_source_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("pass\n")

    with pytest.raises(RankscopeError, match="holds 5 bytes of it; use a Python that came with"):
        read_text(tmp_path)


def test_what_is_to_be_guessed_is_one_byte_later() -> None:
    text = torch.arange(200, dtype=torch.uint8)

    x, y = draw_batch(text, 3, 7, torch.Generator().manual_seed(0))

    assert x.shape == y.shape == (3, 7)
    assert torch.equal(y, x + 1)
