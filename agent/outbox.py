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
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ..sketch.errors import AddressError, ProtocolError, SettingError
from ..wire.codec import (
    MAX_BLOB_BYTES,
    MAX_HEADER_BYTES,
    Packed,
    decode,
    encode,
    make_schema,
)
from ..wire.connection import Connection
from ..wire.gaps import joined
from ..wire.keys import AgentKeys
from ..wire.messages import (
    MAX_NAME,
    Ack,
    Alerts,
    Control,
    Gap,
    Goodbye,
    Hello,
    Message,
    NeedSchema,
    Reject,
    Series,
    Site,
    SiteExactCount,
    State,
    Welcome,
)
from ..wire.sender import Sender
from .window import Entry, Window

logger = logging.getLogger(__name__)

HELLO_S = 5.0
"""A hello that is not answered for so long is said again, on a new socket."""
SILENCE_S = 30.0
"""Frames that are under way for so long without a word are sent again, on a new socket."""
ALONE_S, LOOK_S = 10.0, 1.0
"""When no collector has answered for so long it is logged; a thread that was busy for longer than
the second has not listened."""
BEAT_S = 2.0
LARGEST_HEADER = MAX_HEADER_BYTES // 2
"""Without the gaps that it will tell."""
TOO_LARGE = "it was too large for the wire"
WINDOW_BYTES = 16 << 20
"""What is kept until it is durable, unless more is asked for."""
MAX_UNREAD = 16
"""Messages about alerts that wait for `take_alerts`; beyond that the oldest are forgotten."""
FLUSH_MS = 200
"""At most so long `close` lets the socket hand its last bytes to the kernel."""


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
    address: str
    """Where the collector should be."""
    answered: bool
    """Whether one has ever said welcome there."""
    rejected: str
    """Why frames are not taken, or not stored: the collector's words, or what its handshake failed
    at; empty if they are, or nobody listens."""


