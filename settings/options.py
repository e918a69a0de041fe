"""Options of commands that are text, and what they may say; files and variables are held to it."""

from __future__ import annotations

from collections.abc import Callable

import click

from ..sketch.errors import RankscopeError


class Said(click.ParamType):
    """Text that `read` understands; the command gets it as it was said.

    Args:
        read: raises a RankscopeError that tells what is wrong.
    """

    name = "text"

    def __init__(self, read: Callable[[str], object]) -> None:
        self._read = read

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        try:
            self._read(str(value))
        except RankscopeError as error:
            self.fail(str(error), param, ctx)
        return str(value)
