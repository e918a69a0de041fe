"""One writer a store: a lock on a file beside it, which the kernel drops with its holder."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from ..sketch.errors import BusyError, StoreError

POLL_S = 0.05
"""Who waits for another writer looks this often."""


def lock_file(store: Path) -> Path:
    """Beside the store: a repository can only be made in a folder that is empty."""
    return store.absolute().with_name(f".{store.absolute().name}.lock")


class WriterLock:
    """Holds a store for this process from creation to `release`.

    Args:
        wait_s: how long to wait for a writer before us, who is told that we do.

    Raises:
        BusyError: another writer holds it; the message names its process.
        StoreError: the lock file cannot be made or written.
    """

    def __init__(self, store: Path, wait_s: float = 0.0) -> None:
        self._queue = lock_file(store).with_suffix(".next")
        """Who waits has it locked."""
        self._file: int | None = _opened(lock_file(store), store)
        try:
            self._take(store, self._file, wait_s)
        except BaseException:
            self.release()
            raise

    @property
    def is_awaited(self) -> bool:
        """Whether another writer waits for this one to let go."""
        try:
            queue = os.open(self._queue, os.O_RDWR)
        except OSError:  # nobody has ever waited
            return False
        try:
            return not _takes(queue)
        finally:
            os.close(queue)

    def release(self) -> None:
        """Let another writer in. The file stays: without it two writers could lock two files."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _take(self, store: Path, file: int, wait_s: float) -> None:
        if not _takes(file) and not (wait_s and self._wait(store, file, wait_s)):
            holder = os.pread(file, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise BusyError(
                f"{store} is being written by process {holder}; "
                "stop that one or choose another --store or run name."
            )
        try:
            os.truncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
        except OSError as error:  # so on a full disk
            raise StoreError(f"Cannot write to {store}: {error.strerror}.") from error

    def _wait(self, store: Path, file: int, wait_s: float) -> bool:
        """Whether the lock was taken within this time."""
        queue, until = _opened(self._queue, store), time.monotonic() + wait_s
        try:
            fcntl.flock(queue, fcntl.LOCK_SH)
            while not (taken := _takes(file)) and time.monotonic() < until:
                time.sleep(POLL_S)
            return taken
        finally:
            os.close(queue)


def check_free(store: Path, wait_s: float = 0.0) -> None:
    """Refuse a store that another process writes. It makes nothing, and keeps nobody out.

    Args:
        wait_s: how long that process has to let go, which is told that somebody waits.

    Raises:
        BusyError: it did not; the message names it.
    """
    if lock_file(store).exists():
        WriterLock(store, wait_s).release()


def _opened(path: Path, store: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(f"Cannot write to {store}: {error.strerror}.") from error


def _takes(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
