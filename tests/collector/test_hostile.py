"""Whatever a peer says: no crash, no hang, bounded memory, nothing written but its own run."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgpack
import msgspec
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.collector import CollectorSettings
from rankscope.sketch import ProtocolError
from rankscope.store import open_run
from rankscope.viewer.follow import Follower
from rankscope.viewer.pages import Visited
from rankscope.viewer.session import Session
from rankscope.viewer.state import Choice
from rankscope.viewer.views import CONTENTS
from rankscope.wire import Gap, Goodbye, Hello, Site, decode, encode, make_schema, open_frame

from .hostile import CORPUS, SCHEMA, Sandbox, bear, fitting, load, mutate, normal_session
from .serving import SITES, hello

MIB = 1 << 20
SLOW = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
"""Each example has a store of its own."""


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.msgpack")), ids=lambda file: file.stem)
def test_a_collector_bears_what_was_kept(file: Path) -> None:
    session = [list(parts) for parts in load(file)]

    with counted_threads() as counts:
        bear(session)

    assert max(counts) - counts[0] < 256  # where nobody bounds Tokio's pool for files it has 512


@contextmanager
def counted_threads() -> Generator[list[int]]:
    """How many threads this process has, again and again while the block lasts."""
    own, over = psutil.Process(), threading.Event()
    counts = [own.num_threads()]

    def count() -> None:
        while not over.wait(0.02):
            counts.append(own.num_threads())

    counter = threading.Thread(target=count)
    counter.start()
    try:
        yield counts
    finally:
        over.set()
        counter.join()


def test_the_corpus_is_there_and_small() -> None:
    sizes = [file.stat().st_size for file in CORPUS.iterdir()]

    assert len(sizes) >= 10
    assert max(sizes) < 64 << 10


def test_the_corpus_speaks_the_protocol_of_today() -> None:
    # Else its sessions end at their first message, and what is behind that is not tried.
    assert [list(parts) for parts in load(CORPUS / "well.msgpack")] == normal_session()
    tag, first = b"\xa5hello", encode(hello(0, 1))
    begin = first[first.index(tag) :][: len(tag) + 2]
    others = [file for file in CORPUS.iterdir() if begin not in file.read_bytes()]
    assert others == []


@SLOW
@given(st.randoms(use_true_random=False))
def test_a_collector_bears_what_is_nearly_right(random: Random) -> None:
    session = normal_session(ranks=random.choice([1, 1, 1, 2]))
    for _ in range(random.randint(1, 3)):
        session = mutate(session, random)
    bear(session)


@SLOW
@given(st.lists(st.lists(st.binary(max_size=60), max_size=4), max_size=6))
def test_a_collector_bears_any_bytes(session: list[list[bytes]]) -> None:
    hallo = normal_session()[:2]
    bear([*session, *hallo, *session])


@settings(max_examples=200)
@given(st.binary(max_size=400), st.integers(0, 300))
def test_a_blob_of_any_bytes_ends_in_a_protocol_error_or_a_frame(blob: bytes, keep: int) -> None:
    header, real = normal_session()[2]
    for changed in (blob, real[:keep] + blob, real[: max(len(real) - len(blob), 0)] + blob):
        with suppress(ProtocolError):
            open_frame(decode(fitting(header, changed), "agent"), changed, SCHEMA)


SCHEMA_OF = b"\x94\xa6schema\xc4\x10" + bytes(16) + b"\x90"
"""The beginning of one: its hash, no columns; its sites follow."""
GAP = Gap(first_step=0, last_step=0, frames=0, cause="")


def bombs() -> dict[str, bytes]:
    """Messages that claim, or hold, far more than they should."""
    header = msgpack.unpackb(normal_session()[2][0])
    crowded = [*header]
    crowded[11] = {f"{i}": 1.0 for i in range(4096)}
    nil = b"\xc0"
    return {
        "an array of 2^32": b"\xdd\xff\xff\xff\xff" + nil * 100,
        "a map of 2^32": b"\x94\xa5state\x01\xa1s\xdf\xff\xff\xff\xff",
        "a text of 2^32": b"\x92\xa7goodbye\xdb\xff\xff\xff\xffabc",
        "a schema of 2^32 sites": SCHEMA_OF + b"\xdd\xff\xff\xff\xff",
        "nesting": b"\x91" * MIB,
        "sites of nothing": SCHEMA_OF + b"\xdd\x00\x0f\x00\x00" + b"\x92\xa3tap\xa0" * (MIB // 6),
        "many gaps": encode(Goodbye(last=0)) + encode(GAP) * 9999,
        "many names": bytes(msgpack.packb(crowded) or b""),
        "many parts of a name": b"\x92\xa7goodbye" + b"\xda\xff\xff" + b"x" * 65535,
    }  # fmt: skip


@pytest.mark.parametrize("name", bombs())
@pytest.mark.parametrize("sender", ["agent", "collector"])
def test_reading_a_message_takes_memory_in_proportion_to_its_bytes(
    name: str, sender: Literal["agent", "collector"]
) -> None:
    bomb = bombs()[name]
    with suppress(ProtocolError):
        decode(bomb, sender)  # what is made once does not count
    tracemalloc.start()
    with suppress(ProtocolError):
        decode(bomb, sender)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 64 * len(bomb) + MIB


def test_frames_that_claim_much_take_what_their_bytes_take(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path)
    session = normal_session()
    sandbox.play(session[:2])
    header = decode(session[2][0], "agent")
    changes: list[dict[str, Any]] = [
        {"rows": 100_000},
        {"bins": 2**62},
        {"rows": 100_000, "bins": 2**62, "bin_dtype": "u8"},
        {"step": 2**63 - 1},
        {"time_ns": 2**63 - 1},
        {"sequence": 2**63 - 1},
    ]
    sandbox.rest()  # Python 3.11 bears no other threads while tracing begins or ends
    tracemalloc.start()
    for change in changes:
        sandbox.play([[encode(msgspec.structs.replace(header, **change)), session[2][1]]])
    sandbox.rest()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sandbox.close()
    sandbox.check()

    assert peak < 64 * MIB


def test_a_hello_is_small() -> None:
    facts = {f"{i}" * 300: "x" * 1024 for i in range(60)}
    with pytest.raises(ProtocolError, match=r"above the limit of 65536\.$"):
        decode(encode(hello(facts=facts)), "agent")


def test_a_goodbye_after_more_frames_than_can_be_counted_is_refused() -> None:
    whole = encode(Goodbye(last=2**63 - 1))
    assert decode(whole, "agent") == Goodbye(last=2**63 - 1)
    with pytest.raises(ProtocolError):
        decode(whole.replace(b"\x7f" + b"\xff" * 7, b"\xff" * 8), "agent")


def refusals(sandbox: Sandbox, session: list[list[bytes]], peer: bytes = b"peer") -> list[str]:
    """What a collector says against a session."""
    said = list[str]()
    for parts in session:
        sandbox.now += 0.1
        sandbox.collector.receive(peer, parts, sandbox.now)
        answers = [decode(part, "collector") for _, part in sandbox.collector.outgoing]
        said += [answer.reason for answer in answers if hasattr(answer, "reason")]
        sandbox.collector.outgoing.clear()
    return said


def test_schemas_without_end_are_bounded(tmp_path: Path) -> None:
    limits = CollectorSettings(site_bytes=200_000, schema_bytes=400_000)
    sandbox = Sandbox(tmp_path, limits)
    sandbox.play(normal_session()[:1])
    endless = [
        [encode(make_schema([Site(kind="tap", name=f"{turn}.{i}") for i in range(100)]))]
        for turn in range(400)
    ]
    said = refusals(sandbox, endless)
    sandbox.close()
    sandbox.check()

    assert said[0] == "Run 'demo' was told of new sites too often."
    assert len(said) > 200


def test_the_schemas_that_streams_hold_are_bounded_together(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, CollectorSettings(schema_bytes=200_000))
    said = list[str]()
    schema = [encode(make_schema([Site(kind="tap", name=f"{i}") for i in range(1000)]))]
    for rank in range(8):
        start = [[encode(hello(rank, 8, stream=f"s{rank}"))], schema]
        said += refusals(sandbox, start, b"peer%d" % rank)
    sandbox.close()

    assert said == ["The schemas of run 'demo' would take more than 0 MiB."] * len(said)
    assert 3 <= len(said) < 8  # the first was taken in


def test_streams_and_starts_without_end_are_bounded(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, CollectorSettings(max_streams=50, max_attempts=30))
    hellos = [[encode(hello(stream=f"s{i}", launch=f"l{i}"))] for i in range(40)]
    said = refusals(sandbox, hellos)
    assert said == ["Run 'demo' was started 30 times: take another."] * 10
    ranks = [[encode(hello(i, 99, stream=f"r{i}", launch="l29", mesh=[]))] for i in range(40)]
    assert "This start of run 'demo' has 1 ranks" in refusals(sandbox, ranks)[0]
    wide = [[encode(hello(i, 99, stream=f"w{i}", run="w", mesh=[]))] for i in range(40)]
    assert refusals(sandbox, wide) == ["This collector holds 50 streams already."] * 20
    sandbox.close()
    sandbox.check()


def test_runs_without_end_are_bounded(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, CollectorSettings(max_runs=3))
    hellos = [[encode(hello(run=f"run-{i}", stream=f"s{i}"))] for i in range(9)]
    assert refusals(sandbox, hellos) == ["This collector holds 3 runs already."] * 6
    assert sandbox.runs() == ["run-0", "run-1", "run-2"]
    sandbox.close()


def test_names_of_numbers_without_end_are_bounded_and_told(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path)
    session = normal_session()
    sandbox.play(session[:2])
    header = decode(session[2][0], "agent")
    for sequence in range(3):
        names = {f"{sequence}.{i}": 1.0 for i in range(4000)}
        changed = msgspec.structs.replace(
            header, sequence=sequence, step=sequence, training=names, reports=[], gaps=[]
        )
        sandbox.play([[encode(changed), session[2][1]]])
    sandbox.close()
    sandbox.check()
    run = open_run(sandbox.store / "demo")

    assert run.training().sizes["name"] <= 1024
    assert sum("Numbers with new names are not stored" in text for text in run.events().text) == 1
    assert len(run.records()) == 3


def test_a_stream_belongs_to_the_key_that_it_came_with(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path)
    session = normal_session()
    for parts in session[:3]:
        sandbox.collector.receive(b"one", parts, sandbox.now, "key-1")
    sandbox.collector.outgoing.clear()
    sandbox.collector.receive(b"two", session[0], sandbox.now, "key-2")
    [(peer, answer)] = sandbox.collector.outgoing
    sandbox.close()

    assert peer == b"two"
    assert decode(answer, "collector").reason == (
        "Stream stream belongs to an agent with another key."
    )


def test_a_log_line_cannot_be_forged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sandbox = Sandbox(tmp_path)
    hallo: Hello = hello(0, 2, stream="a\nWARNING all is well\x1b[2J")
    sandbox.play([[encode(hallo)], [encode(msgspec.structs.replace(hallo, rank=1, mesh=[]))]])
    sandbox.close()

    assert any("belongs to rank 0 already" in line for line in caplog.messages)
    assert not any("\n" in line or "\x1b" in line for line in caplog.messages)


def test_hostile_names_stay_names(tmp_path: Path) -> None:
    names = ["../../../up", "/etc/passwd", "a\0b", "..", "<img src=x onerror=alert(1)>", "\x1b[2J"]
    sandbox = Sandbox(tmp_path)
    sites = [*SITES, *(Site(kind="tap", name=name, slot=name, aliases=[name]) for name in names)]
    session = normal_session(frames=1)
    schema = make_schema(sites)
    real = decode(session[2][0], "agent")
    header = msgspec.structs.replace(
        real,
        schema=schema.hash,
        training=dict.fromkeys(names, 1.0),
        health=dict.fromkeys(names, 1.0),
        reports=names,
        exact_counts=[],
    )
    counted = sum(window.length * int(window.dtype[1:]) for window in real.exact_counts)
    blob = session[2][1][:-counted]
    sandbox.play([session[0], [encode(schema)], [fitting(encode(header), blob), blob], session[-1]])
    for run in ("../out", "/tmp/out", "..", ".", "a/b", "a\0", "a\n", ""):
        with suppress(msgspec.ValidationError):
            sandbox.play([[encode(hello(run=run, stream=run or "s"))]], b"other")
    sandbox.close()
    sandbox.check()
    run = open_run(sandbox.store / "demo")

    assert sandbox.runs() == ["demo"]
    assert len(run.records()) == 1
    assert set(names) <= set(run.events().text)
    assert set(run.sites().loc[lambda table: table.kind == "tap", "name"]) == set(names)


def test_hostile_names_are_escaped_on_the_page(tmp_path: Path) -> None:
    bad = "<img src=x onerror=alert(1)>"
    sandbox = Sandbox(tmp_path)
    site = Site(kind="tap", name=bad, slot=bad, dtype=bad, module=bad)
    schema = make_schema([site, SITES[1]])
    for rank, host in enumerate([bad, bad, "good"]):
        session = normal_session(rank, 3, frames=2, stream=f"s{rank}")
        hallo = msgspec.structs.replace(
            decode(session[0][0], "agent"), launch="one", host=host, device=bad, facts={bad: bad}
        )
        sandbox.play([[encode(hallo)], [encode(schema)]], b"peer%d" % rank)
        for header, blob in session[2:4]:
            real = decode(header, "agent")
            counted = sum(window.length * int(window.dtype[1:]) for window in real.exact_counts)
            changed = msgspec.structs.replace(
                real, schema=schema.hash, exact_counts=[], reports=[bad], training={bad: 1.0}
            )
            part = blob[:-counted]
            sandbox.play([[fitting(encode(changed), part), part]], b"peer%d" % rank)
    sandbox.close()
    run = open_run(sandbox.store / "demo")
    assert f"host={bad}" in run.groups
    for view in ("merged", f"host={bad}", "max"):
        choice = Choice(kind="tap", site=f"tap:{bad}[{bad}]", step=1, view=view)
        session = Session(Follower(run), choice, now=lambda: 0.0)
        visited = Visited(session, {entry.name: entry.model for entry in CONTENTS})
        for entry in CONTENTS:
            session.visit(entry.name)
            html = texts_of(visited) | texts_of(visited.page)
            assert bad not in "".join(html.values()), [name for name in html if bad in html[name]]
            # Without a second run, Compare names nothing.
            assert "&lt;img" in "".join(html.values()) or entry.name == "compare"


# `Any`: a page or a part of one; what they have in common is that some of them tell something.
def texts_of(model: Any) -> dict[str, str]:
    """All texts that a page, or a part of one, tells as HTML."""
    told = dict[str, str]()
    if hasattr(model, "told"):
        values = model.told.param.values()
        told = {name: text for name, text in values.items() if isinstance(text, str)}
        told["cards"] = "".join(card.facts + card.advice for card in values.get("cards", ()))
    for name, part in vars(model).items():
        if hasattr(part, "told"):
            told |= {f"{name}.{text}": said for text, said in texts_of(part).items()}
    return told
