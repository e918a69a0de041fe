"""The runs in a folder, briefly."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from ..sketch.errors import NotARunError, StoreError
from .ending import Ending, ending_of
from .naming import holds_repository, is_there, repositories_in, what_is_at
from .place import Place, place_of
from .reader import Reader, open_reader

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run in a list."""

    name: str
    path: Place
    first_step: int | None
    """None where nothing is recorded yet."""
    last_step: int | None
    records: int
    attempts: int
    started: datetime | None
    """Wall clock of the first record, UTC."""
    updated: datetime | None
    """Wall clock of the latest record, UTC."""
    finished: bool
    ending: Ending
    """Of the latest attempt, and of earlier ones that ended badly."""
    world_size: int
    """The most ranks that an attempt had."""


def list_runs(directory: str | Place) -> list[RunSummary]:
    """The runs directly inside a folder, the latest first; of a run's own folder that run.

    An object store has no folders: a URL under which nothing lies has no runs yet. A run that
    cannot be read is logged, and left out.

    Raises:
        NotARunError: there is no such folder.
        StoreError: it cannot be read.
    """
    folder = place_of(directory)
    if not is_there(folder):
        raise NotARunError(f"{folder} {what_is_at(folder)}; give a folder of runs.")
    paths = [folder] if holds_repository(folder) else repositories_in(folder)
    found: list[RunSummary] = []
    for path in paths:
        try:
            found.append(summary(open_reader(path)))
        except NotARunError:
            continue  # another program's repository, or a run that is just being made
        except StoreError as error:
            logger.warning("A run is left out of the list. %s", error)
    return sorted(
        found, key=lambda run: run.updated or datetime.max.replace(tzinfo=UTC), reverse=True
    )


def summary(reader: Reader) -> RunSummary:
    """What a list says of one run."""
    state, meta = reader.state, reader.meta
    return RunSummary(
        name=reader.snapshot.run,
        path=reader.path,
        first_step=state.first_step,
        last_step=state.last_step,
        records=state.records,
        attempts=len(meta.attempts),
        started=moment(state.started_ns),
        updated=moment(state.updated_ns),
        finished=state.finished,
        ending=ending_of(reader),
        world_size=meta.world_size,
    )


def moment(time_ns: int | None) -> datetime | None:
    """Nanoseconds since 1970 as a time in UTC, to the microsecond."""
    return None if time_ns is None else datetime.fromtimestamp(time_ns / 1e9, UTC)
