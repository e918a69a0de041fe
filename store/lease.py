"""One writer a run on an object store, where no kernel holds a lock for us.

A lease says who writes: a branch of the repository with a commit for each word of its holder. It
keeps a second collector out politely, by the clock. Safety does not rest on it: the writer commits
on top of its own last snapshot or not at all (`writer.py`), so that one whose lease was taken over
can store nothing any more.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import icechunk
import zarr

from ..sketch.errors import BusyError
from .place import ObjectUrl
from .repository import first_line

BRANCH = "writer"
TERM_S = 30.0
"""A holder that has said nothing for so long may be gone."""
RENEW_S = TERM_S / 3

logger = logging.getLogger(__name__)


class Lease:
    """Holds a repository for this process from creation to `release`; a thread renews it.

    Raises:
        BusyError: another process holds it; the message names it and says until when.
        icechunk.IcechunkError: the store refuses.
    """

    def __init__(self, url: ObjectUrl, repository: icechunk.Repository) -> None:
        self._url = url
        self._repository = repository
        self._token = secrets.token_hex(8)
        self._taken = ""
        if BRANCH not in repository.list_branches():
            make_branch(repository)
        head = repository.lookup_branch(BRANCH)
        self._refuse_if_held(self._latest())
        self._head = self._say(head, released=False)
        self._end = Event()
        self._thread = Thread(target=self._keep, name="rankscope-lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Let another writer in."""
        if self._end.is_set():
            return
        self._end.set()
        self._thread.join()
        try:
            if not self._taken:
                self._say(self._head, released=True)
        except (BusyError, icechunk.IcechunkError) as error:
            logger.warning(
                "The lease on %s could not be given back and ends by itself in %.0f s: %s",
                self._url,
                TERM_S,
                first_line(error),
            )

    def _keep(self) -> None:
        while not self._end.wait(RENEW_S):
            try:
                self._head = self._say(self._head, released=False)
            except BusyError:
                logger.error("The lease on %s was taken over by %s.", self._url, self._taken)
                return
            except icechunk.IcechunkError:
                continue  # out of reach for a moment; if it stays so, commits tell it

    def _say(self, head: str, *, released: bool) -> str:
        """Commit a word on top of `head`; the new head."""
        session = self._repository.writable_session(BRANCH)
        mine = session.snapshot_id == head or self._latest().get("token") == self._token
        if mine:
            word = {
                "token": self._token,
                "released": released,
                "time_ns": time.time_ns(),
            } | holder()
            zarr.create_group(session.store, attributes=word, overwrite=True)
            try:
                return session.commit("Released" if released else "Held", metadata=word)
            except icechunk.ConflictError:
                mine = self._latest().get("token") == self._token  # our own word, sent twice
                if mine:
                    return self._repository.lookup_branch(BRANCH)
        self._taken = named(self._latest())
        raise BusyError(f"{self._url} is being written by {self._taken}.")

    def _latest(self) -> dict[str, Any]:
        return dict(next(iter(self._repository.ancestry(branch=BRANCH))).metadata)

    def _refuse_if_held(self, word: dict[str, Any]) -> None:
        left_s = TERM_S - (time.time_ns() - word.get("time_ns", 0)) / 1e9
        if word.get("released", True) or left_s <= 0 or is_dead(word):
            return
        raise BusyError(
            f"{self._url} is being written by {named(word)}; stop that one or choose another "
            f"--store or run name. If it is dead, its lease ends in {min(left_s, TERM_S):.0f} s."
        )


def make_branch(repository: icechunk.Repository) -> None:
    """Begin the lease's branch at the repository's first snapshot, which holds nothing."""
    *_, first = repository.ancestry(branch="main")
    try:
        repository.create_branch(BRANCH, first.id)
    except icechunk.IcechunkError:
        if BRANCH not in repository.list_branches():  # else another process was quicker
            raise


def holder() -> dict[str, Any]:
    """Who we are, for people and for `is_dead`."""
    process = os.getpid()
    return {
        "host": socket.gethostname(),
        "process": process,
        "place": process_space(),
        "started": start_of(process),
    }


def named(word: dict[str, Any]) -> str:
    """The holder, for people."""
    return f"process {word.get('process')} on {word.get('host')}"


def is_dead(word: dict[str, Any]) -> bool:
    """Whether the holder ran here and is gone: its lease need not be waited for."""
    here = bool(word["place"]) and word["place"] == process_space()
    return here and start_of(word["process"]) != word["started"]


def process_space() -> str:
    """What tells this machine's process numbers from those of others; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def start_of(process: int) -> str:
    """When a process of this machine started, in the kernel's words; empty if it does not run."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *fields = text.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
