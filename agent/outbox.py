"""The rim that owns the agent's socket: frames out, acknowledgements in, one thread.

Nothing here waits for the network except `close`, and nothing raises after the start: what goes
wrong is counted and told by `statistics`. One socket is one connection: when it breaks, a new one
is made, says hello, and goes on after the last durable frame.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import zmq
from msgspec.structs import replace
from zmq.utils.monitor import recv_monitor_message

from ..sketch.errors import ProtocolError, SettingError
from ..wire.address import parse_address
from ..wire.codec import (
    MAX_BLOB_BYTES,
    MAX_HEADER_BYTES,
    Packed,
    decode,
    encode,
    make_schema,
)
from ..wire.keys import AgentKeys
from ..wire.messages import (
    MAX_NAME,
    Ack,
    Control,
    Gap,
    Goodbye,
    Hello,
    Message,
    NeedSchema,
    Reject,
    Site,
    SiteQuantity,
    State,
    Welcome,
)
from .handshake import FAILED, failure
from .window import Entry, Window

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 0.2
LAST_RETRY_S = 5.0
RETRY_GROWTH = 1.5
HELLO_S = 5.0
"""A hello that is not answered for so long is said again, on a new socket."""
SILENCE_S = 30.0
"""Frames that are under way for so long without a word are sent again, on a new socket."""
BEAT_S = 2.0
HEARTBEAT_MS = 5000
HEARTBEAT_TIMEOUT_MS = 20_000
LARGEST_HEADER = MAX_HEADER_BYTES // 2
"""Without the gaps that it will tell."""
TOO_LARGE = "it was too large for the wire"
FLUSH_MS = 200
"""At most so long `close` lets the socket hand its last bytes to the kernel."""
BROKEN = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatistics:
    """What became of the frames."""

    sent: int
    """Frames handed to the network, each counted once."""
    sent_bytes: int
    """What they take, together."""
    resent: int
    """Times that a frame was handed over again."""
    acknowledged: int
    """Frames that are durable."""
    dropped_frames: int
    """Frames that left the window, or could not enter it, without being durable."""
    dropped_bytes: int
    pending_frames: int
    """Frames that are neither durable nor lost: those in the window, and those that left it after
    they were sent."""
    pending_bytes: int
    """What those in the window take."""
    connected: bool
    """Whether a collector has said welcome on the present connection."""
    rejected: str
    """Why there is no connection: the collector's words, or what its handshake failed at; empty if
    there is one, or nobody listens."""


class Outbox:
    """The frames of one rank on their way to the collector at `address`.

    Args:
        address: `tcp://host:port` or `ipc://path`.
        hello: who this is; its stream must be new.
        keys: for a collector that asks for them.
        window_bytes: how much is kept until it is durable, at most.
        window_frames: and how many frames.

    Raises:
        AddressError: the address cannot be understood.
        SettingError: the window has no room.
    """

    def __init__(
        self,
        address: str,
        hello: Hello,
        *,
        keys: AgentKeys | None = None,
        window_bytes: int = 16 << 20,
        window_frames: int = 256,
    ) -> None:
        where = parse_address(address)
        if where.transport == "tcp" and (where.port == 0 or where.host == "*"):
            raise SettingError(f"A collector's address has a host and a port, got {address!r}.")
        if window_bytes < 1 or window_frames < 1:
            raise SettingError(
                "`window_bytes` and `window_frames` must be positive, "
                f"got {window_bytes} and {window_frames}."
            )
        self._address = str(where)
        self._is_ipv6 = where.is_ipv6
        self._hello, self._keys = hello, keys
        self._window = Window(window_bytes, window_frames)
        self._process = os.getpid()
        self._schemas: dict[bytes, bytes] = {}
        self._schema = b""
        self._next_sequence = 0
        self._highest_sent = -1
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._opened = self._heard = self._retry_at = 0.0
        self._retry_s = FIRST_RETRY_S
        self._welcome: Welcome | None = None
        self._known: set[bytes] = set()
        self._next_beat = 0.0
        self._sent = self._sent_bytes = self._resent = self._acknowledged = 0
        self._rejected = ""
        self.control: Control | None = None
        """What the collector said last of how to go on."""
        self._stopped = False
        self._last_gaps: tuple[Gap, ...] = ()
        """What goodbye has to tell as lost."""
        self._answered = False
        """Whether an acknowledgement came since goodbye was said."""
        self.set_sites(())

    def set_sites(self, sites: Sequence[Site], quantities: Sequence[SiteQuantity] = ()) -> None:
        """Frames from now on are over these sites, and what is counted of them beside."""
        schema = make_schema(sites, quantities)
        used = self._window.schemas()
        self._schemas = {name: body for name, body in self._schemas.items() if name in used}
        self._schemas[schema.hash] = encode(schema)
        self._schema = schema.hash

    def send(self, packed: Packed) -> None:
        """Number a frame, keep it until it is durable, and send it if that needs no waiting.

        Its sites and quantities are among those of the latest `set_sites`, by the same indices.
        """
        if self._is_inert():
            return
        header, blob = packed
        header = replace(header, sequence=self._next_sequence, schema=self._schema)
        header_bytes = len(encode(header))
        size_bytes = header_bytes + len(blob)
        if header_bytes > LARGEST_HEADER or len(blob) > MAX_BLOB_BYTES:
            self._window.lose(header.step, size_bytes, TOO_LARGE)
            return
        self._next_sequence += 1
        entry = Entry(sequence=header.sequence, packed=(header, blob), size_bytes=size_bytes)
        self._window.push(entry)
        self._flush()

    def note_gaps(self, gaps: Sequence[Gap]) -> None:
        """Have steps told as lost that never became frames."""
        if not self._is_inert():
            self._window.note(gaps)

    def poll(self, now: float) -> None:
        """Read what the collector says, connect again if need be, send what may be sent."""
        if self._is_inert() or self._stopped:
            return
        if self._socket is None:
            if now >= self._retry_at:
                self._open(now)
            return
        if self._read(now) and (self._is_broken() or self._is_silent(now)):
            self._drop(now)
        self._flush()

    def beat(
        self, now: float, *, step: int, site: str, tensors: int, health: Mapping[str, float]
    ) -> None:
        """Say that this rank is alive, and where; at most every two seconds."""
        if self._is_inert() or self._welcome is None or now < self._next_beat:
            return
        self._next_beat = now + BEAT_S
        state = State(step=step, site=site[:MAX_NAME], health=dict(health), tensors=tensors)
        self._put([encode(state)])

    def close(self, *, timeout_s: float) -> bool:
        """Say goodbye, and wait at most `timeout_s` for all frames to be durable.

        Returns:
            Whether every frame that was ever given to `send` is durable.
        """
        if self._is_inert():
            return False
        deadline = time.monotonic() + timeout_s
        done = self._take_leave(deadline)
        self._shut(linger_ms=FLUSH_MS if self._welcome and timeout_s > 0 else 0)
        return done and self._window.dropped_frames == 0

    def statistics(self) -> OutboxStatistics:
        """What became of the frames so far."""
        return OutboxStatistics(
            sent=self._sent,
            sent_bytes=self._sent_bytes,
            resent=self._resent,
            acknowledged=self._acknowledged,
            dropped_frames=self._window.dropped_frames,
            dropped_bytes=self._window.dropped_bytes,
            pending_frames=len(self._window) + self._window.in_doubt,
            pending_bytes=self._window.size_bytes,
            connected=self._welcome is not None,
            rejected=self._rejected,
        )

    # Connection ----------------------------------------------------------------------------------

    def _open(self, now: float) -> None:
        try:
            self._context = self._context or zmq.Context()
            socket = self._socket = self._context.socket(zmq.DEALER)
            socket.linger = 0
            socket.ipv6 = self._is_ipv6
            socket.reconnect_ivl = -1
            socket.sndhwm = 256
            socket.heartbeat_ivl = HEARTBEAT_MS
            socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
            if self._keys is not None:
                self._keys.protect(socket)
            self._monitor = socket.get_monitor_socket(BROKEN | FAILED)
            socket.connect(self._address)
        except zmq.ZMQError as error:
            self._tell(f"The address {self._address} cannot be used: {error.strerror}.")
            self._drop(now)
            return
        self._opened = self._heard = now
        self._put([encode(self._hello)])

    def _drop(self, now: float, wait_s: float | None = None) -> None:
        """Give the connection up; `poll` makes a new one after a while."""
        if wait_s is None:
            # Jitter, so that ranks whose collector died do not come back all at once.
            wait_s = self._retry_s * random.uniform(0.7, 1.3)
            self._retry_s = min(self._retry_s * RETRY_GROWTH, LAST_RETRY_S)
        self._retry_at = now + wait_s
        self._close_sockets(0)

    def _close_sockets(self, linger_ms: int) -> None:
        self._welcome = None
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(linger=linger_ms)
        if self._monitor is not None:
            self._monitor.close(linger=0)
        self._socket = self._monitor = None

    def _shut(self, linger_ms: int) -> None:
        self._stopped = True
        self._close_sockets(linger_ms)
        if self._context is not None:
            self._context.term()
            self._context = None

    def _is_broken(self) -> bool:
        monitor, broken = self._monitor, False
        while monitor is not None and monitor.poll(0):
            broken = True
            event = recv_monitor_message(monitor)["event"]
            self._tell(failure(event, self._address, self._keys))
        return broken

    def _tell(self, problem: str) -> None:
        """Keep why there is no connection, and log it once."""
        if problem and problem != self._rejected:
            self._rejected = problem
            logger.warning("%s", problem)

    def _is_silent(self, now: float) -> bool:
        if self._welcome is None:
            return now - self._opened > HELLO_S
        return self._window.is_under_way and now - self._heard > SILENCE_S

    def _is_inert(self) -> bool:
        """Whether this is a forked child's copy: the socket is the parent's."""
        return self._process != os.getpid()

    # Messages ------------------------------------------------------------------------------------

    def _read(self, now: float) -> bool:
        """Take in what came; whether the connection is still there."""
        while self._socket is not None:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
                message = decode(parts[0], "collector")
            except zmq.Again:
                return True
            except (zmq.ZMQError, ProtocolError):
                self._drop(now)
                return False
            self._heard = now
            self._take(message, now)
        return False

    def _take(self, message: Message, now: float) -> None:
        match message:
            case Welcome():
                self._welcome, self._known = message, set()
                self._retry_s, self._rejected = FIRST_RETRY_S, ""
                received = max(message.received, message.committed)
                self._acknowledged += self._window.restart(received, message.committed)
            case Ack():
                count = self._window.acknowledge(message.received, message.committed)
                self._acknowledged += count
                self._answered = True
            case NeedSchema():
                self._known.discard(message.hash)
                self._window.rewind(message.hash)
            case Control():
                self.control = message
            case Reject():
                self._refused(message, now)
            case _:
                pass

    def _refused(self, reject: Reject, now: float) -> None:
        if reject.retry_s is None:
            self._tell(reject.reason)
            self._stopped = True
            self._close_sockets(0)
            return
        if reject.code != "stream" or self._welcome is None:
            self._tell(reject.reason)
        self._drop(now, max(reject.retry_s, 0.05) * random.uniform(1.0, 1.3))

    def _flush(self) -> None:
        """Send what the credit allows and the socket takes without waiting."""
        while (welcome := self._welcome) is not None:
            entry = self._window.next(welcome.credit_frames, welcome.credit_bytes)
            if entry is None or not self._send_entry(entry):
                return
            self._window.advance()
            if entry.sequence > self._highest_sent:
                self._highest_sent = entry.sequence
                self._sent += 1
                self._sent_bytes += entry.size_bytes
            else:
                self._resent += 1

    def _send_entry(self, entry: Entry) -> bool:
        if entry.schema not in self._known:
            schema = self._schemas.get(entry.schema)
            if schema is None or not self._put([schema]):
                return False
            self._known.add(entry.schema)
        header, blob = entry.packed
        return self._put((encode(replace(header, gaps=list(entry.gaps))), blob))

    def _put(self, parts: Sequence[bytes]) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK, copy=True)
        except zmq.ZMQError:
            return False
        return True

    def _take_leave(self, deadline: float) -> bool:
        """Send all, say goodbye, wait for the answer; whether all is durable."""
        told: Welcome | None = None
        while True:
            now = time.monotonic()
            self.poll(now)
            if self._stopped:
                return False
            if self._welcome is not None and not self._window.unsent:
                if told is not self._welcome and self._put([self._goodbye()]):
                    told = self._welcome
                    self._answered = False
                elif told is self._welcome and self._answered and self._is_empty():
                    return True
            if now >= deadline:
                return False
            self._wait(min(deadline - now, 0.05))

    def _is_empty(self) -> bool:
        return not len(self._window) and not self._window.in_doubt

    def _goodbye(self) -> bytes:
        """It takes a number of its own if it has to tell of losses, so that these count once."""
        new = self._window.take_gaps()
        self._last_gaps += new
        self._next_sequence += bool(new)
        return encode(Goodbye(last=self._next_sequence - 1, gaps=list(self._last_gaps)))

    def _wait(self, seconds: float) -> None:
        """Until something arrives or breaks, at most so long."""
        poller = zmq.Poller()
        for socket in (self._socket, self._monitor):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        if poller.sockets:
            poller.poll(max(1, int(seconds * 1000)))
        else:
            time.sleep(max(seconds, 0.001))
