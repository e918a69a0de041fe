"""Files that a user named: why one cannot be written is told in a sentence, not by a traceback."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from .errors import SettingError


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Around the writing of a file: says which file could not be written, why, and what to do.

    Args:
        path: as the user gave it, whatever the block calls the file until it is whole.

    Raises:
        SettingError: it is a folder, or could not be written.
    """
    if path.is_dir():
        raise SettingError(f"{path} cannot be written: it is a folder; name a file in it.")
    try:
        yield
    except OSError as error:
        folder = path.parent
        if not folder.is_dir():
            why = f"there is no folder {folder}; make it, or write elsewhere"
        else:
            why = f"{error.strerror or error}; write elsewhere"
        raise SettingError(f"{path} cannot be written: {why}.") from None
