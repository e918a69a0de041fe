"""The socket of a collector or relay: who is let in, and how much they may make it hold.

Its one rule: whatever peers do, it takes bounded memory, and a call returns at once. This module
loads pyzmq, which the room's face must not: import it by its own name.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from errno import EADDRINUSE
from pathlib import Path
from typing import NamedTuple, Protocol

import zmq
from zmq.auth.thread import ThreadAuthenticator

from ..sketch.errors import AddressError, SettingError
from .address import Address
from .complaints import Complaints
from .handshake import monitored
from .keys import AllowList, CollectorKeys
from .memory import resident_bytes, trim
from .via import addressed, arrived

logger = logging.getLogger(__name__)

HEARTBEAT_S = 5
SILENCE_S = 20
HANDSHAKE_S = 10
"""A connection that has not shaken hands by then is closed."""
MOST_PARTS = 3
"""Of a message, with the one that says which stream it is of. One more is kept, so that it can be
told; what follows is thrown away."""
LOOK_S = 1.0
"""How often the list of agents and the memory are looked at."""
ROOM = 1.5
"""When closing all connections did not help, memory may grow by so much until the next time."""

_EVENTS = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


class Message(NamedTuple):
    """What a peer has sent."""

    peer: bytes
    """Its connection and its stream, as `wire.via` names them."""
    parts: Sequence[bytes]
    user: str
    """Public key of the peer, empty where there are no keys."""


class Bounds(Protocol):
    """How much peers may make it hold."""

    @property
    def max_message_bytes(self) -> int:
        """A peer that sends a larger message part is disconnected."""
        ...

    @property
    def max_connections(self) -> int:
        """Above this nobody is let in until some have gone."""
        ...

    @property
    def max_streams(self) -> int: ...
    @property
    def credit_frames(self) -> int:
        """Frames that a stream may have under way."""
        ...

    @property
    def resident_bytes(self) -> int:
        """When the process takes more of the machine's memory, all connections are closed."""
        ...


