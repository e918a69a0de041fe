"""The rim of the collector: its listener, the clocks, and the loop between them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..sinks.fanout import Sinks
from ..sketch.errors import AddressError, StoreError
from ..store.naming import is_vacant
from ..store.place import ObjectUrl, Place, place_of
from ..store.writer import RunWriter
from ..wire.address import parse_address
from ..wire.keys import CollectorKeys
from ..wire.listener import Listener
from ..wire.memory import resident_bytes, trim
from .attempt import AGAIN
from .health import Health, pipeline_of
from .session import Collector
from .settings import CollectorSettings
from .statistics import CollectorStatistics

logger = logging.getLogger(__name__)

BURST = 256
"""Messages taken in between two looks at the clock."""
BUSY_MS = 5
"""While a commit is under way it is looked so often whether it is done."""
TRIM_S = 10.0
"""How often free memory goes back to the system."""
LOOK_S = 0.5
"""How often it puts down how it is."""
LOOKS = 3
"""So often in a row it must have found no agent connected before another may have its run."""
STAY_S = 0.5
"""When all is done, an agent that has lost its connection may still come back for its answer."""
DRAIN_S = 2.0
"""When it is told to end, open records wait so long for their last ranks."""
STOPPED = "had not said goodbye when the collector was stopped, and was not connected"
"""Why ranks are told as lost."""


class Service:
    """A collector on a socket.

    Args:
        address: where to listen; port `*` takes a free one.
        store: folder of the runs, made if it is not there, or a URL into an object store.
        keys: of the collector, with its list of agents: nobody else is let in, and all that is
            sent is encrypted.
        insecure: allow an address that other machines can reach, without keys.
        sinks: are told what is stored, and what was found wrong. Close them after this.

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
        keys: CollectorKeys | None = None,
        insecure: bool = False,
        sinks: Sinks | None = None,
    ) -> None:
        self._sinks = sinks or Sinks()
        self.settings = settings or CollectorSettings()
        where = parse_address(address)
        if not where.is_local and keys is None and not insecure:
            raise AddressError(
                f"Anybody who reaches {address} could write to the store: make keys with "
                "`rankscope keygen` and pass `--keys`, listen on 127.0.0.1, or say `--insecure` "
                "if the network is trusted."
            )
        folder = place_of(store)
        _prepare(folder)
        self._started = time.monotonic()
        most, wait_s = self.settings.max_stored_runs, self.settings.take_over_s
        open_run = partial(_open_run, folder, most)
        self._collector = Collector(
            open_run,
            self.settings,
            time.time_ns,
            time.monotonic(),
            self._sinks,
        )
        self._listener = Listener(where, self.settings, keys)
        self.address: str = self._listener.address
        """Where it listens, with the port that was taken."""
        try:
            for name in sorted(self.settings.runs):
                self._collector.open(name, partial(open_run, wait_s=wait_s))
        except BaseException:
            self._listener.close(linger_ms=0)
            raise
        self.health = self._look(self._started)
        """How it was when it looked last; for other threads, too."""

    def run(self, stop: Callable[[], bool], *, until_done: bool = False) -> None:
        """Serve until `stop` says so, or, if wanted, until all work is done; then store all.

        Work is done, too, when no agent is connected, and another collector waits for the run.
        """
        wait_ms = max(1, int(self.settings.commit_s * 1000 / 10))
        next_trim = time.monotonic() + TRIM_S
        leave_at, looks = 0.0, 0
        while not stop():
            if self._listener.wait(self._wait_ms(wait_ms)):
                self._take_in()
                # What comes next may take a while: agents go on sending meanwhile.
                self._collector.acknowledge()
                self._send_out()
            now = time.monotonic()
            self._collector.tick(now)
            self._send_out()
            self._listener.attend(now)
            if now - self.health.at >= LOOK_S:
                self.health = self._look(now)
                deserted = until_done and not self._listener.connections
                looks = looks + 1 if deserted and self._collector.is_awaited else 0
                if looks == LOOKS:
                    self._collector.lose_absent(AGAIN)
                    break
            if now >= next_trim:
                next_trim = now + TRIM_S
                trim()
            connected = self._listener.connections > 0
            if not (until_done and self._collector.is_done(now, connected=connected)):
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
            if self._listener.wait(10):
                self._take_in()
            self._collector.tick(time.monotonic())
            self._send_out()
        if not self._listener.connections:
            self._collector.lose_absent(STOPPED)
        self._collector.close(time.monotonic())
        self._send_out()
        # The last acknowledgements are small; a peer that does not take them is not waited for.
        self._listener.close(linger_ms=200)

    def _wait_ms(self, idle_ms: int) -> int:
        """How long to wait for messages before going on."""
        if self._collector.is_behind(time.monotonic()):
            return 0
        return BUSY_MS if self._collector.is_storing else idle_ms

    def _look(self, now: float) -> Health:
        health = Health(
            at=now,
            address=self.address,
            started=self._started,
            failing=self._collector.failing,
            is_full=self._collector.is_full,
            counts=self._collector.statistics(),
            resident_bytes=resident_bytes(),
            sinks=self._sinks.counts(),
        )
        self._sinks.pipeline = pipeline_of(health, now)
        return health

    def _take_in(self) -> None:
        now = time.monotonic()
        for _ in range(BURST):
            message = self._listener.receive()
            if message is None:
                return
            self._collector.receive(message.peer, message.parts, now, message.user)

    def _send_out(self) -> None:
        outgoing, self._collector.outgoing = self._collector.outgoing, []
        for peer, message in outgoing:
            self._listener.send(peer, message)


def _open_run(folder: Place, most: int, name: str, wait_s: float = 0.0) -> RunWriter:
    """The writer of a run in the folder.

    Raises:
        StoreError: it would be a new one of too many, or cannot be opened.
    """
    if isinstance(folder, Path):
        known = sum(1 for entry in folder.iterdir() if not entry.name.startswith("."))
        if not (folder / name).exists() and known >= most:
            text = f"{folder} holds {most} runs already: move some away, or take another."
            raise StoreError(text)
    return RunWriter.open(folder / name, run=name, wait_s=wait_s)


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
