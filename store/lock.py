"""One writer a store: a lock on a file beside it, which the kernel drops with its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ..sketch.errors import BusyError, StoreError


def lock_file(store: Path) -> Path:
    """Beside the store: a repository can only be made in a folder that is empty."""
    return store.absolute().with_name(f".{store.absolute().name}.lock")


class WriterLock:
    """Holds a store for this process from creation to `release`.

    Raises:
        BusyError: another writer holds it; the message names its process.
        StoreError: the lock file cannot be made.
    """

    def __init__(self, store: Path) -> None:
        try:
            self._file: int | None = os.open(lock_file(store), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"Cannot write to {store}: {error.strerror}.") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip() or "unknown"
            self.release()
            raise BusyError(
                f"{store} is being written by process {holder}; "
                "stop that one or choose another --store or run name."
            ) from None
        os.truncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let another writer in. The file stays: without it two writers could lock two files."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
