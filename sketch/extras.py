"""Packages that an extra brings: one that is missing is named, with the line that installs it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def brought_by(extra: str, purpose: str) -> Generator[None]:
    """Around imports: says of a package that is not there which extra brings it.

    Args:
        extra: its name.
        purpose: what they are needed for, as the beginning of a sentence.

    Raises:
        ModuleNotFoundError: a package is not installed; the message says how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "rankscope":
            raise  # a fault of ours
        raise ModuleNotFoundError(
            f"{purpose} needs {error.name}, which is not installed: "
            f"pip install 'rankscope[{extra}]'.",
            name=error.name,
        ) from None
