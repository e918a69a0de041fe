"""What the first process of a job says to all others, through a key-value store that they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..sketch.errors import RankscopeError

Share = Callable[[str, Callable[[], str]], str]
"""Gives the string that the first process made under a name."""


class Store(Protocol):
    """A key-value store of the job's."""

    def set(self, key: str, value: str) -> object: ...
    def get(self, key: str) -> str: ...


def share(store: Store, path: str, make: Callable[[], str], *, is_first: bool) -> str:
    """The string that the first process made; if making it failed there, the same error on all.

    No collective is involved: the first sets a key, and the others wait for it.

    Raises:
        RankscopeError: the first could not make it.
    """
    if is_first:
        try:
            value = make()
        except BaseException as error:  # Ctrl-C, too: the others would wait for long
            is_ours = isinstance(error, RankscopeError)
            words = str(error) if is_ours else f"Rank 0 has given up: {type(error).__name__}."
            store.set(path, f"error {words}")
            raise
        store.set(path, f"value {value}")
        return value
    word, _, value = store.get(path).partition(" ")
    if word == "error":
        raise RankscopeError(value)
    return value
