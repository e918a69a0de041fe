"""Keys: who is let in, who is not, and what each side says about it."""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli
from rankscope.agent import Outbox
from rankscope.collector import Service
from rankscope.sketch import SettingError
from rankscope.store import open_run
from rankscope.wire.keys import AgentKeys, CollectorKeys

from .serving import SITES, a_tap, close_all, hello, send, serving, start_collector, wait_until


def keygen(place: Path, *options: str) -> str:
    """What the command says."""
    result = CliRunner().invoke(cli, ["keygen", str(place), *options])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder in which keys were made for a collector and one agent."""
    keygen(tmp_path / "keys")
    return tmp_path / "keys"


def outbox(service: Service | str, folder: Path | None, rank: int = 0, ranks: int = 1) -> Outbox:
    address = service if isinstance(service, str) else service.address
    keys = AgentKeys.load(folder) if folder else None
    box = Outbox(address, hello(rank, ranks), keys=keys)
    box.set_sites(SITES)
    return box


def told(box: Outbox) -> str:
    """Why it has no connection, once it knows."""
    wait_until(lambda: box.poll(time.monotonic()) or box.statistics().rejected)
    assert not box.statistics().connected
    return box.statistics().rejected


def test_with_keys_on_both_sides_frames_are_stored(keys: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "runs", keys=CollectorKeys.load(keys / "collector")) as service:
        boxes = [outbox(service, keys / "agent", rank, 2) for rank in range(2)]
        for box in boxes:
            send(box, range(5))
        assert close_all(boxes) == [True, True]
    assert open_run(tmp_path / "runs" / "demo").records().complete.tolist() == [True] * 5


def test_what_is_sent_with_keys_cannot_be_read_on_the_way(keys: Path, tmp_path: Path) -> None:
    loaded = CollectorKeys.load(keys / "collector")
    seen = bytearray()
    with serving(tmp_path / "runs", keys=loaded) as service, a_tap(service.address, seen) as tap:
        box = outbox(tap, keys / "agent")
        send(box, range(3))
        assert box.close(timeout_s=15)
    assert b"CURVE" in seen
    assert b"demo" not in seen
    assert b"stream-0" not in seen


def test_an_agent_that_is_not_on_the_list_is_told_so_on_both_sides(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keygen(tmp_path / "others")
    stranger = AgentKeys(
        own=AgentKeys.load(tmp_path / "others" / "agent").own,
        collector=AgentKeys.load(keys / "agent").collector,
        source="my/keys",
    )
    with serving(tmp_path / "runs", keys=CollectorKeys.load(keys / "collector")) as service:
        box = Outbox(service.address, hello(), keys=stranger)
        text = told(box)
        box.close(timeout_s=0)
    assert text == (
        f"The collector at {service.address} does not let this agent in: put own.key of my/keys "
        "into the folder agents/ of the collector's keys."
    )
    assert text in caplog.messages
    assert any(
        f"An agent with the public key {stranger.own.public} was refused: it is not on the list "
        in line
        for line in caplog.messages
    )
    assert not (tmp_path / "runs" / "demo").exists()


def test_an_agent_without_keys_is_told_that_it_needs_some(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path / "runs", keys=CollectorKeys.load(keys / "collector")) as service:
        box = outbox(service, None)
        text = told(box)
        wait_until(lambda: re.search("A connection( from 127.0.0.1:[0-9]+)? was", caplog.text))
        box.close(timeout_s=0)
    assert "it asks for keys (pass `keys=` to observe(), or set RANKSCOPE_KEYS)" in text
    assert "its peer has no keys, or not those of this collector" in caplog.text


def test_an_agent_with_the_key_of_another_collector_is_told_so(keys: Path, tmp_path: Path) -> None:
    keygen(tmp_path / "others")
    with serving(tmp_path / "runs", keys=CollectorKeys.load(keys / "collector")) as service:
        box = outbox(service, tmp_path / "others" / "agent")
        text = told(box)
        box.close(timeout_s=0)
    assert f"its key is not the collector.key of {tmp_path / 'others' / 'agent'}" in text


def test_a_collector_without_keys_is_not_talked_to_by_an_agent_with_some(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path / "runs") as service:
        box = outbox(service, keys / "agent")
        text = told(box)
        wait_until(lambda: "uses keys, of which this collector has none" in caplog.text)
        box.close(timeout_s=0)
    assert "start it with `--keys`" in text  # which side ends it first is chance


def test_training_goes_on_while_a_handshake_fails(keys: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "runs", keys=CollectorKeys.load(keys / "collector")) as service:
        box = outbox(service, None)
        started = time.monotonic()
        send(box, range(300))
        assert time.monotonic() - started < 5
        told(box)
        assert not box.close(timeout_s=0.2)
    assert box.statistics().dropped_frames + box.statistics().pending_frames == 300


def test_the_list_is_read_again_when_an_agent_comes_and_when_one_goes(
    keys: Path, tmp_path: Path
) -> None:
    with serving(tmp_path / "runs", keys=CollectorKeys.load(keys / "collector")) as service:
        keygen(keys, "--agent", "late")
        box = outbox(service, keys / "late")
        wait_until(lambda: box.poll(time.monotonic()) or box.statistics().connected)
        (keys / "collector" / "agents" / "late.key").unlink()
        time.sleep(1.5)  # longer than from one look at the list to the next
        send(box, range(2))
        time.sleep(0.5)
        assert service.statistics().frames == 0
        box.close(timeout_s=0)
        again = outbox(service, keys / "late")
        assert "does not let this agent in" in told(again)
        again.close(timeout_s=0)
        first = outbox(service, keys / "agent")
        send(first, range(2))
        assert first.close(timeout_s=15)


def test_a_list_that_cannot_be_read_stays_as_it_was(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path / "runs", keys=CollectorKeys.load(keys / "collector")) as service:
        (keys / "collector" / "agents" / "broken.key").write_text("no key")
        wait_until(lambda: "The list of agents stays as it was" in caplog.text)
        box = outbox(service, keys / "agent")
        send(box, range(2))
        assert box.close(timeout_s=15)
    assert "broken.key holds no key: make keys with `rankscope keygen`." in caplog.text


def test_a_collector_process_with_keys_may_listen_for_other_machines(
    keys: Path, tmp_path: Path
) -> None:
    folder = str(keys / "collector")
    process, address = start_collector(
        tmp_path / "runs", "--until-done", "--bind", "tcp://0.0.0.0:*", "--keys", folder
    )
    box = outbox(address.replace("0.0.0.0", "127.0.0.1"), keys / "agent")
    send(box, range(3))
    assert box.close(timeout_s=20)
    assert process.wait(20) == 0
    assert "with keys" in process.communicate()[1]


def test_keys_are_made_for_their_owner_alone(keys: Path) -> None:
    modes = {
        str(place.relative_to(keys)): stat.S_IMODE(place.stat().st_mode)
        for place in [keys, *keys.rglob("*")]
    }

    assert {modes[name] for name in (".", "collector", "collector/agents", "agent")} == {0o700}
    assert modes["collector/own.key_secret"] == modes["agent/own.key_secret"] == 0o600


def test_keys_are_not_overwritten(keys: Path) -> None:
    before = {file: file.read_bytes() for file in keys.rglob("*.key*")}
    result = CliRunner().invoke(cli, ["keygen", str(keys)])
    keygen(keys, "--agent", "second")

    assert result.exit_code == 1
    assert f"Error: {keys / 'agent'} is there already, and is left as it is" in result.output
    assert {file: file.read_bytes() for file in before} == before
    assert AgentKeys.load(keys / "second").own != AgentKeys.load(keys / "agent").own


@pytest.mark.parametrize("name", ["collector", "..", "a/b", "", "x" * 65])
def test_an_agent_cannot_be_called_so(tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(cli, ["keygen", str(tmp_path), "--agent", name])

    assert "An agent's name is letters, digits and ._-" in result.output
    assert list(tmp_path.iterdir()) == []


def make_secret_readable(keys: Path) -> None:
    (keys / "agent" / "own.key_secret").chmod(0o640)


def make_folder_writable(keys: Path) -> None:
    (keys / "agent").chmod(0o770)


def take_secret_away(keys: Path) -> None:
    (keys / "agent" / "own.key_secret").unlink()


def take_collector_away(keys: Path) -> None:
    (keys / "agent" / "collector.key").unlink()


def put_nonsense(keys: Path) -> None:
    (keys / "agent" / "own.key_secret").write_text('public-key = "abc"\nsecret-key = "~~~~~"\n')


def mix_pairs(keys: Path) -> None:
    keygen(keys, "--agent", "other")
    secret = AgentKeys.load(keys / "other").own.secret
    file = keys / "agent" / "own.key_secret"
    file.write_text(file.read_text().replace(AgentKeys.load(keys / "agent").own.secret, secret))


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (
            make_secret_readable,
            r"Others can read the secret key .* \(its mode is 0640\): say `chmod",
        ),
        (make_folder_writable, r"Others can put keys into .* \(its mode is 0770\): say `chmod 700"),
        (take_secret_away, r"There is no key .*own\.key_secret: make keys with `rankscope keygen`"),
        (take_collector_away, r"There is no key .*collector\.key: make keys with"),
        (put_nonsense, r"own\.key_secret holds no key: make keys with"),
        (mix_pairs, r"own\.key_secret does not hold a pair of keys"),
    ],
)
def test_keys_that_cannot_be_used_are_refused_in_one_sentence(
    keys: Path, spoil: Callable[[Path], None], text: str
) -> None:
    spoil(keys)
    with pytest.raises(SettingError, match=text):
        AgentKeys.load(keys / "agent")


def test_a_list_into_which_others_can_write_is_refused(keys: Path) -> None:
    (keys / "collector" / "agents").chmod(0o777)
    with pytest.raises(SettingError, match="Others can put keys into"):
        CollectorKeys.load(keys / "collector")


def test_an_agents_folder_is_no_collectors_folder(keys: Path) -> None:
    with pytest.raises(SettingError, match=r"There is no list of agents .*agent/agents"):
        CollectorKeys.load(keys / "agent")


def test_a_secret_is_not_shown(keys: Path) -> None:
    loaded = AgentKeys.load(keys / "agent")

    assert loaded.own.secret not in repr(loaded)
