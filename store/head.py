"""The head of a run's branch, as its one writer knows it: what it commits goes on top of that."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import icechunk

from ..sketch.errors import BusyError
from .place import Place
from .repository import BRANCH


class Head:
    """Commits one transaction after the other, each on top of the last, and of nothing else."""

    def __init__(self, place: Place, repository: icechunk.Repository, snapshot: str) -> None:
        self._place = place
        self._repository = repository
        self._snapshot = snapshot
        self._token = secrets.token_hex(8)
        self._commits = 0
        self._unsure = ""

    def session(self) -> icechunk.Session:
        """A session on top of our last commit.

        Raises:
            BusyError: another process has committed since.
        """
        session = self._repository.writable_session(BRANCH)
        if session.snapshot_id != self._snapshot:
            self._refuse()
        return session

    def commit(self, session: icechunk.Session, message: str, streams: Mapping[str, int]) -> None:
        """Commit it; if that fails, `landed` tells whether it was done all the same.

        Raises:
            BusyError: another process has committed since.
            icechunk.IcechunkError, icechunk.ConflictError: the store refuses, or its answer was
                lost.
        """
        self._commits += 1
        self._unsure = f"{self._token} {self._commits}"
        metadata = {"streams": dict(streams), "writer": self._unsure}
        try:
            self._snapshot = session.commit(message, metadata=metadata)
        except (icechunk.IcechunkError, icechunk.ConflictError):
            if not self.landed():
                raise
        self._unsure = ""

    def landed(self) -> bool:
        """Whether the commit that failed last was done all the same.

        A network may lose the answer to a request that was carried out, and a request that is
        sent again then looks like a conflict with another writer.

        Raises:
            BusyError: another process has committed since.
            icechunk.IcechunkError: the store still cannot be asked.
        """
        if not self._unsure:
            return False
        newest = next(iter(self._repository.ancestry(branch=BRANCH)))
        landed = newest.metadata.get("writer") == self._unsure
        if landed:
            self._snapshot = newest.id
        elif newest.id != self._snapshot:
            self._refuse()
        self._unsure = ""
        return landed

    def _refuse(self) -> None:
        raise BusyError(
            f"{self._place} is written by another process since this one was taken for dead; "
            "what is stored is safe. Stop one of the two."
        )
