"""The spool against a model, a full disk and a damaged file: what it holds, and what it tells."""

from __future__ import annotations

import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rankscope.relay import RelaySettings, Spool
from rankscope.relay.shelf import Kept, Row
from rankscope.relay.spool import DAMAGED, FILE
from rankscope.relay.thinning import FULL
from rankscope.sketch import SettingError
from rankscope.wire import FrameHeader, Gap, decode, encode, make_schema
from rankscope.wire.messages import JoinedHeader, JoinedMember

from ..collector.serving import SITES, hello

SCHEMA = bytes(16)
BODY = bytes(1000)


def header(sequence: int, step: int | None = None, **fields: Any) -> FrameHeader:
    settings: dict[str, Any] = {"schema": SCHEMA, "time_ns": 0, "rows": 0, "bins": 0, **fields}
    return FrameHeader(
        sequence=sequence,
        step=sequence if step is None else step,
        bin_dtype="u1",
        crc32=0,
        **settings,
    )


def put(spool: Spool, member: int, head: FrameHeader, body: bytes = BODY) -> None:
    spool.put(member, head, (encode(head), body))


def spool_in(folder: Path, **fields: Any) -> Spool:
    return Spool(RelaySettings(spool=folder, min_free=fields.pop("min_free", 0), **fields))


def commit(spool: Spool, now: float = 1.0, sent: dict[int, int] | None = None) -> None:
    spool.commit(now, lambda member: (sent or {}).get(member, -1), lambda: {SCHEMA})


def rows(spool: Spool, member: int) -> list[Row]:
    """All that would go upstream."""
    found, last = list[Row](), -1
    while (following := spool.after(member, last)) is not None:
        row = spool.row(member, following[0], after=last)
        assert row is not None
        assert spool.damaged_files or row.size_bytes == following[1]
        found.append(row)
        last = row.sequence
    return found


def headers(spool: Spool, member: int) -> list[FrameHeader]:
    return [decode(row.parts[0], "agent") for row in rows(spool, member)]


def told(heads: Iterable[FrameHeader]) -> list[Gap]:
    return [gap for head in heads for gap in head.gaps]