class Listener:
    """A ROUTER socket.

    Args:
        where: the address; port 0 takes a free one.
        keys: let in those on its list alone; None: anybody.
        party: what listens, in a word.

    Raises:
        AddressError: it cannot listen there.
    """

    def __init__(
        self,
        where: Address,
        settings: Bounds,
        keys: CollectorKeys | None = None,
        *,
        party: str = "collector",
    ) -> None:
        if where.transport == "ipc":
            _check_path(where)
        self._settings, self._keys, self._is_ipv6 = settings, keys, where.is_ipv6
        self._party = party
        self._complaints = Complaints(logger)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        self._socket = self._make_socket()
        self._next_look = 0.0
        self._most_bytes, self._has_reset = settings.resident_bytes, False
        host = "127.0.0.1" if where.host == "localhost" else where.host
        self.address = str(Address(transport=where.transport, host=host, port=where.port))
        """Where it listens, with the port that was taken."""
        try:
            if keys is not None:
                self._authenticator = ThreadAuthenticator(self._context)
                self._authenticator.configure_curve_callback("*", _Doorkeeper(keys.agents))
                self._authenticator.start()
            self._bind()
        except zmq.ZMQError as error:
            self.close(linger_ms=0)
            raise AddressError(_why(where, error)) from None
        except BaseException:
            self.close(linger_ms=0)
            raise

    @property
    def connections(self) -> int:
        """How many are open, as of the last `attend`."""
        return self._connections

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to wait for; not the same for ever."""
        return [self._socket]

    def wait(self, wait_ms: int) -> bool:
        """Whether a message is there, or comes within this time."""
        return bool(self._socket.poll(wait_ms))

    def receive(self) -> Message | None:
        """The next message of a peer that is let in; None if there is none."""
        while True:
            try:
                route = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return None
            parts, user = list[bytes](), ""
            while self._socket.getsockopt(zmq.RCVMORE):
                if self._keys is None or user:
                    part = self._socket.recv(zmq.NOBLOCK)
                else:
                    frame = self._socket.recv(zmq.NOBLOCK, copy=False)
                    user, part = str(frame.get("User-Id")), frame.bytes
                if len(parts) <= MOST_PARTS:
                    parts.append(part)
            if self._keys is None or user in self._keys.agents:
                return Message(*arrived(route, parts), user)
            # Connections that were let in before the key was taken off the list.

    def send(self, peer: bytes, message: bytes) -> None:
        """Hand a message over; it is dropped if the peer is gone, or reads nothing."""
        try:
            self._socket.send_multipart(addressed(peer, message), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            logger.debug("An answer was not sent: %s", error)

    def attend(self, now: float) -> None:
        """Tell who was not let in, and keep within bounds; to be called often."""
        self._hear_monitor(now)
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            self._refresh(now)
            if not self._is_bound:
                with suppress(zmq.ZMQError):  # the port is not free yet: it is tried again
                    self._bind()
            self._bound_memory(now)

    def close(self, *, linger_ms: int) -> None:
        """Stop listening; what peers do not take within this time is not waited for."""
        self._socket.disable_monitor()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=linger_ms)

    # Inside --------------------------------------------------------------------------------------

    def _make_socket(self) -> zmq.Socket[bytes]:
        settings = self._settings
        router = self._context.socket(zmq.ROUTER)
        router.linger = 0
        router.ipv6 = self._is_ipv6
        router.maxmsgsize = settings.max_message_bytes
        # Twice the credit: what follows the rules is never held up by the high-water mark.
        router.rcvhwm = 2 * settings.credit_frames
        # A relay's connection takes an answer for each of its streams at once.
        router.sndhwm = settings.max_streams
        router.heartbeat_ivl = HEARTBEAT_S * 1000
        router.heartbeat_timeout = SILENCE_S * 1000
        router.handshake_ivl = HANDSHAKE_S * 1000
        if self._keys is not None:
            self._keys.protect(router)
        endpoint = f"inproc://rankscope-{id(router)}"
        router.monitor(endpoint, _EVENTS)
        self._monitor = self._context.socket(zmq.PAIR)
        # At a high-water mark the transport's thread would wait for us, and all peers for it.
        self._monitor.rcvhwm = 0
        self._monitor.connect(endpoint)
        self._connections, self._is_bound = 0, False
        self._peers: dict[int, str] = {}
        """By handle, whose a connection is."""
        self._has_failed = False
        return router

    def _bind(self) -> None:
        self._socket.bind(self.address)
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._is_bound = True

    def _hear_monitor(self, now: float) -> None:
        """Count connections, and tell of those that failed."""
        while True:
            try:
                event, handle = monitored(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            if event == zmq.EVENT_ACCEPTED:
                self._connections += 1
                self._peers[handle] = _peer_of(handle)
                if self._connections > self._settings.max_connections:
                    self._send_away(handle, now)
            elif event == zmq.EVENT_DISCONNECTED:
                self._connections -= 1
                peer = self._peers.pop(handle, "")
                if self._has_failed:  # its handshake: the event before did not say whose
                    self._tell_failed(peer, now)
                self._has_failed = False
            else:
                # A probe that goes without a word looks the same as an agent that lacks keys.
                self._has_failed = True

    def _tell_failed(self, peer: str, now: float) -> None:
        if self._keys is not None:
            why = f"its peer has no keys, or not those of this {self._party}"
        else:
            why = f"its peer is no agent, or uses keys, of which this {self._party} has none"
        whose = f" from {peer}" if peer else ""
        self._complaints.say("handshake", f"A connection{whose} was refused: {why}.", now)

    def _refresh(self, now: float) -> None:
        try:
            if self._keys is not None:
                self._keys.agents.refresh()
        except SettingError as error:
            text = f"The list of agents stays as it was: {error}"
            self._complaints.say("keys", text, now)

    def _send_away(self, handle: int, now: float) -> None:
        """End a connection that is one too many; the transport sees it as the peer's doing.

        If the peer has gone meanwhile, and the handle is another connection's by now, that one's
        agent connects again.
        """
        text = f"There are {self._connections - 1} connections: until some go nobody is let in."
        self._complaints.say("connections", text, now)
        with suppress(OSError), socket.socket(fileno=os.dup(handle)) as connection:
            connection.shutdown(socket.SHUT_RDWR)

    def _bound_memory(self, now: float) -> None:
        """Close all connections when what they have sent, and nobody has read, is too much."""
        resident = resident_bytes()
        if self._has_reset:
            self._has_reset = False
            self._most_bytes = max(self._settings.resident_bytes, int(ROOM * resident))
        elif resident > self._most_bytes:
            text = f"The process takes {resident >> 20} MiB: all connections are closed."
            self._complaints.say("memory", text, now)
            self._socket.disable_monitor()
            self._socket.close(linger=0)
            self._monitor.close(linger=0)
            self._socket = self._make_socket()
            self._has_reset = True
            trim()


class _Doorkeeper:
    """Asked by pyzmq's authenticator, on its thread, whether a key is let in."""

    def __init__(self, agents: AllowList) -> None:
        self._agents, self._complaints = agents, Complaints(logger)

    def callback(self, domain: str, key: bytes) -> bool:
        name = key.decode()
        if name in self._agents:
            return True
        text = f"An agent with the public key {name} was refused: it is not on the list"
        where = f" {self._agents.folder}" if self._agents.folder else ""
        self._complaints.say("agent", f"{text}{where}.", time.monotonic())
        return False


def _peer_of(handle: int) -> str:
    """Host and port of the other end of a connection; empty if it has gone, or has none."""
    try:
        with socket.socket(fileno=os.dup(handle)) as connection:
            name = connection.getpeername()
    except OSError:
        return ""
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ""


def _check_path(where: Address) -> None:
    """See what lies at the path of a Unix socket, for ZeroMQ removes it, whatever it is.

    Raises:
        AddressError: it is no socket, or somebody listens there.
    """
    path = Path(where.host)
    if where.host.startswith("@") or not path.exists():
        return
    if not path.is_socket():
        raise AddressError(f"{path} is there, and is no socket: take another path.")
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(where.host)
        raise AddressError(f"{where} is in use: stop what listens there, or take another path.")


def _why(where: Address, error: zmq.ZMQError) -> str:
    if error.errno == EADDRINUSE:
        return f"{where} is in use: stop what listens there, or take another port (`*`: any)."
    return f"This machine cannot listen on {where}: {error.strerror}."
