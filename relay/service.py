"""The rim of the relay: its listener below, a connection upstream, the clocks, and the loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import zmq

from ..sketch.errors import AddressError, ProtocolError
from ..wire.address import parse_address
from ..wire.complaints import Complaints
from ..wire.connection import Connection
from ..wire.keys import RelayKeys
from ..wire.listener import Listener
from ..wire.memory import resident_bytes
from .health import Health
from .session import Relay
from .settings import RelaySettings
from .spool import Spool
from .statistics import RelayStatistics

logger = logging.getLogger(__name__)

BURST = 256
"""Messages taken in between two looks at the clock."""
WAIT_MS = 50
LOOK_S = 0.5
"""How often it puts down how it is."""
BUSY_MS = 2
"""How long to wait when the network upstream takes no more for now."""
STAY_S = 0.5
"""When all is done, an agent that has lost its connection may still come back for its answer."""
SILENCE_S = 10.0
"""A connection upstream on which nothing ever came for so long is given up."""
FLUSH_MS = 200


class Service:
    """A relay on its sockets.

    Args:
        address: where to listen; port `*` takes a free one.
        to: the collector, or the next relay.
        keys: of the relay: those on its list are let in and nobody else, and the collector is to be
            the one that they name. All that is sent is encrypted.
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
        keys: RelayKeys | None = None,
        insecure: bool = False,
    ) -> None:
        self.settings = settings or RelaySettings()
        where = parse_address(address)
        below = keys and keys.below
        if not where.is_local and below is None and not insecure:
            raise AddressError(
                f"Anybody who reaches {address} could write to the store: make keys with "
                "`rankscope keygen --relay` and pass `--keys`, listen on 127.0.0.1, or say "
                "`--insecure` if the network is trusted."
            )
        self._complaints = Complaints(logger)
        above = keys and keys.above
        self._upstream = Connection(to, keys=above, party="relay", send_messages=1000)
        self._heard = 0.0
        self._has_heard = False
        """Whether anything ever came from upstream."""
        self._is_told_lost = False
        """Whether the log ends with there being no connection upstream."""
        self._last: RelayStatistics | None = None
        """What there was to tell when it was closed."""
        self._listener = Listener(where, self.settings, below, party="relay")
        self.address: str = self._listener.address
        """Where it listens, with the port that was taken."""
        try:
            self._spool = Spool(self.settings)
            self._spool.leave_out()
            # Numbers in the spool are never used again, not even after a clock that went back.
            first = max([time.time_ns(), *(kept.member + 1 for kept in self._spool.members())])
            self._started = time.monotonic()
            self._relay = Relay(self.settings, self._spool, first, self._started)
        except BaseException:
            self._listener.close(linger_ms=0)
            raise
        self.health = self._look(self._started)
        """How it was when it looked last; for other threads, too."""

    def run(
        self, stop: Callable[[], bool], *, until_done: bool = False, nobody_comes: bool = False
    ) -> None:
        """Serve until `stop` says so, or, if wanted, until all work is done.

        Args:
            nobody_comes: whoever is not connected is gone.
        """
        leave_at = 0.0
        takes = True
        while not stop():
            self._wait(WAIT_MS if takes else BUSY_MS)
            self._take_in()
            now = time.monotonic()
            takes = self._turn(now)
            self._listener.attend(now)
            if now - self.health.at >= LOOK_S:
                self.health = self._look(now)
            connected = self._listener.connections > 0
            is_done = self._relay.is_done(now, connected=connected, nobody_comes=nobody_comes)
            if not (until_done and is_done):
                leave_at = now + STAY_S
            elif now >= leave_at:
                self._relay.forget_gone()
                break

    def statistics(self) -> RelayStatistics:
        """What was done so far."""
        return self._last or self._relay.statistics()

    def close(self, *, drain: bool = True) -> None:
        """Take nothing in any more, forward what there is for a while, and stop.

        Args:
            drain: whether there is time left to forward anything.
        """
        now = time.monotonic()
        deadline = now + (self.settings.drain_s if drain else 0.0)
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
        self._listener.close(linger_ms=FLUSH_MS)
        self._spool.close()

    # Inside --------------------------------------------------------------------------------------

    def _look(self, now: float) -> Health:
        return Health(
            at=now,
            address=self.address,
            started=self._started,
            is_connected=bool(self._heard),
            lost=self._relay.upstream.lost,
            counts=replace(self._relay.statistics()),
            resident_bytes=resident_bytes(),
        )

    def _turn(self, now: float) -> bool:
        """All but what comes from below; whether the network upstream takes more."""
        self._attend_upstream(now)
        takes = self._relay.tick(now, self._upstream.put)
        self._send_out()
        return takes

    def _wait(self, wait_ms: int) -> None:
        poller = zmq.Poller()
        for socket in (*self._listener.sockets, *self._upstream.sockets):
            poller.register(socket, zmq.POLLIN)
        poller.poll(wait_ms)

    def _take_in(self) -> None:
        now = time.monotonic()
        for _ in range(BURST):
            message = self._listener.receive()
            if message is None:
                return
            self._relay.receive(message.peer, message.parts, now, message.user)

    def _send_out(self) -> None:
        outgoing, self._relay.outgoing = self._relay.outgoing, []
        for peer, message in outgoing:
            self._listener.send(peer, message)

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
                self._relay.answer(parts, now)
                if self._is_told_lost:
                    self._is_told_lost = False
                    logger.info("There is a connection to %s.", upstream.address)
                self._heard, self._has_heard = now, True
                upstream.welcomed()
        except (AddressError, ProtocolError) as error:
            self._drop(now, str(error), kind="wrong")
            return
        mute = not self._heard and now - upstream.opened > SILENCE_S
        full = self._relay.upstream.needs_new_connection
        if upstream.is_open and (upstream.is_broken() or mute or full):
            so_far = "" if self._has_heard else " yet"
            lost = f"There is no connection to {upstream.address}{so_far}: what comes is kept."
            self._drop(now, upstream.problem or lost)

    def _drop(self, now: float, why: str, kind: str = "lost") -> None:
        self._is_told_lost |= self._complaints.say(kind, why, now)
        self._heard = 0.0
        self._upstream.drop(now)
        self._relay.upstream.disconnect(why)
