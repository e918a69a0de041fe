"""The rim of the relay: a ROUTER below, a connection upstream, the clocks, and the loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from errno import EADDRINUSE

import zmq

from ..sketch.errors import AddressError, ProtocolError
from ..wire.address import Address, parse_address
from ..wire.complaints import Complaints
from ..wire.connection import Connection
from ..wire.via import addressed, arrived
from .session import Relay
from .settings import RelaySettings
from .spool import Spool
from .statistics import RelayStatistics

logger = logging.getLogger(__name__)

BURST = 256
"""Messages taken in between two looks at the clock."""
WAIT_MS = 50
BUSY_MS = 2
"""How long to wait when the network upstream takes no more for now."""
STAY_S = 0.5
"""When all is done, an agent that has lost its connection may still come back for its answer."""
SILENCE_S = 10.0
"""A connection upstream on which nothing ever came for so long is given up."""
HEARTBEAT_S = 5
HEARTBEAT_TIMEOUT_S = 20
FLUSH_MS = 200


class Service:
    """A relay on its sockets.

    Args:
        address: where to listen; port `*` takes a free one.
        to: the collector, or the next relay.
        insecure: allow an address that other machines can reach, without keys.

    Raises:
        AddressError: it cannot listen there, or an address cannot be understood.
        SettingError: the spool cannot be used, or `to` has no host or port.
    """

    def __init__(
        self,
        address: str,
        to: str,
        *,
        settings: RelaySettings | None = None,
        insecure: bool = False,
    ) -> None:
        self.settings = settings or RelaySettings()
        where = parse_address(address)
        if not where.is_local and not insecure:
            raise AddressError(
                f"Anybody who reaches {address} could write to the store: listen on 127.0.0.1, "
                "or say `--insecure` if the network is trusted."
            )
        self._complaints = Complaints(logger)
        self._upstream = Connection(to, send_messages=1000)
        self._heard = 0.0
        self._last: RelayStatistics | None = None
        """What there was to tell when it was closed."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._socket = self._bind(where)
            self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
            """Where it listens, with the port that was taken."""
            self._spool = Spool(self.settings)
            # Numbers in the spool are never used again, not even after a clock that went back.
            first = max([time.time_ns(), *(kept.member + 1 for kept in self._spool.members())])
            self._relay = Relay(self.settings, self._spool, first, time.monotonic())
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def run(self, stop: Callable[[], bool], *, until_done: bool = False) -> None:
        """Serve until `stop` says so, or, if wanted, until all work is done."""
        leave_at = 0.0
        takes = True
        while not stop():
            self._wait(WAIT_MS if takes else BUSY_MS)
            self._take_in()
            now = time.monotonic()
            takes = self._turn(now)
            if not (until_done and self._relay.is_done(now)):
                leave_at = now + STAY_S
            elif now >= leave_at:
                break

    def statistics(self) -> RelayStatistics:
        """What was done so far."""
        return self._last or self._relay.statistics()

    def close(self) -> None:
        """Take nothing in any more, forward what there is for a while, and stop."""
        deadline = time.monotonic() + self.settings.drain_s
        now = time.monotonic()
        self._turn(now)
        while not self._relay.is_drained() and now < deadline:
            self._upstream.wait(BUSY_MS / 1000)
            now = time.monotonic()
            self._turn(now)
        self._last = self._relay.statistics()
        if self._last.held_frames:
            where = "stay in the spool" if self.settings.spool else "stay with their agents"
            text = "%d frames are not stored upstream yet: they %s."
            logger.warning(text, self._last.held_frames, where)
        self._upstream.close(FLUSH_MS)
        self._context.destroy(linger=FLUSH_MS)
        self._spool.close()

    # Inside --------------------------------------------------------------------------------------

    def _turn(self, now: float) -> bool:
        """All but what comes from below; whether the network upstream takes more."""
        self._attend_upstream(now)
        takes = self._relay.tick(now, self._upstream.put)
        self._send_out()
        return takes

    def _wait(self, wait_ms: int) -> None:
        poller = zmq.Poller()
        for socket in (self._socket, *self._upstream.sockets):
            poller.register(socket, zmq.POLLIN)
        poller.poll(wait_ms)

    def _take_in(self) -> None:
        now = time.monotonic()
        for _ in range(BURST):
            try:
                route, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._relay.receive(*arrived(route, parts), now)

    def _send_out(self) -> None:
        outgoing, self._relay.outgoing = self._relay.outgoing, []
        for peer, message in outgoing:
            try:
                self._socket.send_multipart(addressed(peer, message), zmq.NOBLOCK)
            except zmq.ZMQError as error:
                logger.debug("An answer was not sent: %s", error)

    def _attend_upstream(self, now: float) -> None:
        """Read what upstream says; make a new connection if need be."""
        upstream = self._upstream
        try:
            if upstream.open(now):
                self._heard = 0.0
                self._relay.connected(now)
            for _ in range(BURST):
                parts = upstream.receive()
                if parts is None:
                    break
                self._heard = now
                upstream.welcomed()
                self._relay.answer(parts, now)
        except (AddressError, ProtocolError) as error:
            self._complaints.say("upstream", str(error), now)
            self._drop(now)
            return
        mute = not self._heard and now - upstream.opened > SILENCE_S and self._relay.has_said_hello
        full = self._relay.needs_new_connection()
        if upstream.is_open and (upstream.is_broken() or mute or full):
            text = f"There is no connection to {upstream.address}: what comes is kept."
            self._complaints.say("upstream", text, now)
            self._drop(now)

    def _drop(self, now: float) -> None:
        self._upstream.drop(now)
        self._relay.disconnected()

    def _bind(self, where: Address) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.ipv6 = where.is_ipv6
        socket.maxmsgsize = self.settings.max_message_bytes
        # Twice the credit: what follows the rules is never held up by the high-water mark.
        socket.rcvhwm = 2 * self.settings.credit_frames
        # A relay's connection takes an answer for each of its streams at once.
        socket.sndhwm = self.settings.max_streams
        socket.heartbeat_ivl = HEARTBEAT_S * 1000
        socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_S * 1000
        host = "127.0.0.1" if where.host == "localhost" else where.host
        address = str(Address(transport=where.transport, host=host, port=where.port))
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            if error.errno == EADDRINUSE:
                text = "is in use: stop what listens there, or take another port (`*`: any)."
                raise AddressError(f"{where} {text}") from None
            text = f"This machine cannot listen on {where}: {error.strerror}."
            raise AddressError(text) from None
        return socket
