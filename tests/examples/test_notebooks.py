"""The example notebooks run from top to bottom, with real training; they are kept stripped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
PLOT = "application/vnd.holoviews_exec.v0+json"


# `Any`: a notebook is JSON.
def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_the_four_questions_have_a_notebook() -> None:
    assert NOTEBOOKS == [
        "choose_fp8_formats",
        "compare_two_runs",
        "find_a_diverging_layer",
        "watch_a_multi_rank_run",
    ]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_valid_and_kept_without_outputs(name: str) -> None:
    book = read(name)

    nbformat.validate(book)
    for cell in book.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = read(name)
    monkeypatch.chdir(tmp_path)
    for key in [key for key in os.environ if key.startswith("RANKSCOPE_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # Nobody's own settings, nor histories, are read or written.
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")

    NotebookClient(book, timeout=200, kernel_name="python3").execute()

    shown = [
        output
        for cell in book.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type in ("execute_result", "display_data")
    ]
    assert any("text/html" in output.data for output in shown), "plots, not only their names"
