"""What a relay keeps of its streams: on disk if it has one and while that works, else in memory.

The one rule: trouble with the disk is told and survived. What a failed transaction was to hold goes
into memory, and back to the disk when it works again; a damaged file is set aside.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from ..sketch.errors import SettingError
from ..wire.codec import encode
from ..wire.complaints import Complaints
from ..wire.messages import FrameHeader, Gap, JoinedHeader
from ..wire.worth import worth_of
from .legible import leave_out
from .riders import Rider, open_header, rider_row
from .settings import RelaySettings
from .shelf import LAST, RIDER, Kept, Row, Shelf
from .thinning import FULL, Place, make_room, tear

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

FILE = "frames.sqlite"
RETRY_S = 5.0
"""After trouble with the disk it is left alone for so long."""
LOOK_S = 1.0
"""How often the disk's free room is looked at."""
PRUNE_S = 30.0
"""How often schemas that no frame needs any more are let go of."""
MOVED = 64
"""Frames that go from memory back to the disk at a time."""
TORN = "other frames of the same joined frame came another way"
DAMAGED = "the relay's spool was damaged, and was set aside"
"""Or a part of it was left out: what is missing was lost with it."""


class Spool:
    """The frames of all streams.

    Args:
        settings: where it is, and how much it holds.
        wall_s: the wall clock, seconds since 1970.

    Raises:
        SettingError: the folder cannot be used, or another relay uses it.
    """

    def __init__(self, settings: RelaySettings, wall_s: Callable[[], float] = time.time) -> None:
        self.dropped: Counter[str] = Counter()
        """Frames that gave way, by cause."""
        self.dropped_bytes = self.damaged_files = self.failures = 0
        self._settings = settings
        self._wall_s = wall_s
        self._disk: Shelf | None = None
        self._file: Path | None = None
        self._complaints = Complaints(logger)
        self._schemas: dict[bytes, bytes] = {}
        self._schema_bytes = 0
        self._unwritten_schemas: set[bytes] = set()
        self._kept: dict[int, Kept] = {}
        self._unwritten: dict[int, Kept | None] = {}
        """What is new of streams; None: forget it."""
        self._committed: dict[int, int] = {}
        self._turn: list[tuple[int, Row, int]] = []
        """Frames put since the last commit, for memory if that fails: stream, frame, worth."""
        self._rests_until = self._next_look = self._next_prune = 0.0
        self._limit = settings.spool_bytes
        self._written_bytes = 0
        self._made_folder = settings.spool is not None and not settings.spool.exists()
        if settings.spool is not None:
            self._file = _make_folder(settings.spool) / FILE
            self._begin(self._file)
        # Last, for nothing may stay open of what was refused.
        self._memory = Shelf(None)

    def leave_out(self) -> None:
        """Let go of what cannot be read in a file that is sound to SQLite, and tell it.

        To be called before anything is asked of the spool.

        Raises:
            SettingError: it cannot be done.
        """
        if self._disk is None:
            return
        try:
            lost = leave_out(self._disk)
            self._disk.commit()
            self._kept = {kept.member: kept for kept in self._disk.members()}
        except sqlite3.Error as error:
            raise SettingError(f"The spool {self._file} cannot be read: {error}.") from None
        if lost:
            self.dropped[DAMAGED] += lost
            self.damaged_files += 1
            logger.error("The spool %s is damaged: %d frames are left out.", self._file, lost)

    # Streams -------------------------------------------------------------------------------------

    @property
    def is_durable(self) -> bool:
        """Whether what is kept here survives this process, in general."""
        return self._file is not None

    def members(self) -> list[Kept]:
        """The streams that were on disk when this began."""
        return list(self._kept.values())

    def keep(self, kept: Kept) -> None:
        """Add a stream, or what is new of it."""
        if self._file is not None:
            self._unwritten[kept.member] = self._kept[kept.member] = kept

    def forget(self, member: int) -> None:
        """Remove a stream and what is left of it."""
        self._memory.let_go(member, LAST)
        if self._file is not None:
            self._unwritten[member] = None
            self._kept.pop(member, None)
            self._committed.pop(member, None)

    def is_written(self, member: int) -> bool:
        """Whether all that `keep` was told of a stream is on disk."""
        return self._disk is not None and member not in self._unwritten

    @property
    def has_joined(self) -> bool:
        """Whether there are joined frames on disk."""
        return self._read(lambda disk: disk.has_riders(), False)

    # Schemas -------------------------------------------------------------------------------------

    def learn(self, hash_: bytes, body: bytes) -> None:
        """Keep an encoded schema; of many streams that have the same, once."""
        if hash_ not in self._schemas:
            self._schemas[hash_] = body
            self._schema_bytes += len(body)
            self._unwritten_schemas.add(hash_)

    def schema(self, hash_: bytes) -> bytes | None:
        """The encoded schema with this hash."""
        if hash_ not in self._schemas:
            body = self._read(lambda disk: disk.schema(hash_), None)
            if body is None:
                return None
            self._schemas[hash_] = body
            self._schema_bytes += len(body)
        return self._schemas[hash_]

    # Frames --------------------------------------------------------------------------------------

    def put(self, member: int, header: FrameHeader, parts: tuple[bytes, bytes]) -> None:
        """Add a frame; it is on disk after the next `commit`, if it can be."""
        row = Row(sequence=header.sequence, schema=header.schema, parts=parts)
        self._store(member, row, worth_of(header))

    def put_joined(
        self, members: Sequence[int], header: JoinedHeader, parts: tuple[bytes, bytes]
    ) -> None:
        """Add a joined frame of these streams, in the order of its members; the first carries it.

        It is on disk, for all of them or none, after the next `commit`, if it can be.
        """
        own, worth = header.members[0].sequence, worth_of(header)
        self._store(members[0], Row(sequence=own, schema=header.schema, parts=parts), worth)
        for place, member in enumerate(members[1:], start=1):
            rider = Rider(members[0], own, place, header.step, header.final)
            self._store(member, rider_row(header.members[place].sequence, rider), worth)

    def _store(self, member: int, row: Row, worth: int) -> None:
        came = int(self._wall_s())
        if self._disk is not None and not self._rests():
            self._turn.append((member, row, worth))
            try:
                self._disk.put(member, row, worth=worth, came=came)
            except sqlite3.Error as error:
                self._trouble(error)
        else:
            self._memory.put(member, row, worth=worth, came=came)

    def after(self, member: int, sequence: int) -> tuple[int, int] | None:
        """Sequence number and bytes of the next frame of a stream after that one."""
        sequence = max(sequence, self._committed.get(member, -1))
        found = self._read(lambda disk: disk.after(member, sequence), None)
        aside = self._memory.after(member, sequence) if self._memory.frames else None
        return min((one for one in (found, aside) if one is not None), default=None)

    def ahead(self, member: int, sequence: int, frames: int) -> int:
        """The sequence number of the frame so many after that one; `LAST` if there are fewer."""
        return self._read(lambda disk: disk.ahead(member, sequence, frames), sequence)

    @property
    def is_full(self) -> bool:
        """Whether no more is to come on the disk for now."""
        return self.disk_frames > 0 and self.disk_bytes >= self._limit

    def row(self, member: int, sequence: int, *, after: int) -> Row | None:
        """A frame.

        Args:
            after: what upstream has; what is missing in between was lost with a damaged file,
                unless the frame tells why.
        """
        row = self._memory.row(member, sequence) if self._memory.frames else None
        row = row or self._read(lambda disk: disk.row(member, sequence), None)
        if row is None or not self.damaged_files or sequence == after + 1:
            return row
        header = open_header(row.schema, row.parts[0])
        # Before a joined frame the collector finds the numbers that were jumped over.
        if not isinstance(header, FrameHeader) or header.gaps:
            return row
        missing = sequence - after - 1
        step = header.step
        gap = Gap(first_step=step, last_step=step, frames=missing, cause=DAMAGED)
        return _telling(row, header, [gap])

    def give_up(self, member: int, sequence: int, lost: Collection[Place]) -> None:
        """Remove a joined frame, or what goes with one, that upstream would not take any more.

        Args:
            lost: those of its frames that upstream has not had another way: they are counted.
        """
        self.dropped[TORN] += len(lost)
        tear(self._memory, member, sequence, lost, TORN)
        self._read(lambda disk: tear(disk, member, sequence, lost, TORN), None)

    def let_go(self, member: int, committed: int) -> int:
        """Remove the frames of a stream up to that one; how many there were."""
        count = self._memory.let_go(member, committed) if self._memory.frames else 0
        if self._disk is not None:
            self._committed[member] = committed
            if not self._rests():
                count += self._read(lambda disk: disk.let_go(member, committed), 0)
        return count

    def first_in_memory(self, member: int) -> int | None:
        """The lowest sequence number of a stream's frames that are in memory alone."""
        found = self._memory.after(member, -1) if self._memory.frames else None
        return None if found is None else found[0]

    def count(self, member: int) -> int:
        """How many frames of a stream there are."""
        done = self._committed.get(member, -1)
        count = self._memory.count(member, done)
        return count + self._read(lambda disk: disk.count(member, done), 0)

    # What is kept --------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Bytes of frames and schemas in memory."""
        return self._memory.size_bytes + self._schema_bytes

    @property
    def frames(self) -> int:
        """Frames in memory and on disk that are not known to be durable upstream."""
        return self._memory.frames + self.disk_frames - self._read(self._count_done, 0)

    @property
    def disk_frames(self) -> int:
        """Frames on disk."""
        return 0 if self._disk is None else self._disk.frames

    def _count_done(self, disk: Shelf) -> int:
        """Frames that are durable upstream, and go when the disk can be written again."""
        forgotten = {member: LAST for member, kept in self._unwritten.items() if kept is None}
        done = {**self._committed, **forgotten}
        return sum(disk.count_up_to(member, last) for member, last in done.items())

    @property
    def disk_bytes(self) -> int:
        """Bytes of frames on disk."""
        return 0 if self._disk is None else self._disk.size_bytes

    def oldest_s(self) -> float:
        """For how long the oldest frame has been here, in seconds."""
        times = [self._memory.oldest(), self._read(lambda disk: disk.oldest(), None)]
        known = [came for came in times if came is not None]
        return max(self._wall_s() - min(known), 0.0) if known else 0.0

    # Transactions --------------------------------------------------------------------------------

    def commit(
        self, now: float, stays: Callable[[int], int], used: Callable[[], set[bytes]]
    ) -> bool:
        """Make durable what is new, and keep within bounds.

        Args:
            stays: for a stream, the sequence number up to which nothing gives way, for it may be
                upstream already, or is about to go there.
            used: schemas that streams still name.

        Returns:
            Whether frames that were in memory alone are on disk now.
        """
        if now >= self._next_prune:
            self._next_prune = now + PRUNE_S
            self._prune(used())
        self._memory.commit()
        if self._file is None or now < self._rests_until:
            return False
        self._rests_until = 0.0
        try:
            disk = self._disk = self._disk or Shelf(self._file)
            is_due = self._look(self._file, now)
            moved = self._write(disk, stays, now)
            if is_due and disk.is_deleted:
                self._put_back(disk, self._file)
            return moved
        except sqlite3.Error as error:
            self._trouble(error, now)
            return False

    def close(self) -> None:
        """Let go of the disk; what was not committed is lost. A file with nothing in it goes."""
        is_empty = not self.frames and not self._kept
        self._memory.close()
        if self._disk is not None:
            self._disk.close()
            if is_empty:
                self._remove()

    def _remove(self) -> None:
        """Leave no trace on a machine that jobs come and go on."""
        assert self._file is not None
        with suppress(OSError):
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self._file}{suffix}").unlink(missing_ok=True)
            if self._made_folder:
                self._file.parent.rmdir()

    def _write(self, disk: Shelf, stays: Callable[[int], int], now: float) -> bool:
        for hash_ in self._unwritten_schemas:
            disk.learn(hash_, self._schemas[hash_])
        for member, kept in self._unwritten.items():
            disk.forget(member) if kept is None else disk.keep(kept)
        for member, committed in self._committed.items():
            disk.let_go(member, committed)
        moved = list(self._move_back(disk))
        lost = make_room(disk, self._limit, stays)
        disk.commit()
        self._count(lost, now)
        self._written_bytes = disk.size_bytes
        self._unwritten_schemas.clear()
        self._unwritten.clear()
        self._committed.clear()
        for member, sequence in moved:
            self._memory.remove(member, sequence)
        self._turn.clear()
        if not disk.frames:
            disk.shrink()
        return bool(moved)

    def _move_back(self, disk: Shelf) -> Iterator[tuple[int, int]]:
        """Frames that are in memory since the disk failed go back to it."""
        if not self._memory.frames:
            return
        for count, (member, sequence) in enumerate(self._memory.in_order()):
            row = self._memory.row(member, sequence)
            assert row is not None
            if count >= MOVED and row.schema != RIDER:  # a joined frame goes as a whole
                return
            worth = worth_of(open_header(row.schema, row.parts[0]))
            disk.put(member, row, worth=worth, came=int(self._wall_s()))
            yield member, sequence

    # Bounds --------------------------------------------------------------------------------------

    def _look(self, file: Path, now: float) -> bool:
        """See how much room there is, if it is time to."""
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_S
        self._limit = self._settings.spool_bytes
        with suppress(FileNotFoundError):  # the folder was deleted: see `_put_back`
            if shutil.disk_usage(file.parent).free < self._settings.min_free:
                self._limit = min(self._limit, self._written_bytes)
        return True

    def _put_back(self, disk: Shelf, file: Path) -> None:
        """Somebody has deleted the file, and agents were told that what is in it is durable."""
        if file.exists():
            text = f"The spool {file} is another relay's now: give each its own."
            self._complaints.say("place", text, time.monotonic())
            return
        logger.warning("The spool %s was deleted, and is made again.", file)
        try:
            _make_folder(file.parent)
            self._disk = disk.copied_to(file)
        except (OSError, SettingError) as error:
            logger.error("It could not be made again: %s", error)

    def _count(self, lost: Sequence[int], now: float) -> None:
        if lost:
            self.dropped[FULL] += len(lost)
            self.dropped_bytes += sum(lost)
            self._complaints.say("full", f"The spool is full: {len(lost)} frames gave way.", now)

    def _prune(self, used: set[bytes]) -> None:
        if self._disk is not None and not self._rests():
            self._read(lambda disk: disk.prune_schemas(used), None)
        needed = used | self._memory.schemas()
        needed |= self._read(lambda disk: disk.schemas(), set[bytes]())
        self._schemas = {name: body for name, body in self._schemas.items() if name in needed}
        self._schema_bytes = sum(map(len, self._schemas.values()))
        self._unwritten_schemas &= self._schemas.keys()

    # Trouble -------------------------------------------------------------------------------------

    def _rests(self) -> bool:
        return self._rests_until > 0.0

    def _read(self, ask: Callable[[Shelf], Answer], otherwise: Answer) -> Answer:
        """Ask the disk, if there is one; what it cannot say is `otherwise`."""
        if self._disk is None:
            return otherwise
        try:
            return ask(self._disk)
        except sqlite3.Error as error:
            self._trouble(error)
            return otherwise

    def _trouble(self, error: sqlite3.Error, now: float | None = None) -> None:
        """Leave the disk alone for a while; what was to be written there goes into memory."""
        self.failures += 1
        now = time.monotonic() if now is None else now
        self._rests_until = now + RETRY_S
        turn, self._turn = self._turn, []
        if _is_damage(error):
            self._set_aside(error)
        else:
            text = f"The spool {self._file} cannot be written: {error}. Frames stay in memory."
            self._complaints.say("disk", text, now)
            try:
                if self._disk is not None:
                    self._disk.roll_back()
            except sqlite3.Error as worse:
                self._set_aside(worse)
        for member, row, worth in turn:
            if row.sequence > self._committed.get(member, -1):
                self._memory.put(member, row, worth=worth, came=int(self._wall_s()))

    def _begin(self, file: Path) -> None:
        was_there = file.exists()
        try:
            self._disk = Shelf(file)
            self._kept = {kept.member: kept for kept in self._disk.members()}
            self._written_bytes = self._disk.size_bytes
        except sqlite3.Error as error:
            if "locked" in str(error):
                text = f"Another relay uses the spool {file.parent}: give each its own."
                raise SettingError(text) from None
            if was_there and not _is_damage(error):
                # There may be frames in it: to begin without them would be to lose them.
                raise SettingError(f"The spool {file} cannot be opened: {error}.") from None
            self._trouble(error)

    def _set_aside(self, error: sqlite3.Error) -> None:
        """Rename a damaged file, so that a new one can be begun and somebody can look at it."""
        assert self._file is not None
        self.damaged_files += 1
        if self._disk is not None:
            self._disk.close()
            self._disk = None
        self._unwritten, self._unwritten_schemas = {**self._kept}, set(self._schemas)
        aside = self._file.with_name(f"{FILE}.corrupt-{int(self._wall_s() * 1000)}")
        text = "The spool %s is damaged: %s. It is set aside as %s."
        logger.error(text, self._file, error, aside)
        for suffix in ("", "-wal", "-shm"):
            try:
                os.replace(f"{self._file}{suffix}", f"{aside}{suffix}")
            except FileNotFoundError:
                pass
            except OSError as worse:
                logger.error("It could not be renamed: %s.", worse.strerror)
                return
        self._rests_until = 0.0


def _telling(row: Row, header: FrameHeader, gaps: list[Gap]) -> Row:
    told = encode(replace(header, gaps=gaps))
    return Row(sequence=row.sequence, schema=row.schema, parts=(told, row.parts[1]))


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is broken, and not the disk full, or gone, or slow."""
    return type(error) is sqlite3.DatabaseError


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        text = f"The folder {folder} of the spool cannot be made: {error.strerror}."
        raise SettingError(text) from None
    return folder