def test_what_was_committed_is_there_again(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    kept = Kept(member=7, hello=b"h", received=2, sent=1, goodbye=b"g")
    spool.keep(kept)
    spool.learn(SCHEMA, b"schema")
    for sequence in range(3):
        put(spool, 7, header(sequence))
    commit(spool)
    put(spool, 7, header(3))
    spool.close()
    again = spool_in(tmp_path)

    assert again.members() == [kept]
    assert again.schema(SCHEMA) == b"schema"
    assert [head.sequence for head in headers(again, 7)] == [0, 1, 2]
    assert again.frames == 3
    again.let_go(7, 1)
    commit(again)
    again.forget(7)
    commit(again)
    assert again.frames == again.disk_bytes == 0
    again.close()


def test_when_it_is_full_all_ranks_lose_the_same_steps(tmp_path: Path) -> None:
    spool = spool_in(tmp_path, spool_bytes=200_000)
    for sequence in range(400):
        for member in (1, 2, 3):
            put(spool, member, header(sequence, step=100 * sequence))
        commit(spool, now=1.0 + sequence)
    left = [headers(spool, member) for member in (1, 2, 3)]
    spool.close()

    assert spool.disk_bytes <= 200_000
    common = set.intersection(*({head.step for head in heads} for heads in left))
    # The last frames of one rank may have been taken in before its room was needed.
    assert all(len({head.step for head in heads} - common) <= 2 for heads in left)
    assert left[0][-1].sequence == 399
    for heads in left:
        assert sum(gap.frames for gap in told(heads)) == 400 - len(heads)
        assert {gap.cause for gap in told(heads)} == {FULL}
    assert spool.dropped == {FULL: 1200 - sum(map(len, left))}
    # It thins: what is left is spread over all steps, not the newest alone.
    assert left[0][len(left[0]) // 2].sequence < 300


def test_frames_that_say_more_stay_longest(tmp_path: Path) -> None:
    spool = spool_in(tmp_path, spool_bytes=60_000)
    special: dict[int, Any] = {
        5: {"reports": ["odd"]},
        17: {"kept": True},
        30: {"partial": True},
        44: {"final": True},
    }
    for sequence in range(200):
        put(spool, 1, header(sequence, **special.get(sequence, {})))
    commit(spool)
    heads = headers(spool, 1)
    spool.close()

    assert len(heads) < 60
    assert special.keys() <= {head.sequence for head in heads}


def test_what_was_sent_does_not_give_way_and_the_newest_stays(tmp_path: Path) -> None:
    spool = spool_in(tmp_path, spool_bytes=1)
    for member in (1, 2):
        for sequence in range(10):
            put(spool, member, header(sequence))
    commit(spool, sent={1: 3})
    left = {member: [head.sequence for head in headers(spool, member)] for member in (1, 2)}
    spool.close()

    assert left == {1: [0, 1, 2, 3, 9], 2: [9]}


def test_gaps_that_a_lost_frame_told_are_told_by_the_next(tmp_path: Path) -> None:
    spool = spool_in(tmp_path, spool_bytes=1)
    old = Gap(first_step=-9, last_step=-5, frames=3, cause="the window was full")
    put(spool, 1, header(0, gaps=[old]))
    put(spool, 1, header(1))
    put(spool, 1, header(2))
    commit(spool)
    [last] = headers(spool, 1)
    spool.close()

    assert last.gaps == [old, Gap(first_step=0, last_step=1, frames=2, cause=FULL)]


def test_on_a_disk_with_too_little_room_it_does_not_grow(tmp_path: Path) -> None:
    spool = spool_in(tmp_path, min_free=1 << 60)
    for sequence in range(50):
        put(spool, 1, header(sequence))
        commit(spool, now=1.0 + 2 * sequence)

    assert spool.disk_frames == 1
    assert spool.dropped[FULL] == 49
    spool.close()


@pytest.mark.parametrize("how", ["garbage", "cut", "elsewhere"])
def test_a_damaged_file_is_set_aside(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    spool = spool_in(tmp_path)
    for sequence in range(100):
        put(spool, 1, header(sequence))
    commit(spool)
    spool.close()
    file = tmp_path / FILE
    whole = file.read_bytes()
    damaged = {
        "garbage": b"no database" * 1000,
        "cut": whole[: len(whole) // 2],
        "elsewhere": whole[:16384] + bytes(16384) + whole[32768:],
    }[how]
    file.write_bytes(damaged)
    again = spool_in(tmp_path)
    put(again, 1, header(100))
    commit(again)

    assert [head.sequence for head in headers(again, 1)] == [100]
    assert (again.damaged_files, again.disk_frames) == (1, 1)
    again.close()
    [aside] = tmp_path.glob(f"{FILE}.corrupt-*")
    assert aside.read_bytes()[100:] == damaged[100:]  # but for SQLite's own header
    assert "is damaged" in caplog.text


def test_a_file_that_is_damaged_while_it_is_used_is_set_aside(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    spool.keep(Kept(member=1, hello=b"h", received=-1, sent=-1, goodbye=None))
    spool.learn(SCHEMA, b"schema")
    for sequence in range(500):
        put(spool, 1, header(sequence), bytes(50_000))
        commit(spool, now=1.0 + sequence)
    size = (tmp_path / FILE).stat().st_size
    with open(tmp_path / FILE, "r+b") as file:
        file.seek(16384)
        file.write(bytes([0x5A]) * (size - 16384))
    last = 500
    while not spool.damaged_files and last < 2000:
        rows(spool, 1)
        put(spool, 1, header(last))
        commit(spool, now=1.0 + last)
        last += 1
    put(spool, 1, header(last))
    commit(spool, now=1.0 + last)
    found = headers(spool, 1)
    spool.close()
    again = spool_in(tmp_path)

    assert spool.damaged_files == 1
    assert found[-1].sequence == last
    assert [gap.cause for gap in found[0].gaps] == [
        "the relay's spool was damaged, and was set aside"
    ]
    assert again.members() == [Kept(member=1, hello=b"h", received=-1, sent=-1, goodbye=None)]
    assert again.schema(SCHEMA) == b"schema"
    again.close()


def test_a_file_that_somebody_deletes_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "spool"
    spool = spool_in(folder)
    for sequence in range(100):
        put(spool, 1, header(sequence))
    commit(spool)
    shutil.rmtree(folder)
    put(spool, 1, header(100))
    commit(spool, now=10.0)
    put(spool, 1, header(101))
    commit(spool, now=20.0)
    as_it_was = tmp_path / "as it was"
    shutil.copytree(folder, as_it_was)  # as a kill would leave it
    spool.close()
    again = spool_in(as_it_was)

    assert "was deleted, and is made again" in caplog.text
    assert spool.failures == 0
    assert [head.sequence for head in headers(again, 1)] == list(range(102))
    again.close()


def test_a_spool_in_whose_place_another_lies_leaves_that_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = spool_in(tmp_path)
    put(spool, 1, header(0))
    commit(spool)
    for file in tmp_path.iterdir():
        file.unlink()
    other = spool_in(tmp_path)
    put(other, 1, header(7))
    commit(other)
    commit(spool, now=10.0)

    assert "is another relay's now" in caplog.text
    assert [head.sequence for head in headers(other, 1)] == [7]
    other.close()
    spool.close()


def test_a_spool_on_a_full_disk_is_opened_as_it_was_left(tmp_path: Path) -> None:
    spool = spool_in(tmp_path / "spool")
    for sequence in range(50):
        put(spool, 1, header(sequence))
    commit(spool)
    shutil.copytree(tmp_path / "spool", tmp_path / "left")  # as a kill would leave it
    spool.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        again = spool_in(tmp_path / "left")
        found = headers(again, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert [head.sequence for head in found] == list(range(50))
    again.close()


def test_of_joined_frames_that_cannot_be_read_all_parts_are_left_out(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    schema = make_schema(SITES)
    spool.learn(schema.hash, encode(schema))
    for rank in range(2):
        kept = Kept(member=rank, hello=encode(hello(rank, 2)), received=5, sent=-1, goodbye=None)
        spool.keep(kept)
    for sequence in range(6):
        joined = JoinedHeader(
            members=[
                JoinedMember(stream=f"stream-{rank}", sequence=sequence, time_ns=0)
                for rank in range(2)
            ],
            schema=schema.hash,
            step=sequence,
            rows=0,
            sites=0,
            bins=0,
            bin_dtype="u1",
            crc32=0,
        )
        spool.put_joined([0, 1], joined, (encode(joined), BODY))
    commit(spool)
    spool.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        for member, sequence in ((0, 2), (1, 4)):  # what carries a frame, and what goes with one
            database.execute(
                "UPDATE frame SET header = x'c1' WHERE member = ? AND sequence = ?",
                (member, sequence),
            )
        database.commit()
    again = spool_in(tmp_path)
    again.leave_out()

    for member in range(2):
        assert [row.sequence for row in rows(again, member)] == [0, 1, 3, 5]
    assert again.dropped == {DAMAGED: 4}
    again.close()


def test_nobody_else_reads_what_is_in_a_folder_that_was_there(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    spool = spool_in(tmp_path)
    put(spool, 1, header(0))
    commit(spool)
    for file in tmp_path.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600
    spool.close()


def test_two_relays_do_not_share_a_spool(tmp_path: Path) -> None:
    first = spool_in(tmp_path)
    put(first, 1, header(0))
    commit(first)
    with pytest.raises(SettingError, match="Another relay uses the spool"):
        spool_in(tmp_path)
    first.close()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="cannot be made: Not a directory"):
        spool_in(tmp_path / "file" / "spool")


@dataclass
class Stream:
    """What a spool should hold of one stream."""

    there: dict[int, int] = field(default_factory=dict[int, int])
    """Sequence number to bytes of the body."""
    next: int = 0
    sent: int = -1
    done: int = -1


class SpoolMachine(RuleBasedStateMachine):
    """Frames come, go up, are acknowledged; the process is killed, the disk fails and recovers."""

    @initialize(limit=st.sampled_from([3_000, 10_000, 1 << 30]))
    def begin(self, limit: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.limit = limit
        self.spool = self.open()
        self.streams = {member: Stream() for member in (1, 2)}
        self.on_disk = {member: dict[int, int]() for member in (1, 2)}
        self.now = 1.0

    def open(self) -> Spool:
        return spool_in(Path(self.folder.name), spool_bytes=self.limit)

    @rule(member=st.sampled_from([1, 2]), size=st.integers(0, 2000), skip=st.integers(0, 2))
    def take_in(self, member: int, size: int, skip: int) -> None:
        stream = self.streams[member]
        sequence = stream.next + skip
        put(self.spool, member, header(sequence), bytes(size))
        stream.there[sequence], stream.next = size, sequence + 1

    @rule(member=st.sampled_from([1, 2]))
    def send(self, member: int) -> None:
        stream = self.streams[member]
        following = self.spool.after(member, stream.sent)
        if following is not None:
            stream.sent = following[0]

    @rule(member=st.sampled_from([1, 2]), back=st.integers(0, 3))
    def acknowledge(self, member: int, back: int) -> None:
        stream = self.streams[member]
        stream.done = max(stream.done, stream.sent - back)
        self.spool.let_go(member, stream.done)
        stream.there = {key: size for key, size in stream.there.items() if key > stream.done}

    @rule()
    def commit(self) -> None:
        self.now += 10.0
        commit(self.spool, self.now, {key: one.sent for key, one in self.streams.items()})
        self.look()

    @rule()
    def commit_to_a_disk_that_is_full(self) -> None:
        failures = self.spool.failures
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            self.now += 10.0
            commit(self.spool, self.now, {key: one.sent for key, one in self.streams.items()})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        if self.spool.failures == failures:  # there was nothing to write
            self.look()

    def look(self) -> None:
        """After a commit: what gave way may, and all that is left is on disk."""
        for member, stream in self.streams.items():
            left = {head.sequence for head in headers(self.spool, member)}
            gone = stream.there.keys() - left
            assert left <= stream.there.keys()
            assert all(sequence > stream.sent for sequence in gone)
            assert not stream.there or max(stream.there) in left
            stream.there = {key: size for key, size in stream.there.items() if key in left}
            self.on_disk[member] = dict(stream.there)
        assert self.spool.frames == sum(len(stream.there) for stream in self.streams.values())

    @rule()
    def kill(self) -> None:
        self.spool.close()
        self.spool = self.open()
        for member, stream in self.streams.items():
            there = {head.sequence for head in headers(self.spool, member)}
            assert there == self.on_disk[member].keys()
            stream.there = dict(self.on_disk[member])
            stream.next = max([stream.next, *(key + 1 for key in there)])

    @invariant()
    def it_holds_what_it_should(self) -> None:
        for member, stream in self.streams.items():
            left = headers(self.spool, member)
            assert [head.sequence for head in left] == sorted(stream.there)
            assert self.spool.count(member) == len(stream.there)

    def teardown(self) -> None:
        if hasattr(self, "spool"):
            self.spool.close()
            self.folder.cleanup()


TestSpool = SpoolMachine.TestCase
TestSpool.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_a_file_of_another_layout_is_set_aside(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / FILE)
    other.execute("PRAGMA user_version = 99")
    other.close()
    spool = spool_in(tmp_path)

    assert spool.damaged_files == 1
    spool.close()
