"""The processes of a job: what they share when observing begins, and facts worth keeping."""

from __future__ import annotations

import socket
from collections.abc import Callable
from importlib.metadata import version
from itertools import count
from typing import Any

import jax

from ..own_collector import Meeting, is_loopback
from ..sharing import share

WAIT_S = 300
"""So long processes may come after the first."""

_launches = count()


class Processes:
    """Of this launch; they meet at the coordinator of `jax.distributed`, if they are several."""

    def __init__(self) -> None:
        # JAX has no public name for the store that its processes share.
        from jax._src.distributed import global_state

        self._state: Any = global_state
        self._prefix = f"rankscope/{next(_launches)}"

    def share(self, key: str, make: Callable[[], str]) -> str:
        """The string that process 0 made; if making it failed there, the same error on all.

        Raises:
            RankscopeError: process 0 could not make it.
        """
        if jax.process_count() == 1:
            return make()
        is_first = jax.process_index() == 0
        return share(_Store(self._state.client), f"{self._prefix}/{key}", make, is_first=is_first)

    def meeting(self) -> Meeting:
        """Where they meet."""
        address = str(self._state.coordinator_address or "").rpartition(":")[0].strip("[]")
        alone = jax.process_count() == 1
        return Meeting(
            host=socket.gethostname(),
            is_on_one_host=alone or is_loopback(address),
            address=address,
        )


class _Store:
    """The coordinator's."""

    def __init__(self, client: Any) -> None:
        self.set, self._client = client.key_value_set, client

    def get(self, key: str) -> str:
        """Waits until it is set."""
        return str(self._client.blocking_key_value_get(key, WAIT_S * 1000))


def facts(*, in_program: bool) -> dict[str, str]:
    """What is worth keeping about this process's software, and who sketches."""
    return {
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "backend": jax.default_backend(),
        "sketched": "in the program" if in_program else "on the host",
    }
