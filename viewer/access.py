"""Who may look: where the server listens, whose pages it answers, the token that it asks for."""

from __future__ import annotations

import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from ..sketch.errors import AddressError, SettingError

SHORTEST = 8
"""Characters of a token. At one try a second, 8 lower-case letters last for thousands of years."""
_PREFIX = re.compile(r"(/[A-Za-z0-9._~@%-]+)*")
ORIGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?")
"""A host with or without a port: `lab.org`, `gpu-7:5006`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the viewer can be reached, and by whom."""

    address: str = "127.0.0.1"
    """Where to listen; empty: everywhere."""
    port: int = 0
    """0 takes any that is free."""
    prefix: str = ""
    """What stands before every path, such as `/rankscope`."""
    origins: tuple[str, ...] = ()
    """Hosts, `NAME` or `NAME:PORT`, whose pages are answered besides this machine's own."""
    token: str | None = field(default=None, repr=False)
    """Whoever knows it may look; None: whoever reaches the server."""
    insecure: bool = False
    """Whether others than this machine may look without a token."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            SettingError: the prefix, an origin or the token cannot be used.
            AddressError: others can reach the address, and no token was given.
        """
        if not _PREFIX.fullmatch(self.prefix):
            raise SettingError(
                f"A prefix is a path such as /rankscope, without a slash at its end, "
                f"got {self.prefix!r}."
            )
        for origin in self.origins:
            if not ORIGIN.fullmatch(origin):
                raise SettingError(
                    "An origin is a host, or host:port, as the browser's address bar shows it, "
                    f"without https:// and path, got {origin!r}."
                )
        if self.token is not None and len(self.token) < SHORTEST:
            raise SettingError(
                f"A token has {SHORTEST} characters or more, got {len(self.token)}: "
                "take a longer one."
            )
        if self.token is None and not self.insecure and not self.is_local:
            raise AddressError(
                f"Whoever reaches {self.address or 'this machine'} could look at all runs: have a "
                "token asked for (--token-file FILE makes one), or say `--insecure`."
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the address."""
        try:
            return ip_address(self.address).is_loopback
        except ValueError:
            return self.address == "localhost"

    @property
    def is_everywhere(self) -> bool:
        """Whether the server listens on all of the machine's addresses."""
        return self.address in ("", "0.0.0.0", "::")

    @property
    def host(self) -> str:
        """The name by which a browser on this machine reaches the server."""
        if self.address in ("", "0.0.0.0"):
            return "127.0.0.1"
        if self.address in ("::", "::1"):
            return "localhost"
        return f"[{self.address}]" if ":" in self.address else self.address

    def hosts(self, port: int) -> list[str]:
        """Whose pages are answered, each as `name:port`."""
        # Bokeh knows no origins with brackets: an IPv6 number needs a name beside it.
        names = {"127.0.0.1", "localhost", self.host.partition("[")[0]} - {""}
        own = {f"{name}:{port}" for name in names}
        # A browser leaves out the port of a scheme; Bokeh takes it as 80, for https, too.
        other = {name if ":" in name else f"{name}:80" for name in self.origins}
        return sorted(own | other)


def read_token(file: Path) -> tuple[str, bool]:
    """The token in `file`, and whether it was made just now, as there was no such file.

    Raises:
        SettingError: it cannot be read or written, or others can read it.
    """
    try:
        made = _make(file)
        facts = file.stat()
        token = file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise SettingError(f"The token in {file} is no text in UTF-8.") from None
    except OSError as error:
        raise SettingError(
            f"The token in {file} cannot be read or made: {error.strerror}."
        ) from None
    # A secret that Kubernetes mounts belongs to somebody else, and its group may read it.
    if facts.st_mode & (0o077 if facts.st_uid == os.geteuid() else 0o037):
        mode = stat.S_IMODE(facts.st_mode)
        raise SettingError(
            f"Others can read the token in {file} (its mode is {mode:04o}): "
            f"say `chmod 600 {file}`, and take another token if somebody may have."
        )
    return token, made


def _make(file: Path) -> bool:
    """Write a token into a new file, which nobody else can read; False where there is one."""
    try:
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(opened, "w", encoding="utf-8") as out:
        out.write(secrets.token_urlsafe(24) + "\n")
    return True
