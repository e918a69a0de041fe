"""Forgetting old snapshots, and deleting what only they needed.

That takes as long as a store takes to list its objects, so it is done beside the commits, on a
thread. What is deleted is old, and was in no snapshot when the listing began: no commit needs it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from threading import Thread
from time import monotonic

import icechunk

RETENTION_S = 300.0
"""How long a reader may go on with a snapshot that is no longer the newest."""
DRIFT_S = 660.0
"""How much older an object must be that is deleted beside commits, where another clock dates it:
what a commit has just written may look old. From ten minutes apart on Icechunk commits nothing."""
EVERY_S = 60.0
"""Least time between two cleanings: each lists all objects of the store."""
EVERY_COMMITS = 64
"""Least number of transactions between two cleanings."""


class Cleaner:
    """Decides when a repository is cleaned, and does it.

    Args:
        repository: what is cleaned.
        is_remote: whether its objects are dated by another machine's clock.
    """

    def __init__(self, repository: icechunk.Repository, *, is_remote: bool = False) -> None:
        self._repository = repository
        self._drift_s = DRIFT_S if is_remote else 0.0
        self._last = monotonic()
        self._commits = 0
        self._thread: Thread | None = None
        self._error: Exception | None = None

    def committed(self) -> None:
        """Count a transaction."""
        self._commits += 1

    def clean_if_due(self) -> None:
        """Begin to clean if enough has gathered since the last time.

        Raises:
            icechunk.IcechunkError: the last time it failed; it will be tried again.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self._commits >= EVERY_COMMITS and monotonic() - self._last >= EVERY_S:
            self._commits = 0
            self._thread = Thread(target=self._try, name="rankscope-clean", daemon=True)
            self._thread.start()

    def clean(self, retention_s: float) -> None:
        """Forget snapshots older than `retention_s`, except the newest, and free their space."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._clean(retention_s, drift_s=0.0)
        self._commits = 0

    def _try(self) -> None:
        try:
            self._clean(RETENTION_S, self._drift_s)
        except Exception as error:  # whatever the store's engine raises; told with the next call
            self._error = error

    def _clean(self, retention_s: float, drift_s: float) -> None:
        limit = datetime.now(UTC) - timedelta(seconds=retention_s)
        self._repository.expire_snapshots(limit)
        self._repository.garbage_collect(limit - timedelta(seconds=drift_s))
        self._last = monotonic()
