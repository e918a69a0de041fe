"""The processes of a job: what they share when observing begins, and facts worth keeping."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import jax

from ...wire.keys import AgentKeys
from ..embedded import start_collector


class Processes:
    """Of this launch."""

    def share(self, key: str, make: Callable[[], str]) -> str:
        """The string that process 0 made."""
        return make()

    def collector_of(self, run: str, directory: Path) -> tuple[str, AgentKeys | None]:
        """The address of a collector that process 0 starts, and the keys for it if it has some.

        Raises:
            RankscopeError: it did not start.
        """
        return start_collector(run, directory.absolute()), None


def facts(*, in_program: bool) -> dict[str, str]:
    """What is worth keeping about this process's software, and who sketches."""
    return {
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "backend": jax.default_backend(),
        "sketched": "in the program" if in_program else "on the host",
    }
