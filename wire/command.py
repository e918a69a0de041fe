"""`rankscope keygen`: make the keys of a collector, its relays and its agents."""

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
    "--agent", help="Name of the agent, `agent` or `RELAY-agent`; say another to let in one more."
)
@click.option("--relay", help="Name of a relay to make keys for: the agent sends to it.")
@click.option(
    "--to",
    default="collector",
    show_default=True,
    help="Whom it sends to: the collector, or a relay that has keys in DIRECTORY.",
)
def keygen(directory: Path, agent: str | None, relay: str | None, to: str) -> None:
    """Make keys in DIRECTORY: for a collector, if it has none, and for an agent that it lets in.

    With --relay also for a relay between both. Nothing that is there is overwritten.
    """
    if to != "collector":
        _check("A relay's name", to)
    if relay is not None:
        _check("A relay's name", relay)
    if agent is None:
        agent = "agent" if relay is None else f"{relay}-agent"
    _check("An agent's name", agent)
    chain = [name for name in (to, relay, agent) if name is not None]
    if len(set(chain)) < len(chain):
        names = ", ".join(map(repr, chain))
        raise SettingError(f"Each party needs a name of its own, got {names}.")
    upper, *between, mine = make_folders(directory, chain)
    if to == "collector":
        click.echo(f"The collector's keys: rankscope collect --keys {upper} …")
    for folder in between:
        click.echo(f"The relay's keys:     rankscope relay --keys {folder} …")
    click.echo(f"The agents' keys:     RANKSCOPE_KEYS={mine}, or observe(…, keys={str(mine)!r})")
    for above, below in zip([upper, *between], [*between, mine], strict=True):
        file = above / "agents" / f"{below.name}.key"
        click.echo(f"Take away {file}, and {below.name} is let in no more.")


def _check(what: str, name: str) -> None:
    if not _NAME.fullmatch(name) or name == "collector":
        raise SettingError(f"{what} is letters, digits and ._-, and not `collector`, got {name!r}.")
