"""The Icechunk repository of one run: making and opening it, and reading what a snapshot says."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import icechunk
import zarr
from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype
from zarr.core.sync import sync

from ..sketch.errors import NotARunError, StoreError
from .interpreter_exit import let_native_threads_leave
from .layout import AXES, FORMAT
from .objects import settings, storage_at, why
from .place import ObjectUrl, Place
from .state import Meta, State

BRANCH = "main"

# Icechunk warns on every local store that two committers lose commits; our writer takes a lock.
icechunk.set_logs_filter("error")
let_native_threads_leave()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one committed snapshot says about its run."""

    id: str
    parent: str | None
    """The one before it, as far as that is still known."""
    run: str
    run_id: str
    """What no other run has, not even one that was deleted and had its name; empty: not known."""
    state: State
    streams: dict[str, int]
    """Committed sequence number of each stream."""


def create_repository(path: Place) -> icechunk.Repository:
    """Make an empty repository.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        return icechunk.Repository.create(storage(path), config=config())
    except icechunk.IcechunkError as error:
        raise StoreError(f"Cannot write to {path}: {reason(path, error)}") from error


def open_repository(path: Place, *, cached_bytes: int = 0) -> icechunk.Repository:
    """Open the repository at `path`, which must hold one.

    Args:
        cached_bytes: of chunks that are kept in memory, as they are stored.

    Raises:
        StoreError: it cannot be read.
    """
    with reading(path):
        return icechunk.Repository.open(storage(path), config=config(cached_bytes))


@contextmanager
def reading(path: Place) -> Generator[None]:
    """What the store's engine raises in the block becomes a `StoreError` that says why."""
    try:
        yield
    except icechunk.IcechunkError as error:
        raise StoreError(f"Cannot read {path}: {reason(path, error)}") from error


def storage(path: Place) -> icechunk.Storage:
    """Where Icechunk finds the repository."""
    if isinstance(path, ObjectUrl):
        return storage_at(path)
    return icechunk.local_filesystem_storage(str(path.absolute()))


def config(cached_bytes: int = 0) -> icechunk.RepositoryConfig:
    """Caches small enough that memory stays flat over a long run.

    Nothing is loaded before it is asked for: to find out what to load ahead, icechunk compiles
    regular expressions whenever a session is opened, a fifth of what a small commit costs.
    """
    caching = icechunk.CachingConfig(
        num_snapshot_nodes=1_000,  # of about 35 a snapshot, each with its attributes
        num_chunk_refs=50_000,
        num_transaction_changes=0,
        num_bytes_attributes=0,
        num_bytes_chunks=cached_bytes,
    )
    nothing = icechunk.ManifestPreloadConfig(
        max_total_refs=0, preload_if=icechunk.ManifestPreloadCondition.false()
    )
    manifest = icechunk.ManifestConfig(preload=nothing)
    return icechunk.RepositoryConfig(caching=caching, manifest=manifest, storage=settings())


def begin_run(repository: icechunk.Repository, run: str) -> None:
    """Write the attributes of a run that has no record yet."""
    session = repository.writable_session(BRANCH)
    root = zarr.create_group(
        session.store,
        attributes={
            "format": FORMAT,
            "run": run,
            "id": secrets.token_hex(8),
            "axes": dict(AXES),
        },
    )
    root.create_group("state", attributes=State().to_json())
    root.create_group("meta", attributes=Meta().to_json())
    session.commit("A new run", metadata={"streams": {}})


def is_blank(repository: icechunk.Repository) -> bool:
    """Whether nothing was ever committed: a writer died while it made the run."""
    newest = next(iter(repository.ancestry(branch=BRANCH)))
    return newest.parent_id is None


