"""The collector of a job that names none: rank 0 starts it, and tells the others where it is.

On one host it listens on the loopback address. For several it listens where the other hosts reach
rank 0's, with keys made for the occasion, which go through the job's own key-value store: whoever
can read that can join the job, too.
"""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import msgspec

from ..sketch.errors import SettingError
from ..wire.address import Address, parse_address
from ..wire.keys import AgentKeys, Pair, keys_for_a_job
from .embedded import EmbeddedCollector
from .sharing import Share

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
ELSEWHERE = "192.0.2.1"
"""An address of no machine (RFC 5737), to ask by which of ours others are reached."""


class _Contact(msgspec.Struct, frozen=True):
    """What rank 0 tells of the collector."""

    address: str
    host: str
    """Name of the host that it is on."""
    own: tuple[str, str] = ("", "")
    """The agents' public and secret key; empty on one host."""
    collector: str = ""
    """Its public key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the processes of a job meet."""

    host: str
    """The name of this one."""
    is_on_one_host: bool
    """Whether all of them are on it."""
    address: str
    """Name or number of the host where they meet; empty: nobody knows."""


def collector_of(
    meeting: Meeting, share: Share, run: str, directory: Path, own: EmbeddedCollector
) -> tuple[str, AgentKeys | None]:
    """The address of the job's collector, and the keys for it if it has some.

    Args:
        own: starts it on rank 0.

    Raises:
        RankscopeError: it did not start, or cannot be reached from this host.
    """
    made = share("collector", lambda: _start(own, meeting, run, directory.absolute()))
    contact = msgspec.json.decode(made, type=_Contact)
    if contact.host != meeting.host and parse_address(contact.address).is_local:
        raise SettingError(
            f"Rank 0 has started a collector on {contact.host} that {meeting.host} cannot reach: "
            f"set RANKSCOPE_HOST on rank 0 to an address that the other hosts reach, or start "
            "`rankscope collect` and pass its address as observe(…, to=…)."
        )
    if not contact.collector:
        return contact.address, None
    pair = Pair(public=contact.own[0], secret=contact.own[1])
    return contact.address, AgentKeys(own=pair, collector=contact.collector)


def _start(own: EmbeddedCollector, meeting: Meeting, run: str, directory: Path) -> str:
    contact = _Contact(address="", host=meeting.host)
    host, line = LOOPBACK, ""
    if not meeting.is_on_one_host:
        host = _own_address(meeting.address)
        line, keys = keys_for_a_job()
        pair = (keys.own.public, keys.own.secret)
        contact = msgspec.structs.replace(contact, own=pair, collector=keys.collector)
    bind = Address(transport="tcp", host=host, port=0)
    address = own.start(run, directory, bind=str(bind), keys=line)
    logger.info("A collector has started at %s; the run lies in %s.", address, directory / run)
    return msgspec.json.encode(msgspec.structs.replace(contact, address=address)).decode()


def is_loopback(name: str) -> bool:
    """Whether a host is reached at an address that no other host reaches."""
    return bool(name) and ip_address(_address_towards(name)).is_loopback


def _own_address(meeting: str) -> str:
    """What RANKSCOPE_HOST says, else the address of this host in the network of the meeting."""
    given = os.environ.get("RANKSCOPE_HOST", "")
    if given:
        return _resolved(given)
    addresses = [_address_towards(meeting or ELSEWHERE)]
    addresses.append(_address_towards(ELSEWHERE))
    usable = [address for address in addresses if not ip_address(address).is_loopback]
    return usable[0] if usable else LOOPBACK


def _resolved(name: str) -> str:
    try:
        return str(socket.getaddrinfo(name, None)[0][4][0])
    except OSError:
        raise SettingError(
            f"RANKSCOPE_HOST must be a name or number of this host, got {name!r}."
        ) from None


def _address_towards(name: str) -> str:
    """The address of this host that `name` would see; nothing is sent."""
    try:
        family, kind, *_, place = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return LOOPBACK
