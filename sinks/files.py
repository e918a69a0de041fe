"""Appending to a file so that what fails leaves nothing behind."""

from __future__ import annotations

import errno
import os
from io import FileIO


def append(file: FileIO, data: bytes) -> None:
    """Append all of it, or nothing: half a line, or half an event, would spoil what comes after.

    Args:
        file: without a buffer.

    Raises:
        OSError: it could not be written.
    """
    size = file.seek(0, os.SEEK_END)
    try:
        if file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(size)
        raise
