"""Network addresses as ZeroMQ writes them, checked before a socket sees them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal

from ..sketch.errors import AddressError, SettingError

_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.*-]+):(\d{1,5}|\*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a collector listens."""

    transport: Literal["tcp", "ipc"]
    host: str
    """Name or number of the machine, without brackets; the path of an `ipc` address."""
    port: int
    """0: any free one; 0 for `ipc`."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.transport == "ipc" or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_ipv6(self) -> bool:
        """Whether the host is a number with colons."""
        return self.transport == "tcp" and ":" in self.host

    def __str__(self) -> str:
        if self.transport == "ipc":
            return f"ipc://{self.host}"
        host = f"[{self.host}]" if self.is_ipv6 else self.host
        return f"tcp://{host}:{self.port or '*'}"


def parse_address(text: str) -> Address:
    """The parts of an address such as `tcp://127.0.0.1:7600`, `tcp://[::1]:*` or `ipc:///run/r.sock`.

    Raises:
        AddressError: the text is no such address.
    """
    if text.startswith("ipc://") and len(text) > len("ipc://"):
        return Address(transport="ipc", host=text.removeprefix("ipc://"), port=0)
    match = _TCP.fullmatch(text)
    port = int(match[2].replace("*", "0")) if match else 0
    if not match or port > 65535:
        raise AddressError(
            f"An address looks like tcp://127.0.0.1:7600 or ipc:///path/to/socket, got {text!r}."
        )
    return Address(transport="tcp", host=match[1].strip("[]"), port=port)


def parse_destination(text: str) -> Address:
    """The parts of an address that can be connected to.

    Raises:
        AddressError: the text is no address.
        SettingError: it has no host or no port.
    """
    where = parse_address(text)
    if where.transport == "tcp" and (where.port == 0 or where.host == "*"):
        raise SettingError(f"A collector's address has a host and a port, got {text!r}.")
    return where
