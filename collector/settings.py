"""What a collector may be told, with the values that it takes otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..sketch.errors import SettingError
from ..wire.codec import MAX_BLOB_BYTES
from ..wire.messages import RUN_NAME
from .joiner import JoinerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """Times, sizes and limits of a collector. Every memory that a peer can fill has one."""

    joiner: JoinerSettings = field(default_factory=JoinerSettings)
    runs: frozenset[str] = frozenset()
    """The only runs that are taken; empty: all."""
    commit_s: float = 1.5
    """What is ready is committed this often, at once where nothing was for so long, or as soon as
    it fills a chunk of the store …"""
    commit_records: int = 32
    """… and at most so many records at a time."""
    keep_records: int | None = None
    """Of how many records of a run, the last, all is to stay; None: of all."""
    retry_s: float = 1.0
    """Wait after a commit that failed; doubled each time, up to 4 times this."""
    take_over_s: float = 0.0
    """How long to wait, at the start, for another collector that writes one of `runs`."""
    first_hello_s: float = 60.0
    """With `until_done`: end if nobody said hello within this time, and nobody is connected."""
    credit_frames: int = 32
    """Frames that a stream may have under way."""
    credit_bytes: int = 16 << 20
    """And how much; less where many ranks share what may be under way: a quarter of `held_bytes`,
    but `least_credit_bytes` for each."""
    least_credit_bytes: int = 64 << 10
    held_bytes: int = 256 << 20
    """Above this much in memory, over all runs, no credit is given back; above twice it, frames
    are refused."""
    max_message_bytes: int = MAX_BLOB_BYTES
    """A peer that sends a larger message part is disconnected."""
    resident_bytes: int = 2 << 30
    """When the process takes more, all connections are closed: what their peers had sent, and
    nobody has read, goes with them. Agents come back and send it again."""
    max_connections: int = 24_000
    """Above this nobody is let in until some have gone."""
    max_streams: int = 20_000
    max_runs: int = 64
    """Runs that are open at a time."""
    max_stored_runs: int = 10_000
    """Above so many in the folder no new one is begun."""
    max_attempts: int = 4096
    """Starts of a run."""
    max_stored_streams: int = 200_000
    """Streams of a run, of all its attempts: the position of each is in every commit."""
    max_world_size: int = 20_000
    max_schemas: int = 16
    """Schemas kept for each stream; the oldest gives way and is asked for again."""
    max_waiting: int = 8192
    """Frames of a stream that are not durable: many times an agent's window."""
    schema_bytes: int = 256 << 20
    """Of the schemas of all streams of a run, as they came; such as are alike count once."""
    site_bytes: int = 64 << 20
    """Of the schemas that told a run of new sites."""

    def __post_init__(self) -> None:
        if self.keep_records is not None and self.keep_records < 1:
            raise SettingError(f"At least one record has to be kept, got {self.keep_records}.")
        for name in sorted(self.runs):
            if not RUN_NAME.fullmatch(name):
                raise SettingError(f"A run's name is letters, digits and ._+=@ -, got {name!r}.")
