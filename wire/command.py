"""`rankscope keygen`: make the keys of a collector and its agents."""

from __future__ import annotations

import re
from pathlib import Path

import click

from ..sketch.errors import SettingError
from .keys import make_folders

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--agent",
    default="agent",
    show_default=True,
    help="Name of the agent; say another to let in one more.",
)
def keygen(directory: Path, agent: str) -> None:
    """Make keys in DIRECTORY: for a collector, if it has none, and for an agent that it lets in.

    Nothing that is there is overwritten.
    """
    if not _NAME.fullmatch(agent) or agent == "collector":
        raise SettingError(
            f"An agent's name is letters, digits and ._-, and not `collector`, got {agent!r}."
        )
    collector, mine = make_folders(directory, agent)
    click.echo(f"The collector's keys: rankscope collect --keys {collector} …")
    click.echo(f"The agents' keys:     RANKSCOPE_KEYS={mine}, or observe(…, keys={str(mine)!r})")
    click.echo(f"Take away {collector / 'agents' / agent}.key, and {agent} is let in no more.")
