"""A connection to a collector or relay that is made again when it breaks.

This module loads pyzmq, which the room's face must not: import it by its own name.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import zmq

from ..sketch.errors import AddressError
from .address import parse_destination
from .handshake import FAILED, failure, monitored
from .keys import AgentKeys

FIRST_RETRY_S = 0.2
LAST_RETRY_S = 5.0
RETRY_GROWTH = 1.5
NEVER_MS = 86_400_000
"""Before ZeroMQ itself would connect again: by then the socket is closed. Were it told never to, it
would throw away, as the connection ends, what has come and was not read."""
HEARTBEAT_MS = 5000
HEARTBEAT_TIMEOUT_MS = 20_000
BROKEN = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED


class Connection:
    """A DEALER socket. One socket is one connection: one that broke is never used again.

    Args:
        address: `tcp://host:port` or `ipc://path`.
        keys: for a collector that asks for them.
        party: who connects, an `agent` or a `relay`.
        send_messages: how many messages may wait for the network.

    Raises:
        AddressError: the address cannot be understood.
        SettingError: it has no host or no port.
    """

    def __init__(
        self,
        address: str,
        *,
        keys: AgentKeys | None = None,
        party: str = "agent",
        send_messages: int = 256,
    ) -> None:
        where = parse_destination(address)
        self.address = str(where)
        self._is_ipv6, self._keys, self._party = where.is_ipv6, keys, party
        self._send_messages = send_messages
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._retry_at = 0.0
        self._failed = False
        """Whether the socket is of no use any more."""
        self._ended = False
        """Whether the transport has said that the present connection is gone."""
        self._retry_s = FIRST_RETRY_S
        self.opened = 0.0
        """When the present one was made, on the clock of the calls."""
        self.problem = ""
        """What the handshake failed at last, in plain words."""

    @property
    def is_open(self) -> bool:
        """Whether there is a socket; whether anybody is at its other end, only an answer tells."""
        return self._socket is not None

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to wait for."""
        return [socket for socket in (self._socket, self._monitor) if socket is not None]

    def open(self, now: float) -> bool:
        """Make a new socket if there is none and it is time; whether one was made.

        Raises:
            AddressError: this machine cannot use the address.
        """
        if self._socket is not None or now < self._retry_at:
            return False
        try:
            self._context = self._context or zmq.Context()
            socket = self._socket = self._context.socket(zmq.DEALER)
            socket.linger = 0
            socket.ipv6 = self._is_ipv6
            socket.reconnect_ivl = NEVER_MS
            socket.sndhwm = self._send_messages
            socket.heartbeat_ivl = HEARTBEAT_MS
            socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
            if self._keys is not None:
                self._keys.protect(socket)
            self._monitor = socket.get_monitor_socket(BROKEN | FAILED)
            socket.connect(self.address)
        except zmq.ZMQError as error:
            self.drop(now)
            text = f"The address {self.address} cannot be used: {error.strerror}."
            raise AddressError(text) from None
        self.opened, self._failed, self._ended = now, False, False
        return True

    def welcomed(self) -> None:
        """The other side is well: if this breaks, the next attempt is soon."""
        self._retry_s, self.problem = FIRST_RETRY_S, ""

    def drop(self, now: float, wait_s: float | None = None) -> None:
        """Give the connection up; `open` makes a new one after a while."""
        if wait_s is None:
            # Jitter, so that all who lost the same collector do not come back at once.
            wait_s = self._retry_s * random.uniform(0.7, 1.3)
            self._retry_s = min(self._retry_s * RETRY_GROWTH, LAST_RETRY_S)
        self._retry_at = now + wait_s
        self._close_sockets(0)

    def receive(self) -> list[bytes] | None:
        """The parts of the next message; None if there is none."""
        if self._socket is None:
            return None
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        except zmq.ZMQError:
            self._failed = True
            return None

    def put(self, parts: Sequence[bytes]) -> bool:
        """Hand a message over without waiting; False if it cannot be taken now."""
        if self._socket is None:
            return False
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK, copy=True)
        except zmq.ZMQError:
            return False
        return True

    def is_broken(self) -> bool:
        """Whether the present connection is gone, and all that came by it was received."""
        while self._monitor is not None and self._monitor.poll(0):
            self._ended = True
            event, _ = monitored(self._monitor.recv_multipart())
            self.problem = failure(event, self.address, self._keys, self._party) or self.problem
        has_more = self._ended and self._socket is not None and bool(self._socket.poll(0))
        return self._failed or (self._ended and not has_more)

    def wait(self, seconds: float) -> None:
        """Until something arrives or breaks, at most so long."""
        poller = zmq.Poller()
        for socket in self.sockets:
            poller.register(socket, zmq.POLLIN)
        if poller.sockets:
            poller.poll(max(1, int(seconds * 1000)))
        else:
            time.sleep(max(seconds, 0.001))

    def close(self, linger_ms: int) -> None:
        """Close for good; the last bytes have so long to reach the kernel."""
        self._close_sockets(linger_ms)
        if self._context is not None:
            self._context.term()
            self._context = None

    def _close_sockets(self, linger_ms: int) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(linger=linger_ms)
        if self._monitor is not None:
            self._monitor.close(linger=0)
        self._socket = self._monitor = None
