"""What the tests ask of an object store's server, whichever it is."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from obstore.store import ObjectStore

START_S = 120.0


class Server:
    """The processes of one server on loopback, which end with `stop`."""

    scheme: ClassVar[str]
    """What its URLs begin with."""
    programs: ClassVar[tuple[str, ...]]
    """What it is made of."""
    install: ClassVar[str]
    """How to get these, for people."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        """Where it answers."""
        self.variables = dict(os.environ)
        self._processes: list[subprocess.Popen[bytes]] = []

    @classmethod
    def missing(cls) -> str:
        """What of it is not installed; empty if nothing is."""
        return next((name for name in cls.programs if shutil.which(name) is None), "")

    def start(self) -> None:
        """Begin to answer."""
        raise NotImplementedError

    def environment(self, url: str) -> Mapping[str, str]:
        """The variables by which a user would name it and its keys, if it answered at `url`."""
        raise NotImplementedError

    def make(self, bucket: str) -> None:
        """Make an empty bucket."""
        raise NotImplementedError

    def client(self, bucket: str) -> ObjectStore:
        """What looks into a bucket beside the store's own way."""
        raise NotImplementedError

    def path(self, bucket: str, key: str) -> str:
        """An object's path in the first line of a request."""
        return f"/{bucket}/{key}"

    def serve(self, *command: str) -> None:
        """Start a process that runs until `stop`."""
        with (self.folder / f"{Path(command[0]).name}.out").open("wb") as out:
            process = subprocess.Popen(command, env=self.variables, stdout=out, stderr=out)
        self._processes.append(process)

    def wait(self) -> None:
        """Until it answers at its address."""
        self.wait_for(lambda: answers(self.url))

    def wait_for(self, happened: Callable[[], bool]) -> None:
        """Until that holds.

        Raises:
            AssertionError: with what the server wrote last, if it does not begin to hold.
        """
        until = time.monotonic() + START_S
        while not happened():
            ended = [one.args for one in self._processes if one.poll() is not None]
            assert not ended, self.last_words()
            assert time.monotonic() < until, self.last_words()
            time.sleep(0.05)

    def last_words(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.out"))

    def stop(self) -> None:
        """End all processes."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
