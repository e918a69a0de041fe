"""Every message survives the wire, and other programs can read it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.sketch import ProtocolError
from rankscope.wire import (
    COLUMNS,
    PROTOCOL,
    Ack,
    Alerts,
    AlertSummary,
    Control,
    Gap,
    Goodbye,
    Hello,
    MeshAxis,
    NeedSchema,
    Reject,
    Site,
    State,
    Welcome,
    decode,
    encode,
    make_schema,
)

HELLO = Hello(
    protocol_min=PROTOCOL,
    protocol_max=PROTOCOL,
    run="gpt",
    launch="l",
    stream="s",
    rank=1,
    world_size=4,
    mesh=[MeshAxis(name="dp", size=4, coordinate=1)],
    facts={"torch": "2.13"},
)
SITES = [
    Site(kind="weight", name="fc", shape=[4, 3], placement={"tp": "shard"}),
    Site(kind="optimizer_state", name="fc", slot="exp_avg", aliases=["head"]),
]
FROM_AGENT = [
    HELLO,
    make_schema(SITES),
    State(step=3, site="fc", health={"dropped": 0.0}),
    Goodbye(last=9, reason="done"),
]
FROM_COLLECTOR = [
    Welcome(protocol=PROTOCOL, attempt=0, committed=-1, credit_frames=4, credit_bytes=100),
    Reject(code="run", reason="no", retry_s=1.5),
    Ack(received=3, committed=2),
    Ack(received=3, committed=2, failing="no room", left=False),
    NeedSchema(hash=b"0" * 16),
    Control(stretch=4, from_step=120),
    Alerts(
        alerts=[
            AlertSummary(
                rule="nonfinite",
                severity="error",
                site="activation:a",
                ranks=[3],
                step=-1,
                value=1.0,
                threshold=0.0,
                text="It is not finite.",
            )
        ],
        more=2,
        send_ring=True,
        detail_from=7,
        detail_steps=8,
    ),
]

names = st.text(max_size=20)
steps = st.integers(-(2**63), 2**63 - 1)
sites = st.builds(
    Site,
    kind=st.sampled_from(["weight", "activation", "tap"]),
    name=names,
    slot=names,
    occurrence=st.integers(0, 2**63 - 1),
    shape=st.lists(st.integers(0, 2**40), max_size=4),
    placement=st.dictionaries(
        names, st.sampled_from(["shard", "replicate", "partial"]), max_size=9
    ),
    aliases=st.lists(names, max_size=3),
)


def packed(fields: list[Any]) -> bytes:
    """With the plain package, as another program would."""
    whole = msgpack.packb(fields)
    assert whole is not None
    return whole


@pytest.mark.parametrize("message", FROM_AGENT, ids=lambda message: type(message).__name__)
def test_what_an_agent_says_is_understood(message: Any) -> None:
    assert decode(encode(message), "agent") == message


@pytest.mark.parametrize("message", FROM_COLLECTOR, ids=lambda message: type(message).__name__)
def test_what_a_collector_says_is_understood(message: Any) -> None:
    assert decode(encode(message), "collector") == message


@pytest.mark.parametrize("message", FROM_AGENT + FROM_COLLECTOR, ids=lambda m: type(m).__name__)
def test_a_message_is_an_array_that_begins_with_its_tag_to_plain_msgpack(message: Any) -> None:
    fields = msgpack.unpackb(encode(message), strict_map_key=False)

    assert isinstance(fields, list)
    assert fields[0] == type(message).__struct_config__.tag
    assert len(fields) == 1 + len(msgspec.structs.fields(message))


@given(st.lists(sites, max_size=5))
def test_any_schema_survives(them: list[Site]) -> None:
    schema = make_schema(them)

    assert decode(encode(schema), "agent") == schema
    assert tuple(schema.columns) == COLUMNS


numbers = st.dictionaries(names, st.floats(allow_nan=False))


@given(st.builds(State, step=steps, site=names, health=numbers))
def test_any_state_survives(state: State) -> None:
    assert decode(encode(state), "agent") == state


@given(st.builds(Gap, first_step=steps, last_step=steps, frames=st.integers(0, 9), cause=names))
def test_any_gap_survives(gap: Gap) -> None:
    assert msgspec.convert(msgpack.unpackb(encode(gap)), Gap) == gap


def test_a_message_with_fields_of_a_later_version_is_understood() -> None:
    fields = [*msgpack.unpackb(encode(Goodbye(last=3))), "new", 7]

    assert decode(packed(fields), "agent") == Goodbye(last=3)


def test_a_message_of_an_earlier_version_takes_the_defaults() -> None:
    assert decode(packed(["goodbye", 3]), "agent") == Goodbye(last=3, reason="")


@pytest.mark.parametrize("sender", ["agent", "collector"])
@given(st.binary(max_size=300))
def test_garbage_ends_in_a_protocol_error(
    sender: Literal["agent", "collector"], garbage: bytes
) -> None:
    try:
        decode(garbage, sender)
    except ProtocolError:
        return
    assert msgpack.unpackb(garbage, strict_map_key=False)[0] in {
        "goodbye",
        "hello",
        "schema",
        "frame",
        "state",
        "welcome",
        "reject",
        "ack",
        "need-schema",
    }


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | names
json_like = st.recursive(
    leaves | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(names, inner, max_size=3),
    max_leaves=20,
)


@given(
    st.sampled_from(["hello", "schema", "frame", "state", "goodbye", "welcome", "exact_count"]),
    st.lists(json_like, max_size=16),
)
def test_wrong_fields_end_in_a_protocol_error(tag: str, fields: list[Any]) -> None:
    try:
        message = decode(packed([tag, *fields]), "agent")
    except ProtocolError:
        return
    assert decode(encode(message), "agent") is not None


@given(st.data())
def test_a_damaged_message_is_refused_or_another_message(data: st.DataObject) -> None:
    whole = encode(data.draw(st.sampled_from(FROM_AGENT)))
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    for text in (damaged, whole[:place]):
        with suppress(ProtocolError):
            assert decode(text, "agent") is not None


def test_a_collector_does_not_take_what_only_a_collector_may_say() -> None:
    for message in FROM_COLLECTOR:
        with pytest.raises(ProtocolError, match=r"^A message from an agent cannot be read"):
            decode(encode(message), "agent")


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(b"\x91" * 100_000 + b"\xc0", "agent")


def test_an_oversized_message_is_refused_unread() -> None:
    with pytest.raises(ProtocolError, match=r"above the limit of 33554432\.$"):
        decode(bytes((32 << 20) + 1), "agent")


@pytest.mark.parametrize(
    "change",
    [
        {"rank": -1},
        {"rank": 10**6},
        {"world_size": 0},
        {"run": ""},
        {"run": "x" * 201},
        {"mesh": [MeshAxis(name="dp", size=1, coordinate=0)] * 17},
        {"process": -1},
        {"facts": {str(i): "" for i in range(65)}},
    ],
)
def test_a_hello_out_of_bounds_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        decode(encode(msgspec.structs.replace(HELLO, **change)), "agent")


def test_a_schema_whose_hash_is_wrong_is_refused() -> None:
    schema = msgspec.structs.replace(make_schema(SITES), hash=b"0" * 16)

    with pytest.raises(ProtocolError, match=r"hash does not match"):
        decode(encode(schema), "agent")


def test_a_schema_with_foreign_columns_is_refused() -> None:
    schema = make_schema(SITES)
    foreign = msgspec.structs.replace(schema, columns=schema.columns[:-1])

    with pytest.raises(ProtocolError, match=r"columns are not those of this protocol"):
        decode(encode(foreign), "agent")


def test_there_is_one_protocol_version() -> None:
    assert PROTOCOL == 5
