"""Which kinds are due in the step that is open: part of the key under which JAX keeps its programs.

So a jitted step is traced once for the steps in which something is due, and once for those in which
nothing is; the latter is the program of a job that nobody observes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from itertools import count

import jax

_numbers = count()
_context = jax.make_user_context(default_value=())


class Due:
    """The kinds that one scope is to sketch now."""

    def __init__(self) -> None:
        self._number = next(_numbers)

    def turn_to(self, kinds: Iterable[str]) -> None:
        """These are due from now on, on all threads; none is the same as no scope."""
        chosen = tuple(sorted(kinds))
        others = [entry for entry in _context.get_global() if entry[0] != self._number]
        _context.set_global(tuple([*others, (self._number, chosen)] if chosen else others))

    def kinds(self) -> frozenset[str]:
        """What is due, as the function that is being traced shall see it."""
        return frozenset(dict(_context.value).get(self._number, ()))


def nothing_due() -> AbstractContextManager[object]:
    """A context for jitted functions of our own, which are the same whatever is due."""
    return _context(())
