"""One SQLite database of streams and their frames: a file, or in memory.

All changes wait for `commit`. A frame is a row until it is durable upstream or gives way.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

RIDER = b""
"""In place of a schema's hash: the row is no frame, but goes with a joined one, see `riders`."""
LAST = 2**63 - 1
"""The highest sequence number that a row can have."""
LAYOUT = 1
"""Version of the tables, in the file's `user_version`."""
PAGE_BYTES = 16_384
JOURNAL_BYTES = 64 << 20
"""To which the write-ahead log is cut back."""
VACUUM_PAGES = 512
"""Given back to the disk at a time: 8 MiB."""

_TABLES = f"""
CREATE TABLE member (
    id INTEGER PRIMARY KEY, hello BLOB NOT NULL, received INTEGER NOT NULL DEFAULT -1,
    sent INTEGER NOT NULL DEFAULT -1, goodbye BLOB
);
CREATE TABLE schema (hash BLOB PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE frame (
    id INTEGER PRIMARY KEY, member INTEGER NOT NULL, sequence INTEGER NOT NULL,
    schema BLOB NOT NULL, worth INTEGER NOT NULL, size INTEGER NOT NULL, came INTEGER NOT NULL,
    header BLOB NOT NULL, body BLOB NOT NULL
);
CREATE UNIQUE INDEX frame_by_sequence ON frame (member, sequence);
CREATE INDEX frame_by_worth ON frame (worth, id);
CREATE INDEX frame_by_schema ON frame (schema);
PRAGMA user_version = {LAYOUT};
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A frame on the shelf."""

    sequence: int
    schema: bytes
    """Hash of the schema that it needs, or `RIDER`."""
    parts: tuple[bytes, bytes]
    """Header and blob."""

    @property
    def size_bytes(self) -> int:
        """Bytes on the wire."""
        return len(self.parts[0]) + len(self.parts[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept of a stream beside its frames."""

    member: int
    hello: bytes
    received: int
    """Highest sequence number that was taken in."""
    sent: int
    """Highest one that went upstream, whether or not it arrived."""
    goodbye: bytes | None


class Shelf:
    """The tables, and how much is in them.

    Args:
        file: made if it is not there; None: in memory.

    Raises:
        sqlite3.DatabaseError: it is no such file, is damaged, or cannot be written. So may every
            call.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.frames = self.size_bytes = 0
        self._database = _opened(file)
        try:
            self._prepare()
        except BaseException:
            self._database.close()
            raise

    # Streams -------------------------------------------------------------------------------------

    def members(self) -> list[Kept]:
        """All streams."""
        rows = self._database.execute(
            "SELECT id, hello, received, sent, goodbye FROM member ORDER BY id"
        )
        return [
            Kept(member=row[0], hello=row[1], received=row[2], sent=row[3], goodbye=row[4])
            for row in rows
        ]

    def keep(self, kept: Kept) -> None:
        """Add a stream, or what is new of it."""
        self._change(
            "INSERT OR REPLACE INTO member (id, hello, received, sent, goodbye) "
            "VALUES (?, ?, ?, ?, ?)",
            (kept.member, kept.hello, kept.received, kept.sent, kept.goodbye),
        )

    def forget(self, member: int) -> None:
        """Remove a stream with all its frames."""
        self.let_go(member, LAST)
        self._change("DELETE FROM member WHERE id = ?", (member,))

    # Schemas -------------------------------------------------------------------------------------

    def learn(self, hash_: bytes, body: bytes) -> None:
        """Keep a schema; of many streams that have the same, once."""
        self._change("INSERT OR IGNORE INTO schema (hash, body) VALUES (?, ?)", (hash_, body))

    def schema(self, hash_: bytes) -> bytes | None:
        """The schema with this hash."""
        row = self._one("SELECT body FROM schema WHERE hash = ?", hash_)
        return None if row is None else row[0]

    def schemas(self) -> set[bytes]:
        """Hashes of the schemas that frames need."""
        return {row[0] for row in self._database.execute("SELECT DISTINCT schema FROM frame")}

    def schema_bodies(self) -> Iterator[tuple[bytes, bytes]]:
        """Hash and encoded schema of all."""
        return self._database.execute("SELECT hash, body FROM schema")

    def unlearn(self, hash_: bytes) -> None:
        """Remove a schema."""
        self._change("DELETE FROM schema WHERE hash = ?", (hash_,))

    def prune_schemas(self, used: set[bytes]) -> None:
        """Remove the schemas that no frame needs, but for these."""
        known = {row[0] for row in self._database.execute("SELECT hash FROM schema")}
        for hash_ in known - self.schemas() - used:
            self.unlearn(hash_)

    # Frames --------------------------------------------------------------------------------------

    def put(self, member: int, row: Row, *, worth: int, came: int) -> None:
        """Add a frame.

        Args:
            worth: frames of less give way first.
            came: wall clock, seconds since 1970.
        """
        size = row.size_bytes
        self._change(
            "INSERT INTO frame (member, sequence, schema, worth, size, came, header, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (member, row.sequence, row.schema, worth, size, came, *row.parts),
        )
        self.frames += 1
        self.size_bytes += size

    def after(self, member: int, sequence: int) -> tuple[int, int] | None:
        """Sequence number and bytes of the next frame of a stream after that one."""
        return self._one(
            "SELECT sequence, size FROM frame WHERE member = ? AND sequence > ? "
            "ORDER BY sequence LIMIT 1",
            member,
            sequence,
        )

    def ahead(self, member: int, sequence: int, frames: int) -> int:
        """The sequence number of the frame so many after that one; `LAST` if there are fewer."""
        found = self._one(
            "SELECT sequence FROM frame WHERE member = ? AND sequence > ? "
            "ORDER BY sequence LIMIT 1 OFFSET ?",
            member,
            sequence,
            frames - 1,
        )
        return LAST if found is None else found[0]

    def row(self, member: int, sequence: int) -> Row | None:
        """A frame."""
        found = self._one(
            "SELECT sequence, schema, header, body FROM frame WHERE member = ? AND sequence = ?",
            member,
            sequence,
        )
        if found is None:
            return None
        return Row(sequence=found[0], schema=found[1], parts=(found[2], found[3]))

    def header(self, member: int, sequence: int) -> tuple[bytes, bytes] | None:
        """Schema and header of a frame."""
        return self._one(
            "SELECT schema, header FROM frame WHERE member = ? AND sequence = ?", member, sequence
        )

    def riders(self, member: int, sequence: int, most: int) -> list[tuple[int, int]]:
        """Stream and sequence number of what was put right after a row, to go with it."""
        statement = (
            "SELECT rider.member, rider.sequence FROM frame AS rider, frame AS carrier "
            "WHERE carrier.member = ? AND carrier.sequence = ? "
            "AND rider.id BETWEEN carrier.id + 1 AND carrier.id + ? AND rider.schema = ?"
        )
        return self._database.execute(statement, (member, sequence, most, RIDER)).fetchall()

    def has_riders(self) -> bool:
        """Whether there are rows that go with others."""
        return self._one("SELECT 1 FROM frame WHERE schema = ? LIMIT 1", RIDER) is not None

    def headers(self) -> Iterator[tuple[tuple[int, int], bytes, bytes]]:
        """Stream and sequence number, schema and header of all frames."""
        rows = self._database.execute("SELECT member, sequence, schema, header FROM frame")
        return ((row[:2], *row[2:]) for row in rows)

    def strays(self) -> list[tuple[int, int]]:
        """Stream and sequence number of frames whose stream or schema is not there."""
        statement = (
            "SELECT member, sequence FROM frame WHERE member NOT IN (SELECT id FROM member) "
            "OR (schema != ? AND schema NOT IN (SELECT hash FROM schema))"
        )
        return self._database.execute(statement, (RIDER,)).fetchall()

    def rewrite(self, member: int, sequence: int, header: bytes) -> None:
        """Give a frame that is here another header."""
        [before] = self._one(
            "SELECT LENGTH(header) FROM frame WHERE member = ? AND sequence = ?", member, sequence
        )
        more = len(header) - before
        self._change(
            "UPDATE frame SET header = ?, size = size + ? WHERE member = ? AND sequence = ?",
            (header, more, member, sequence),
        )
        self.size_bytes += more

    def remove(self, member: int, sequence: int) -> None:
        """Remove a frame that is here."""
        [size] = self._one(
            "SELECT size FROM frame WHERE member = ? AND sequence = ?", member, sequence
        )
        self._change("DELETE FROM frame WHERE member = ? AND sequence = ?", (member, sequence))
        self.frames -= 1
        self.size_bytes -= size

    def let_go(self, member: int, committed: int) -> int:
        """Remove the frames of a stream up to that one; how many there were."""
        [frames, size_bytes] = self._one(
            "SELECT COUNT(*), SUM(size) FROM frame WHERE member = ? AND sequence <= ?",
            member,
            committed,
        )
        if frames:
            self._change(
                "DELETE FROM frame WHERE member = ? AND sequence <= ?", (member, committed)
            )
            self.frames -= frames
            self.size_bytes -= size_bytes
        return frames

    def least_worth(self) -> Iterator[tuple[int, int, int]]:
        """Stream, sequence number and bytes: of least worth first, of these the oldest.

        What goes with another row is not named.
        """
        return self._database.execute(
            "SELECT member, sequence, size FROM frame WHERE schema != ? ORDER BY worth, id",
            (RIDER,),
        )

    def count(self, member: int, after: int) -> int:
        """How many frames of a stream there are after that one."""
        statement = "SELECT COUNT(*) FROM frame WHERE member = ? AND sequence > ?"
        return self._one(statement, member, after)[0]

    def count_up_to(self, member: int, sequence: int) -> int:
        """How many frames of a stream there are up to that one."""
        statement = "SELECT COUNT(*) FROM frame WHERE member = ? AND sequence <= ?"
        return self._one(statement, member, sequence)[0]

    def in_order(self) -> Iterator[tuple[int, int]]:
        """Stream and sequence number of all frames, in the order in which they came."""
        return self._database.execute("SELECT member, sequence FROM frame ORDER BY id")

    def oldest(self) -> int | None:
        """When the frame came that is here for longest, seconds since 1970."""
        found = self._one("SELECT came FROM frame ORDER BY id LIMIT 1")
        return None if found is None else found[0]

    # Transactions --------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make all changes since the last time durable; on an error none of them is there."""
        if self._database.in_transaction:
            self._database.execute("COMMIT")

    def roll_back(self) -> None:
        """Undo all changes since the last commit, if SQLite has not done so already."""
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")
        self._measure()

    def shrink(self) -> None:
        """Give some of what is free back to the disk."""
        self._database.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()

    @property
    def is_deleted(self) -> bool:
        """Whether somebody has taken the file away: what is in it would go with this process."""
        return _place_of(self.file) != self._place

    def copied_to(self, file: Path) -> Self:
        """What was committed, in a file that takes the place of this one, which is closed."""
        new = file.with_name(f"{file.name}.new")
        new.unlink(missing_ok=True)
        with closing(_opened(new)) as database:
            self._database.backup(database)
        # It removes its log by name, so that no other may have that name yet.
        self.close()
        os.replace(new, file)
        return type(self)(file)

    def close(self) -> None:
        """Let go of the file; what was not committed is not kept."""
        self._database.close()

    # Inside --------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        run = self._database.execute
        if self.file is not None:
            # Another relay on this file is refused at once, and none can come while we run. First
            # of all, for otherwise SQLite makes a file beside it: on a full disk it cannot.
            run("PRAGMA locking_mode = EXCLUSIVE")
        [version] = run("PRAGMA user_version").fetchone()
        if self.file is not None:
            if version == 0:  # to say it again of a file that is there takes room
                run(f"PRAGMA page_size = {PAGE_BYTES}")
                run("PRAGMA auto_vacuum = INCREMENTAL")
            run("PRAGMA journal_mode = WAL").fetchone()
            run("PRAGMA synchronous = NORMAL")
            run(f"PRAGMA journal_size_limit = {JOURNAL_BYTES}")
        if version == 0:
            self._database.executescript(f"BEGIN IMMEDIATE;{_TABLES}COMMIT;")
        elif version != LAYOUT:
            raise sqlite3.DatabaseError(f"it has layout {version}, not {LAYOUT}")
        else:
            [fault] = run("PRAGMA quick_check(1)").fetchone()
            if fault != "ok":
                raise sqlite3.DatabaseError(fault)
        self._measure()
        self._place = _place_of(self.file)

    def _measure(self) -> None:
        self.frames, self.size_bytes = self._one(
            "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM frame"
        )

    def _change(self, statement: str, values: tuple[object, ...]) -> None:
        if not self._database.in_transaction:
            self._database.execute("BEGIN IMMEDIATE")
        self._database.execute(statement, values)

    # Any: the values have the types that the tables say.
    def _one(self, statement: str, *values: object) -> Any:
        return self._database.execute(statement, values).fetchone()


def _opened(file: Path | None) -> sqlite3.Connection:
    """A connection; SQLite gives what it makes beside the file the rights that this has."""
    with suppress(OSError):  # SQLite says better why
        if file is not None:
            os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    return sqlite3.connect(file or ":memory:", timeout=1.0, isolation_level=None)


def _place_of(file: Path | None) -> tuple[int, int] | None:
    """Which file lies there, if any does."""
    try:
        found = None if file is None else os.stat(file)
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)
