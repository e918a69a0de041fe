"""The keys of CURVE: files of pyzmq's certificates, or pairs made for one job.

Each party (an agent, a relay, a collector) has a folder: its own pair, `own.key` and
`own.key_secret`; with `collector.key`, the collector that it sends to; with `agents/`, a public key
for each who may send to it. Secret files are refused where others can read them.

This module loads pyzmq, which the room's face must not: import it by its own name.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
import zmq
from zmq.auth import create_certificates, load_certificate
from zmq.utils import z85

from ..sketch.errors import SettingError

OWN, COLLECTOR, AGENTS = "own", "collector.key", "agents"
KEY_LENGTH = 40
"""Characters of a key in Z85, 32 bytes."""
HOW = "make keys with `rankscope keygen`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A public key and its secret one, in Z85."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def make(cls) -> Pair:
        """A new one."""
        _check_curve()
        public, secret = zmq.curve_keypair()
        return cls(public=public.decode(), secret=secret.decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentKeys:
    """What an agent needs to reach a collector that asks for keys."""

    own: Pair
    collector: str
    """Public key of the collector: no other is talked to."""
    source: str = "the keys of this job"
    """Where they are from, in words."""

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> AgentKeys:
        """From a folder as `rankscope keygen` makes it.

        Raises:
            SettingError: it is none, or others can read the secret.
        """
        place = Path(folder)
        own = _load_pair(place)
        return cls(own=own, collector=_load_public(place / COLLECTOR), source=str(place))

    def protect(self, socket: zmq.Socket[bytes]) -> None:
        """Let a socket that is not connected yet talk to that collector alone."""
        socket.curve_serverkey = self.collector.encode()
        socket.curve_publickey = self.own.public.encode()
        socket.curve_secretkey = self.own.secret.encode()


class AllowList:
    """The public keys of those who may send.

    Args:
        keys: the keys, or the folder of their files, which is read again when it has changed.

    Raises:
        SettingError: there is no such folder, a file holds no key, or others may write there.
    """

    def __init__(self, keys: Path | Iterable[str]) -> None:
        self.folder = keys if isinstance(keys, Path) else None
        self.keys: frozenset[str] = frozenset() if isinstance(keys, Path) else frozenset(keys)
        self._seen: object = None
        self.refresh()

    def refresh(self) -> None:
        """Read the folder again if it has changed; while it cannot be read, all stays as it was.

        Raises:
            SettingError: it cannot be read.
        """
        if self.folder is None:
            return
        seen = _state_of(self.folder)
        if seen != self._seen:
            _check_folder(self.folder)
            self.keys = frozenset(map(_load_public, sorted(self.folder.glob("*.key"))))
            self._seen = seen

    def __contains__(self, key: str) -> bool:
        return key in self.keys


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorKeys:
    """What a collector needs to let in those on its list, and nobody else."""

    own: Pair
    agents: AllowList

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> CollectorKeys:
        """From a folder as `rankscope keygen` makes it.

        Raises:
            SettingError: it is none, or others can read the secret, or add to the list.
        """
        place = Path(folder)
        return cls(own=_load_pair(place), agents=AllowList(place / AGENTS))

    def protect(self, socket: zmq.Socket[bytes]) -> None:
        """Let a socket that is not bound yet take encrypted connections alone."""
        socket.curve_server = True
        socket.curve_publickey = self.own.public.encode()
        socket.curve_secretkey = self.own.secret.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayKeys:
    """What a relay needs to let in those on its list, and to reach its collector."""

    below: CollectorKeys | None
    """For those who send to it; None where it has no list: it listens without keys."""
    above: AgentKeys

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> RelayKeys:
        """From a folder as `rankscope keygen --relay` makes it, or an agent's, which has no list.

        Raises:
            SettingError: it is none, or others can read the secret, or add to the list.
        """
        place = Path(folder)
        if not (place / COLLECTOR).exists():
            raise SettingError(
                f"There is no key {place / COLLECTOR}, of the collector that a relay sends to: "
                "make a relay's keys with `rankscope keygen --relay`."
            )
        has_list = (place / AGENTS).exists()
        below = CollectorKeys.load(place) if has_list else None
        return cls(below=below, above=AgentKeys.load(place))


def keys_for_a_job() -> tuple[str, AgentKeys]:
    """Keys made for the occasion: a line for a collector's input, see `read_keys`; the agents'."""
    collector, agent = Pair.make(), Pair.make()
    line = json.dumps([collector.public, collector.secret, agent.public])
    return line, AgentKeys(own=agent, collector=collector.public)


def read_keys(line: str) -> CollectorKeys:
    """The collector's keys in a line of `keys_for_a_job`.

    Raises:
        SettingError: they are not there.
    """
    try:
        public, secret, agent = msgspec.json.decode(line, type=tuple[str, str, str])
    except msgspec.DecodeError:
        raise SettingError("The first line of the input must hold the collector's keys.") from None
    return CollectorKeys(own=Pair(public=public, secret=secret), agents=AllowList([agent]))


def make_folders(place: Path, chain: Sequence[str]) -> list[Path]:
    """The folders of parties of which each sends to the one before it, and is let in there.

    Args:
        chain: their names. The first is made only if it is the collector, and is not there; the
            others are new.

    Raises:
        SettingError: one has keys already, the first has none, or the folders cannot be written.
    """
    _check_curve()
    folders = [place / name for name in chain]
    if chain[0] != "collector" and not (folders[0] / AGENTS).exists():
        raise SettingError(
            f"There is no relay {folders[0]}: make its keys with `rankscope keygen {place} "
            f"--relay {chain[0]}`."
        )
    for folder in folders[1:]:
        if folder.exists():
            raise SettingError(
                f"{folder} is there already, and is left as it is: take another name or folder."
            )
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in folders:
            folder.mkdir(mode=0o700, exist_ok=True)
            if not (folder / f"{OWN}.key").exists():
                _make_pair(folder)
        for upper, lower in pairwise(folders):
            (upper / AGENTS).mkdir(mode=0o700, exist_ok=True)
            (lower / COLLECTOR).write_bytes((upper / f"{OWN}.key").read_bytes())
            (upper / AGENTS / f"{lower.name}.key").write_bytes((lower / f"{OWN}.key").read_bytes())
    except OSError as error:
        raise SettingError(f"Keys cannot be written to {place}: {error.strerror}.") from None
    return folders


def _make_pair(folder: Path) -> None:
    # The folder is private before the secret is in it, so that nobody can open it in between.
    _, secret = create_certificates(folder, OWN)
    os.chmod(secret, 0o600)


def _load_pair(folder: Path) -> Pair:
    _check_curve()
    file = folder / f"{OWN}.key_secret"
    public, secret = _load(file)
    _check_private(file)
    if not secret or zmq.curve_public(secret.encode()).decode() != public:
        raise SettingError(f"{file} does not hold a pair of keys: {HOW}.")
    _check_folder(folder)
    return Pair(public=public, secret=secret)


def _load_public(file: Path) -> str:
    return _load(file)[0]


def _load(file: Path) -> tuple[str, str]:
    """The public key in a file, and the secret one if it has one."""
    try:
        public, secret = load_certificate(file)
        keys = public.decode(), (secret or b"").decode()
        whole = all(len(z85.decode(key)) == 32 for key in keys if key)
    except PermissionError as error:
        raise SettingError(f"The key {file} cannot be read: {error.strerror}.") from None
    except OSError:
        raise SettingError(f"There is no key {file}: {HOW}.") from None
    except (ValueError, KeyError, IndexError, ArithmeticError):
        whole, keys = False, ("", "")
    if not whole or any(len(key) not in (0, KEY_LENGTH) for key in keys):
        raise SettingError(f"{file} holds no key: {HOW}.")
    return keys


def _check_private(file: Path) -> None:
    """Refuse a secret that others can read.

    One that belongs to somebody else may be readable by a group: that is how Kubernetes mounts it.
    """
    facts = file.stat()
    loose = 0o077 if facts.st_uid == os.geteuid() else 0o037
    if facts.st_mode & loose:
        mode = stat.S_IMODE(facts.st_mode)
        raise SettingError(
            f"Others can read the secret key {file} (its mode is {mode:04o}): "
            f"say `chmod 600 {file}`, and make new keys if somebody may have."
        )


def _check_folder(folder: Path) -> None:
    """Refuse a folder into which others can put keys."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    if mode & 0o022 and not read_only:
        raise SettingError(
            f"Others can put keys into {folder} (its mode is {mode:04o}): say `chmod 700 {folder}`."
        )


def _state_of(folder: Path) -> object:
    """Something else whenever a file was added, removed or changed."""
    try:
        files = sorted(folder.glob("*.key"))
        if not folder.is_dir():
            raise SettingError(f"There is no list of agents {folder}: {HOW}.")
        stats = [(file.name, file.stat()) for file in files]
    except OSError as error:
        raise SettingError(f"The list {folder} cannot be read: {error.strerror}.") from None
    return [(name, one.st_mtime_ns, one.st_size, one.st_ino) for name, one in stats]


def _check_curve() -> None:
    if not zmq.has("curve"):
        raise SettingError(
            "This build of ZeroMQ has no CURVE: install pyzmq from PyPI's wheels to use keys."
        )
