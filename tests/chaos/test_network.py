"""A network that stalls, breaks and lets new connections overtake old ones; and a wrong clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from .ledger import check
from .processes import SOAK, Processes, scaled, sleep_between
from .proxy import Proxy

RANKS = 4


@pytest.fixture
def proxied(processes: Processes) -> Iterator[Proxy]:
    """A collector behind a proxy."""
    processes.collector("--until-done")
    proxy = Proxy(processes.address)
    yield proxy
    proxy.close()


def stall(proxy: Proxy) -> None:
    """For a moment; in a soak now and then for longer than heartbeats allow."""
    proxy.stall()
    time.sleep(25.0 if SOAK and proxy.accepted % 5 == 0 else 1.0)
    proxy.resume()


def overtake(proxy: Proxy) -> None:
    """New connections are there before the bytes of the old ones are."""
    held = proxy.hold_back()
    time.sleep(1.0)
    proxy.deliver(held)


def reset(proxy: Proxy) -> None:
    """All at once."""
    proxy.reset()


@pytest.mark.parametrize("what", [stall, reset, overtake])
def test_whatever_the_network_does_each_frame_is_stored_once(
    processes: Processes, proxied: Proxy, what: Callable[[Proxy], None]
) -> None:
    times = scaled(4, 30)
    reader = processes.reader()
    senders = processes.senders(RANKS, steps=60 * times, pause_s=0.03, address=proxied.address)
    for _ in range(times):
        sleep_between(processes, 0.3, 1.5)
        what(proxied)
    processes.await_all(senders, 120)
    processes.stop_collector()

    assert reader.ends_well() > 0
    ledgers = processes.ledgers(RANKS)
    run = check(processes.store / "demo", ledgers)
    assert [own.dropped for own in ledgers] == [0] * RANKS
    assert run.records().complete.all()
    assert proxied.accepted >= RANKS * (1 if what is stall else 2)
