"""Options that several commands have, and those that are text: what they may say."""

from __future__ import annotations

from collections.abc import Callable

import click

from ..sketch.errors import RankscopeError

insecure_option = click.option(
    "--insecure", is_flag=True, help="Allow an address that other machines reach, without keys."
)
log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Log lines for people, or a JSON object a line.",
)


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
