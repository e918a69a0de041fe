"""Relays with keys: who is let in on each hop, who is not, and whose a stream is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.agent import Outbox
from rankscope.relay import Service, relay
from rankscope.sketch import AddressError
from rankscope.store import open_run
from rankscope.wire.keys import AgentKeys, CollectorKeys, RelayKeys

from ..collector.serving import (
    SITES,
    close_all,
    hello,
    send,
    serving,
    start_collector,
    wait_until,
)
from .relaying import assert_each_frame_is_stored_once, end, relaying, start_relay


def keygen(place: Path, *options: str) -> str:
    """What the command says."""
    result = CliRunner().invoke(cli, ["keygen", str(place), *options])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Keys of a collector, an agent of its own, a relay `rack`, and an agent of that."""
    keygen(tmp_path / "keys")
    keygen(tmp_path / "keys", "--relay", "rack")
    return tmp_path / "keys"


def outbox(address: str, folder: Path | None, rank: int = 0, ranks: int = 1) -> Outbox:
    box = Outbox(address, hello(rank, ranks), keys=AgentKeys.load(folder) if folder else None)
    box.set_sites(SITES)
    return box


def told(box: Outbox) -> str:
    """Why it has no connection, once it knows."""
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().rejected, timeout_s=60)
    assert not box.statistics().connected
    return box.statistics().rejected


def connected(box: Outbox) -> None:
    """Until it is welcome."""
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().connected, timeout_s=60)


@pytest.mark.parametrize("spool", [False, True])
def test_with_keys_on_every_hop_frames_are_stored(
    keys: Path, tmp_path: Path, *, spool: bool
) -> None:
    said = keygen(keys, "--relay", "shelf", "--to", "rack")
    folders = {name: ["--keys", str(keys / name)] for name in ("collector", "rack", "shelf")}
    kept = ["--spool", str(tmp_path / "spool"), "--min-free", "0"] if spool else []
    collector, at = start_collector(tmp_path / "runs", "--until-done", *folders["collector"])
    upper, above = start_relay(at, "--until-done", *folders["rack"])
    lower, below = start_relay(above, "--until-done", *folders["shelf"], *kept)
    ways = [(at, "agent"), (above, "rack-agent"), (below, "shelf-agent")]
    boxes = [outbox(way, keys / name, rank, 3) for rank, (way, name) in enumerate(ways)]
    for box in boxes:
        send(box, range(5))
    assert close_all(boxes, timeout_s=60) == [True] * 3
    for process in (lower, upper, collector):
        end(process)

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 3, 5)
    assert f"rankscope relay --keys {keys / 'shelf'}" in said
    assert f"RANKSCOPE_KEYS={keys / 'shelf-agent'}" in said
    assert f"{keys / 'rack' / 'agents' / 'shelf.key'}, and shelf is let in no more" in said
    assert "rankscope collect" not in said


def test_a_relay_with_keys_may_listen_for_other_machines(keys: Path, tmp_path: Path) -> None:
    collector, at = start_collector(
        tmp_path / "runs", "--until-done", "--keys", str(keys / "collector")
    )
    options = ["--until-done", "--bind", "tcp://0.0.0.0:*", "--keys", str(keys / "rack")]
    process, address = start_relay(at, *options)
    box = outbox(address.replace("0.0.0.0", "127.0.0.1"), keys / "rack-agent")
    send(box, range(3))
    assert box.close(timeout_s=60)
    end(process)
    end(collector)


def test_an_agents_folder_lets_a_local_relay_send_up(keys: Path, tmp_path: Path) -> None:
    up = RelayKeys.load(keys / "agent")
    with (
        serving(tmp_path / "runs", keys=CollectorKeys.load(keys / "collector")) as collector,
        relaying(collector.address, up) as service,
    ):
        box = outbox(service.address, None)
        send(box, range(3))
        assert box.close(timeout_s=60)
    with pytest.raises(AddressError, match="make keys with `rankscope keygen --relay`"):
        Service("tcp://0.0.0.0:*", "tcp://127.0.0.1:1", keys=up)


