"""Addresses are understood, or refused with an example."""

from __future__ import annotations

import pytest

from rankscope.sketch import AddressError
from rankscope.wire import parse_address


@pytest.mark.parametrize(
    ("text", "host", "port", "local"),
    [
        ("tcp://127.0.0.1:7600", "127.0.0.1", 7600, True),
        ("tcp://localhost:*", "localhost", 0, True),
        ("tcp://[::1]:7600", "::1", 7600, True),
        ("tcp://*:7600", "*", 7600, False),
        ("tcp://0.0.0.0:1", "0.0.0.0", 1, False),
        ("tcp://node-7.cluster:65535", "node-7.cluster", 65535, False),
        ("ipc:///run/rankscope", "/run/rankscope", 0, True),
    ],
)
def test_an_address_has_parts(text: str, host: str, port: int, local: bool) -> None:
    address = parse_address(text)

    assert (address.host, address.port, address.is_local) == (host, port, local)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7600",
        "localhost:7600",
        "tcp://a",
        "tcp://a:65536",
        "tcp://a b:1",
        "ipc://",
        "udp://a:1",
    ],
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(AddressError, match=r"looks like tcp://127\.0\.0\.1:7600"):
        parse_address(text)
