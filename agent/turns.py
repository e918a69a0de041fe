"""What is made once on a machine and kept on its disk: one process makes it, the others wait."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

Doing = Literal["making", "waiting", "loading"]

LOOK_S = 0.2
"""Who waits for another process looks this often."""
PATIENCE_S = 600.0
"""Who has waited for so long makes it, too."""


@contextmanager
def made_once(marker: Path, tell: Callable[[Doing], object]) -> Generator[None]:
    """In the block something is made and kept, or loaded if that was done before.

    The kernel drops the lock of a process that ends. Where files cannot be locked nobody waits.

    Args:
        marker: a file that has something in it once all is kept.
        tell: told what is done now.
    """
    file = _opened(marker)
    if file is None:
        tell("making")
        yield
        return
    try:
        is_mine = _takes_turn(file, tell)
        tell("making" if is_mine else "loading")
        yield
        if is_mine:
            with suppress(OSError):
                os.pwrite(file, b"kept\n", 0)
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may have the file, too
        os.close(file)


def _opened(marker: Path) -> int | None:
    try:
        return os.open(marker, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        return None


def _takes_turn(file: int, tell: Callable[[Doing], object]) -> bool:
    """Whether it is to be made here; False once it is kept."""
    until = time.monotonic() + PATIENCE_S
    while not os.fstat(file).st_size:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return True
            tell("waiting")
            time.sleep(LOOK_S)
        except OSError:  # a file system without locks
            return True
        else:
            return not os.fstat(file).st_size
    return False
