"""Forgetting old snapshots, and deleting what only they needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from time import monotonic

import icechunk

RETENTION_S = 300.0
"""How long a reader may go on with a snapshot that is no longer the newest."""
EVERY_S = 60.0
"""Least time between two cleanings: each lists all objects of the store."""
EVERY_COMMITS = 64
"""Least number of transactions between two cleanings."""


class Cleaner:
    """Decides when a repository is cleaned, and does it."""

    def __init__(self, repository: icechunk.Repository) -> None:
        self._repository = repository
        self._last = monotonic()
        self._commits = 0

    def committed(self) -> None:
        """Count a transaction."""
        self._commits += 1

    def clean_if_due(self) -> None:
        """Clean if enough has gathered since the last time."""
        if self._commits >= EVERY_COMMITS and monotonic() - self._last >= EVERY_S:
            self.clean(RETENTION_S)

    def clean(self, retention_s: float) -> None:
        """Forget snapshots older than `retention_s`, except the newest, and free their space."""
        limit = datetime.now(UTC) - timedelta(seconds=retention_s)
        self._repository.expire_snapshots(limit)
        self._repository.garbage_collect(limit)
        self._last = monotonic()
        self._commits = 0
