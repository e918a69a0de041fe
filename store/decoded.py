"""What was decoded of one snapshot's chunks: the next question often asks for it again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from threading import Lock
from typing import Any

from numpy.typing import NDArray

Chunk = NDArray[Any] | None
"""Some rows of a chunk, of its array's dtype, read only; None where nothing is stored."""
Key = tuple[str, int, int]
"""The chunk's key in the store; from which row up to which."""

ROOM = 64 << 20
"""Bytes of them that a reader keeps."""


class Decoded:
    """The chunks that were used last, at most `ROOM` bytes of them; for many threads."""

    def __init__(self, room: int = ROOM) -> None:
        self._room, self._bytes = room, 0
        self._chunks: OrderedDict[Key, Chunk] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Key) -> tuple[bool, Chunk]:
        """Whether these rows of a chunk are here, and the rows of it."""
        with self._lock:
            if key not in self._chunks:
                return False, None
            self._chunks.move_to_end(key)
            return True, self._chunks[key]

    def keep(self, key: Key, chunk: Chunk) -> None:
        """Keep a chunk, and let go of those that were not used for longest."""
        if chunk is not None:
            chunk.setflags(write=False)
        with self._lock:
            self._bytes += size_of(chunk) - size_of(self._chunks.pop(key, None))
            self._chunks[key] = chunk
            while self._bytes > self._room:
                self._bytes -= size_of(self._chunks.popitem(last=False)[1])

    def besides(self, changed: Collection[str]) -> Decoded:
        """The same for a later snapshot, which has other chunks under these keys of the store."""
        later = Decoded(self._room)
        with self._lock:
            for key, chunk in self._chunks.items():
                if key[0] not in changed:
                    later.keep(key, chunk)
        return later


def size_of(chunk: Chunk) -> int:
    """Bytes of a chunk."""
    return 0 if chunk is None else chunk.nbytes