class Outbox:
    """The frames of one rank on their way to the collector at `address`.

    Args:
        address: `tcp://host:port` or `ipc://path`.
        hello: who this is; its stream must be new.
        keys: for a collector that asks for them.
        window_bytes: how much is kept until it is durable, at most.
        window_frames: and how many frames.
        warn: told why frames are not taken, or not stored; it is logged.

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
        window_bytes: int = WINDOW_BYTES,
        window_frames: int = 256,
        warn: Callable[[str], object] = logger.warning,
    ) -> None:
        if window_bytes < 1 or window_frames < 1:
            raise SettingError(
                "`window_bytes` and `window_frames` must be positive, "
                f"got {window_bytes} and {window_frames}."
            )
        self._connection, self._warn = Connection(address, keys=keys), warn
        self._hello = hello
        self._window = Window(window_bytes, window_frames)
        self._process = os.getpid()
        self._schemas: dict[bytes, bytes] = {}
        self._schema = b""
        self._sender = Sender(self._window, self._schemas.get)
        self._next_sequence = 0
        self._answered = False
        self._polled = self._alone_s = 0.0
        self._heard = 0.0
        self._next_beat = 0.0
        self._rejected = ""
        self.control: Control | None = None
        """What the collector said last of how to go on."""
        self._alerts: deque[Alerts] = deque(maxlen=MAX_UNREAD)
        self._stopped = False
        self._last_gaps: tuple[Gap, ...] = ()
        """What goodbye has to tell as lost."""
        self.set_sites(())

    def set_sites(
        self,
        sites: Sequence[Site],
        exact_counts: Sequence[SiteExactCount] = (),
        series: Sequence[Series] = (),
    ) -> None:
        """Frames from now on are over these sites, what is counted of them beside, and series."""
        schema = make_schema(sites, exact_counts, series)
        used = self._window.schemas()
        for name in self._schemas.keys() - used:
            del self._schemas[name]
        self._schemas[schema.hash] = encode(schema)
        self._schema = schema.hash

    def send(self, packed: Packed) -> None:
        """Number a frame, keep it until it is durable, and send it if that needs no waiting.

        Sites, exact counts and series are those of the latest `set_sites`, by the same indices.
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
        self._sender.flush(self._connection.put)

    def note_gaps(self, gaps: Sequence[Gap]) -> None:
        """Have steps told as lost that never became frames."""
        if not self._is_inert():
            self._window.note(gaps)

    def poll(self, now: float) -> None:
        """Read what the collector says, connect again if need be, send what may be sent."""
        if self._is_inert() or self._stopped:
            return
        if not self._answered:
            self._count_alone(now)
        if not self._connection.is_open:
            self._open(now)
            return
        if self._read(now) and (self._is_broken() or self._is_silent(now)):
            self._drop(now)
        self._sender.flush(self._connection.put)

    def beat(
        self,
        now: float,
        *,
        step: int,
        site: str,
        tensors: int,
        health: Callable[[], dict[str, float]],
    ) -> None:
        """Say that this rank is alive, and where; at most every two seconds."""
        if self._is_inert() or self._sender.welcome is None or now < self._next_beat:
            return
        self._next_beat = now + BEAT_S
        state = State(step=step, site=site[:MAX_NAME], health=health(), tensors=tensors)
        self._connection.put([encode(state)])

    def take_alerts(self) -> list[Alerts]:
        """What the collector found wrong since this was asked last."""
        taken = list(self._alerts)
        self._alerts.clear()
        return taken

    def take_leave(self, now: float) -> bool:
        """Send all, then say goodbye, as far as that can be done now; never blocks.

        Returns:
            Whether nothing is left to wait for: goodbye was answered, or nobody will answer.
        """
        if self._is_inert():
            return True
        self.poll(now)
        return self._stopped or self._sender.take_leave(self._connection.put, self._goodbye)

    def close(self, *, timeout_s: float) -> bool:
        """Say goodbye, and wait at most `timeout_s` for all frames to be durable.

        Returns:
            Whether every frame that was ever given to `send` is durable.
        """
        if self._is_inert():
            return False
        deadline = time.monotonic() + timeout_s
        done = self._wait_for_leave(deadline)
        self._stopped = True
        self._connection.close(FLUSH_MS if self._sender.welcome and timeout_s > 0 else 0)
        self._sender.disconnect()
        return done and self._window.dropped_frames == 0

    def statistics(self) -> OutboxStatistics:
        """What became of the frames so far."""
        return OutboxStatistics(
            sent=self._sender.sent,
            sent_bytes=self._sender.sent_bytes,
            resent=self._sender.resent,
            acknowledged=self._sender.acknowledged,
            dropped_frames=self._window.dropped_frames,
            dropped_bytes=self._window.dropped_bytes,
            pending_frames=len(self._window) + self._window.in_doubt,
            pending_bytes=self._window.size_bytes,
            connected=self._sender.welcome is not None,
            address=self._connection.address,
            answered=self._answered,
            rejected=self._rejected,
        )

    # Connection ----------------------------------------------------------------------------------

    def _open(self, now: float) -> None:
        try:
            if not self._connection.open(now):
                return
        except AddressError as error:
            self._tell(str(error))
            return
        self._heard = now
        hello = replace(self._hello, durable=self._sender.committed)
        self._connection.put([encode(hello)])

    def _drop(self, now: float, wait_s: float | None = None) -> None:
        """Give the connection up; `poll` makes a new one after a while."""
        self._sender.disconnect()
        self._connection.drop(now, wait_s)

    def _is_broken(self) -> bool:
        broken = self._connection.is_broken()
        self._tell(self._connection.problem)
        return broken

    def _tell(self, problem: str) -> None:
        """Keep why frames are not taken, or not stored, and log it once."""
        if problem and problem != self._rejected:
            self._rejected = problem
            self._warn(problem)

    def _count_alone(self, now: float) -> None:
        """Log once that nobody has answered for long, if it is not told why."""
        before, waited_s = self._alone_s, min(now - self._polled, LOOK_S) if self._polled else 0.0
        self._polled, self._alone_s = now, before + waited_s
        if before <= ALONE_S < self._alone_s and not self._rejected:
            self._warn(
                f"No collector has answered at {self._connection.address} for {ALONE_S:.0f} s. "
                "Training goes on, and what has no room to wait is lost. One that this job has "
                f"started itself logs to {self._hello.run}.log, beside its runs; else start one "
                "there, or look at `to` and RANKSCOPE_TO."
            )

    def _is_silent(self, now: float) -> bool:
        if self._sender.welcome is None:
            return now - self._connection.opened > HELLO_S
        return self._window.is_under_way and now - self._heard > SILENCE_S

    def _is_inert(self) -> bool:
        """Whether this is a forked child's copy: the socket is the parent's."""
        return self._process != os.getpid()

    # Messages ------------------------------------------------------------------------------------

    def _read(self, now: float) -> bool:
        """Take in what came; whether the connection is still there."""
        while (parts := self._connection.receive()) is not None:
            try:
                message = decode(parts[0], "collector")
            except ProtocolError:
                self._drop(now)
                return False
            self._heard = now
            self._take(message, now)
        return self._connection.is_open

    def _take(self, message: Message, now: float) -> None:
        match message:
            case Welcome():
                self._connection.welcomed()
                self._rejected, self._answered = "", True
                self._sender.take(message)
            case Ack():
                self._sender.take(message)
                if not message.failing:
                    self._rejected = ""
                self._tell(message.failing)
            case NeedSchema():
                self._sender.take(message)
            case Control():
                self.control = message
            case Alerts():
                self._alerts.append(message)
            case Reject():
                self._refused(message, now)
            case _:
                pass

    def _refused(self, reject: Reject, now: float) -> None:
        if reject.retry_s is None:
            self._tell(reject.reason)
            self._stopped = True
            self._drop(now)
            return
        if reject.code != "stream" or self._sender.welcome is None:
            self._tell(reject.reason)
        self._drop(now, max(reject.retry_s, 0.05) * random.uniform(1.0, 1.3))

    def _wait_for_leave(self, deadline: float) -> bool:
        """`take_leave` until it is done; whether all is durable."""
        while not self.take_leave(now := time.monotonic()):
            if now >= deadline:
                return False
            self._connection.wait(min(deadline - now, 0.05))
        return not self._stopped and not self._window.in_doubt

    def _goodbye(self) -> Goodbye:
        """It takes a number of its own if it has to tell of losses, so that these count once."""
        new = self._window.take_gaps()
        self._last_gaps = tuple(joined([*self._last_gaps, *new]))
        self._next_sequence += bool(new)
        return Goodbye(last=self._next_sequence - 1, gaps=list(self._last_gaps))
