"""Files that cannot be written are told in a sentence."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rankscope.sketch.errors import SettingError
from rankscope.sketch.writing import writing


def test_a_missing_folder_is_named_and_not_the_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "none" / "a.txt"
    said = f"{path} cannot be written: there is no folder {path.parent}; make it, or write elsewh"
    with pytest.raises(SettingError, match=said), writing(path):
        path.with_name(".a.txt.half").write_text("x")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="it is a folder; name a file in it"), writing(tmp_path):
        raise AssertionError


def test_any_other_reason_is_the_systems(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingError, match="a cannot be written: No space left; write elsewhere"),
        writing(tmp_path / "a"),
    ):
        raise OSError(errno.ENOSPC, "No space left")