def test_a_relay_lets_in_its_own_agents_alone(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serving(tmp_path / "runs", keys=CollectorKeys.load(keys / "collector")) as collector,
        relaying(collector.address, RelayKeys.load(keys / "rack")) as service,
    ):
        plain = outbox(service.address, None)
        assert "it asks for keys (pass `keys=` to observe(), or set RANKSCOPE_KEYS)" in told(plain)
        other = outbox(service.address, keys / "agent")
        assert f"its key is not the collector.key of {keys / 'agent'}" in told(other)
        stranger = AgentKeys(
            own=AgentKeys.load(keys / "agent").own,
            collector=AgentKeys.load(keys / "rack-agent").collector,
            source="my/keys",
        )
        unlisted = Outbox(service.address, hello(), keys=stranger)
        assert "does not let this agent in: put own.key of my/keys" in told(unlisted)
        wait_until(lambda: "or not those of this relay" in caplog.text)
        assert f"it is not on the list {keys / 'rack' / 'agents'}" in caplog.text
        for box in (plain, other, unlisted):
            box.close(timeout_s=0)


def test_a_relay_that_is_not_let_in_says_why(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keygen(tmp_path / "others", "--relay", "rack")
    wrong = RelayKeys.load(tmp_path / "others" / "rack")
    (keys / "collector" / "agents" / "rack.key").unlink()
    with serving(tmp_path / "runs", keys=CollectorKeys.load(keys / "collector")) as collector:
        cases = [
            (None, "it asks for keys (start this relay with `--keys`)"),
            (wrong, f"its key is not the collector.key of {tmp_path / 'others' / 'rack'}"),
            (RelayKeys.load(keys / "rack"), "does not let this relay in: put own.key of"),
        ]
        for own, text in cases:
            with relaying(collector.address, own):
                wait_until(lambda text=text: text in caplog.text, timeout_s=60)


def test_a_collector_without_keys_is_not_talked_to_by_a_relay_with_some(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serving(tmp_path / "runs") as collector,
        relaying(collector.address, RelayKeys.load(keys / "rack")),
    ):
        wait_until(lambda: "start it with `--keys`" in caplog.text, timeout_s=60)


def test_a_stream_stays_with_the_key_it_came_by(keys: Path, tmp_path: Path) -> None:
    keygen(keys, "--agent", "thief", "--to", "rack")
    with (
        serving(tmp_path / "runs", keys=CollectorKeys.load(keys / "collector")) as collector,
        relaying(collector.address, RelayKeys.load(keys / "rack")) as service,
    ):
        through = outbox(service.address, keys / "rack-agent", 0, 2)
        direct = outbox(collector.address, keys / "agent", 1, 2)
        connected(through)
        connected(direct)
        text = "belongs to an agent with another key"
        thieves = [
            outbox(collector.address, keys / "agent", 0, 2),  # of one that came through the relay
            outbox(service.address, keys / "thief", 0, 2),  # the same, at the relay
            outbox(service.address, keys / "rack-agent", 1, 2),  # of one that came directly
        ]
        for thief, stream in zip(thieves[:2], (0, 0), strict=True):
            assert f"Stream stream-{stream} {text}" in told(thief)
        for _ in range(20):
            thieves[2].poll(time.monotonic())
            time.sleep(0.05)
        assert not thieves[2].statistics().connected  # the relay is refused, and tries again
        for thief in thieves:
            thief.close(timeout_s=0)
        send(through, range(4))
        send(direct, range(4))
        assert close_all([through, direct], timeout_s=60) == [True, True]

    assert_each_frame_is_stored_once(open_run(tmp_path / "runs" / "demo"), 2, 4)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--relay", "a/b"], "A relay's name is letters, digits and ._-"),
        (["--relay", "collector"], "A relay's name is letters, digits and ._-"),
        (["--relay", "one", "--agent", "one"], "Each party needs a name of its own, got "),
        (["--relay", "one", "--to", "one"], "Each party needs a name of its own, got "),
        (["--to", "nobody"], "There is no relay"),
        (["--relay", "rack"], "rack is there already, and is left as it is"),
        (["--agent", "more", "--to", "agent"], "There is no relay"),
    ],
)
def test_keys_that_cannot_be_made_are_told(keys: Path, options: list[str], text: str) -> None:
    before = sorted(keys.rglob("*"))
    result = CliRunner().invoke(cli, ["keygen", str(keys), *options])

    assert result.exit_code == 1
    assert text in result.output
    assert sorted(keys.rglob("*")) == before


def test_a_folder_that_names_no_collector_is_no_relays(keys: Path) -> None:
    options = ["--to", "tcp://a:1", "--keys", str(keys / "collector")]
    result = CliRunner().invoke(relay, options)

    assert result.exit_code == 2
    assert "of the collector that a relay sends to: make a relay's keys with" in result.output
