"""The rim of the collector: one ROUTER socket, the clocks, and the loop between them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from errno import EADDRINUSE
from pathlib import Path

import zmq

from ..sketch.errors import AddressError, StoreError
from ..store.naming import is_vacant
from ..store.place import ObjectUrl, Place, place_of
from ..store.writer import RunWriter
from ..wire.address import Address, parse_address
from ..wire.via import addressed, arrived
from .health import Health
from .memory import trim
from .session import Collector, CollectorStatistics
from .settings import CollectorSettings

logger = logging.getLogger(__name__)

BURST = 256
"""Messages taken in between two looks at the clock."""
TRIM_S = 10.0
"""How often free memory goes back to the system."""
LOOK_S = 0.5
"""How often it puts down how it is."""
STAY_S = 0.5
"""When all is done, an agent that has lost its connection may still come back for its answer."""
DRAIN_S = 2.0
"""When it is told to end, open records wait so long for their last ranks."""
HEARTBEAT_S = 5
SILENCE_S = 20


class Service:
    """A collector on a socket.

    Args:
        address: where to listen; port `*` takes a free one.
        store: folder of the runs, made if it is not there, or a URL into an object store.
        insecure: allow an address that other machines can reach, without keys.

    Raises:
        AddressError: it cannot listen there.
        StoreError: the folder cannot be written, or a run named in the settings cannot be opened.
    """

    def __init__(
        self,
        address: str,
        store: str | Place,
        *,
        settings: CollectorSettings | None = None,
        insecure: bool = False,
    ) -> None:
        self.settings = settings or CollectorSettings()
        where = parse_address(address)
        if not where.is_local and not insecure:
            raise AddressError(
                f"Anybody who reaches {address} could write to the store: listen on 127.0.0.1, "
                "or say `--insecure` if the network is trusted."
            )
        folder = place_of(store)
        _prepare(folder)
        self._started = time.monotonic()
        self._collector = Collector(
            lambda name: RunWriter.open(folder / name, run=name),
            self.settings,
            time.time_ns,
            time.monotonic(),
        )
        self._context = zmq.Context()
        try:
            self._socket = self._bind(where)
            self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
            """Where it listens, with the port that was taken."""
            for name in sorted(self.settings.runs):
                self._collector.open(name)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.health = self._look(self._started)
        """How it was when it looked last; for other threads, too."""

    def run(self, stop: Callable[[], bool], *, until_done: bool = False) -> None:
        """Serve until `stop` says so, or, if wanted, until all work is done; then store all."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        wait_ms = max(1, int(self.settings.commit_s * 1000 / 10))
        next_trim = time.monotonic() + TRIM_S
        leave_at = 0.0
        while not stop():
            if poller.poll(wait_ms):
                self._take_in()
            now = time.monotonic()
            self._collector.tick(now)
            self._send_out()
            if now - self.health.at >= LOOK_S:
                self.health = self._look(now)
            if now >= next_trim:
                next_trim = now + TRIM_S
                trim()
            if not (until_done and self._collector.is_done(now)):
                leave_at = now + STAY_S
            elif now >= leave_at:
                break

    def statistics(self) -> CollectorStatistics:
        """What was done so far."""
        return self._collector.statistics()

    def close(self) -> None:
        """Let open records become complete, commit all, finish every run and stop listening."""
        self._collector.seal()
        until = time.monotonic() + DRAIN_S
        while self._collector.is_awaiting and time.monotonic() < until:
            if self._socket.poll(10):
                self._take_in()
            self._collector.tick(time.monotonic())
            self._send_out()
        self._collector.close(time.monotonic())
        self._send_out()
        # The last acknowledgements are small; a peer that does not take them is not waited for.
        self._context.destroy(linger=200)

    def _look(self, now: float) -> Health:
        return Health(
            at=now,
            address=self.address,
            started=self._started,
            failing=self._collector.failing,
            is_full=self._collector.is_full,
            counts=self._collector.statistics(),
        )

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
        socket.heartbeat_timeout = SILENCE_S * 1000
        host = "127.0.0.1" if where.host == "localhost" else where.host
        address = str(Address(transport=where.transport, host=host, port=where.port))
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise AddressError(_why(where, error)) from None
        return socket

    def _take_in(self) -> None:
        now = time.monotonic()
        for _ in range(BURST):
            try:
                route, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._collector.receive(*arrived(route, parts), now)

    def _send_out(self) -> None:
        outgoing, self._collector.outgoing = self._collector.outgoing, []
        for peer, message in outgoing:
            try:
                self._socket.send_multipart(addressed(peer, message), zmq.NOBLOCK)
            except zmq.ZMQError as error:
                logger.debug("An answer was not sent: %s", error)


def _prepare(store: Place) -> None:
    """Find out at the start, not with the first frame, whether the runs can be stored there."""
    if isinstance(store, ObjectUrl):
        is_vacant(store)  # it answers, and knows us
    else:
        _make_folder(store)


def _make_folder(store: Path) -> None:
    probe = store / f".rankscope-probe-{time.time_ns()}"
    try:
        store.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StoreError(f"The folder {store} cannot be written: {error.strerror}.") from None


def _why(where: Address, error: zmq.ZMQError) -> str:
    if error.errno == EADDRINUSE:
        return f"{where} is in use: stop what listens there, or take another port (`*`: any)."
    return f"This machine cannot listen on {where}: {error.strerror}."
