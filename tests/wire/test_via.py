"""Streams that share a connection are told apart, whoever names himself what."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.sketch import ProtocolError
from rankscope.wire import Via, decode, encode
from rankscope.wire.messages import MAX_MEMBERS
from rankscope.wire.via import addressed, arrived, unwrap, wrap

members = st.integers(0, MAX_MEMBERS - 1)
packb: Any = msgpack.packb
parts = st.lists(st.binary(), min_size=1, max_size=3)


@given(members, parts)
def test_what_is_put_on_comes_off(member: int, message: list[bytes]) -> None:
    assert unwrap(wrap(member, message)) == (member, message)


@given(st.binary(max_size=40), st.binary())
def test_any_bytes_can_be_looked_at(first: bytes, second: bytes) -> None:
    member, rest = unwrap([first, second])

    assert (member is None) == (list(rest) == [first, second])


def test_it_is_the_message_of_the_vocabulary() -> None:
    assert wrap(7, [b"x"]) == [encode(Via(member=7)), b"x"]
    assert msgpack.unpackb(wrap(7, [])[0]) == ["via", 7]


def test_fields_of_later_versions_are_ignored() -> None:
    assert unwrap([packb(["via", 7, "more"]), b"x"]) == (7, [b"x"])


@pytest.mark.parametrize("bad", [["via"], ["via", -1], ["via", MAX_MEMBERS], ["via", "x"]])
def test_a_bad_number_stays_and_ends_as_malformed(bad: list[object]) -> None:
    first = packb(bad)
    assert unwrap([first, b"x"]) == (None, [first, b"x"])
    with pytest.raises(ProtocolError):
        decode(first, "agent")


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.none() | members), unique=True))
def test_no_two_streams_have_the_same_name(streams: list[tuple[bytes, int | None]]) -> None:
    sent = [[b"m"] if member is None else wrap(member, [b"m"]) for _, member in streams]
    peers = [arrived(route, one)[0] for (route, _), one in zip(streams, sent, strict=True)]

    assert len(set(peers)) == len(streams)
    answers = [addressed(peer, b"a") for peer in peers]
    assert [answer[0] for answer in answers] == [route for route, _ in streams]
    assert [unwrap(answer[1:])[0] for answer in answers] == [member for _, member in streams]