def read_snapshot(
    path: Place, repository: icechunk.Repository, session: icechunk.Session
) -> Snapshot:
    """What the session's snapshot says.

    Raises:
        NotARunError: the repository holds something that is not a run, or of another version.
        StoreError: it cannot be read.
    """
    try:
        attributes = read_attributes(session.store, "")
    except FileNotFoundError:
        with reading(path):  # a snapshot that cannot be read has no group either, to Zarr
            next(iter(repository.ancestry(snapshot_id=session.snapshot_id)))
        raise NotARunError(f"{path} is an Icechunk repository, but holds no run.") from None
    if attributes.get("format") != FORMAT:
        raise NotARunError(
            f"{path} is an Icechunk repository of format {attributes.get('format')!r}, "
            f"not a run of format {FORMAT!r}."
        )
    newest = next(iter(repository.ancestry(snapshot_id=session.snapshot_id)))
    return Snapshot(
        id=session.snapshot_id,
        parent=newest.parent_id,
        run=attributes["run"],
        run_id=attributes.get("id", ""),
        state=State.from_json(read_attributes(session.store, "state")),
        streams=dict(newest.metadata.get("streams", {})),
    )


def changed_chunks(
    repository: icechunk.Repository, before: Snapshot, after: Snapshot
) -> set[str] | None:
    """The keys of all chunks that one commit wrote or deleted.

    None where it was not one commit, or the store cannot tell.
    """
    if after.parent != before.id:
        return None
    try:
        made = repository.diff(from_snapshot_id=before.id, to_snapshot_id=after.id)
    except icechunk.IcechunkError:
        return None
    if made.deleted_arrays or made.deleted_groups:
        return None
    return {
        f"{path.strip('/')}/c/{'/'.join(map(str, place))}"
        for path, places in made.updated_chunks.items()
        for place in places
    }


def read_meta(store: Store) -> Meta:
    """The sites, attempts and names of a snapshot."""
    return Meta.from_json(read_attributes(store, "meta"))


def read_attributes(store: Store, group: str) -> dict[str, Any]:
    """The attributes of a group; FileNotFoundError where there is none."""
    return dict(zarr.open_group(store, path=group, mode="r").attrs)


class AttributeWriter:
    """Replaces the attributes of a group in one session after the other, without reading them."""

    def __init__(self, store: Store, group: str) -> None:
        self._before = read_attributes(store, group)
        self._key = f"{group}/zarr.json"

    def write(self, store: Store, values: Mapping[str, Any]) -> None:
        """Set all `values`; names that are not among them stay."""
        # Zarr copies attributes in Python, twice: seconds with thousands of sites. This is the
        # document of a group as version 3 of its format has it.
        attributes = self._before | dict(values)
        document = {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
        as_buffer = default_buffer_prototype().buffer.from_bytes
        sync(store.set(self._key, as_buffer(json.dumps(document).encode())))


_OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""How Rust ends the text of an operating system's error, wherever in a longer one."""


def reason(path: Place, error: BaseException) -> str:
    """Why a place cannot be used, in words where we have some."""
    if isinstance(path, ObjectUrl):
        return why(path, error, lambda _: first_line(error))
    told = _OS_ERROR.search(str(error))
    return first_line(error) if told is None else os.strerror(int(told[1]))


def first_line(error: BaseException) -> str:
    """What an error of another library says, on one line."""
    # Icechunk draws its errors as a tree, of which the root and its last leaf tell something.
    lines = [line.lstrip(" x|`->").rstrip() for line in str(error).splitlines()]
    told = [line for line in lines if line]
    return " … ".join(dict.fromkeys((told[0], told[-1]))) if told else repr(error)


def wrong_clock(error: BaseException) -> str:
    """What to do where an engine that goes by the wall clock commits nothing; else empty."""
    text = str(error)
    behind = re.search(r"parent: `([\d-]+ [\d:]+)\S* UTC`, child: `([\d-]+ [\d:]+)", text)
    if behind:
        return (
            f"This machine's clock went back: the newest commit is of {behind[1]} UTC, and now it "
            f"is {behind[2]}. Until that has passed nothing can be stored: set the clock right"
        )
    if "machine clock has drifted" in text:
        return (
            "The clocks of this machine and of its store are more than ten minutes apart, so that "
            "nothing can be stored: set them right"
        )
    return ""
