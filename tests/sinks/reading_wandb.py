"""Reads what W&B writes offline: LevelDB's log format, a message of protobuf in each record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

HEADER, BLOCK, CHUNK_HEADER = 7, 32 << 10, 7
FULL, FIRST, LAST = 1, 2, 4


def records(file: Path) -> Iterator[Any]:
    """The messages of a `run-….wandb` file."""
    data, at, message = file.read_bytes(), HEADER, b""
    assert data[:4] == b":W&B"
    while at + CHUNK_HEADER <= len(data):
        if BLOCK - at % BLOCK < CHUNK_HEADER:  # the rest of a block is padding
            at += BLOCK - at % BLOCK
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        chunk = data[at + CHUNK_HEADER : at + CHUNK_HEADER + size]
        message = chunk if kind in (FULL, FIRST) else message + chunk
        at += CHUNK_HEADER + size
        if kind in (FULL, LAST):
            found: Any = vars(wandb_internal_pb2)["Record"]()
            found.ParseFromString(message)
            yield found


def history(file: Path) -> list[dict[str, Any]]:
    """What was logged, a dictionary each time."""
    lines = list[dict[str, Any]]()
    for logged in only(file, "history"):
        line: dict[str, Any] = {}
        for item in logged.item:
            *outer, last = list(item.nested_key) or [item.key]
            into = line
            for name in outer:
                into = into.setdefault(name, {})
            into[last] = json.loads(item.value_json)
        lines.append(line)
    return lines


def only(file: Path, kind: str) -> list[Any]:
    """The messages of one kind."""
    return [getattr(one, kind) for one in records(file) if one.WhichOneof("record_type") == kind]
