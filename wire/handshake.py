"""What it means when a connection breaks before anything was said on it, in plain words.

ZeroMQ tells of a handshake that failed only on a socket's monitor: without this a wrong key looks
like a collector that is down. This module loads pyzmq, which the room's face must not.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import zmq

from .keys import AgentKeys

HOW = {
    "agent": "pass `keys=` to observe(), or set RANKSCOPE_KEYS",
    "relay": "start this relay with `--keys`",
}
"""By party: how it gets keys."""

FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
"""The events of a monitor that `failure` knows."""


def monitored(parts: Sequence[bytes]) -> tuple[int, int]:
    """Event and value of a monitor's message: 16 and 32 bits, as in zmq_socket_monitor(3).

    `zmq.utils.monitor` loads asyncio, which would take a quarter of an agent's import.
    """
    event, value = struct.unpack("=Hi", parts[0])
    return event, value


def failure(event: int, address: str, keys: AgentKeys | None, party: str = "agent") -> str:
    """Why no connection came about, and what to do; empty for other events.

    Args:
        party: who wanted it: one of `HOW`.
    """
    if not event & FAILED:
        return ""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH and keys is not None:
        return (
            f"The collector at {address} does not let this {party} in: put own.key of "
            f"{keys.source} into the folder agents/ of the collector's keys."
        )
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and keys is not None:
        return (
            f"The collector at {address} has no keys: start it with `--keys`, or leave out those "
            f"of the {party}."
        )
    if keys is not None:
        return (
            f"The collector at {address} ended the handshake: its key is not the collector.key of "
            f"{keys.source}, or it has none: then start it with `--keys`."
        )
    return (
        f"The collector at {address} ended the handshake: it asks for keys ({HOW[party]}), "
        "or it is no collector."
    )
