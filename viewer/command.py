"""`rankscope view`: show a run in the browser, live or finished."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path

import click

from .access import read_token
from .server import serve

VARIABLE = "RANKSCOPE_VIEW_TOKEN"


@click.command(context_settings={"auto_envvar_prefix": "RANKSCOPE_VIEW"})
@click.argument("directory")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=5006,
    show_default=True,
    help="0 takes any that is free.",
)
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Ask for the token in this file, which is made if there is none.  [env: {VARIABLE}, "
    "the token itself]",
)
@click.option("--insecure", is_flag=True, help="Show the runs to all who reach the address.")
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="HOST[:PORT]",
    help="What else the browser's address bar shows, behind a proxy; may be repeated.",
)
@click.option("--prefix", default="", help="Before every path, such as /rankscope.")
@click.option("--open/--no-open", default=True, help="Whether to open the browser.")
def view(
    *,
    directory: str,
    port: int,
    address: str,
    token_file: Path | None,
    insecure: bool,
    allow_origin: tuple[str, ...],
    prefix: str,
    open: bool,
) -> None:
    """Show the run, or the runs, in DIRECTORY (or at a URL) in the browser, live or finished."""
    token, said = _token(token_file)
    if said:
        click.echo(said)
    server = serve(
        directory, port=port, address=address, prefix=prefix, origins=allow_origin, token=token,
        insecure=insecure,
    )  # fmt: skip
    click.echo(f"Showing {directory} at {server.address} (Ctrl+C ends)")
    if server.access.is_everywhere and not allow_origin:
        click.echo(
            "Browsers on other machines need `--allow-origin NAME:PORT`, by the name and port in "
            "their address bar.",
            err=True,
        )
    if token is None and not server.access.is_local:
        click.echo(f"Whoever reaches {address} can look at all of it.", err=True)
    elif token is None and allow_origin:
        names = " or ".join(allow_origin)
        text = f"Whoever reaches {names} can look at all of it, unless the proxy asks who they are."
        click.echo(text, err=True)
    if open:
        webbrowser.open(server.address)
    try:
        server.wait()
    except KeyboardInterrupt:
        server.stop()


def _token(file: Path | None) -> tuple[str | None, str]:
    """What to ask for, and what to say of it."""
    # Taken out: the browser that is opened would hand it on.
    token = os.environ.pop(VARIABLE, None)
    if file is None:
        return token, "" if token is None else f"It asks for the token in {VARIABLE}"
    token, made = read_token(file)
    return token, f"{'Made a token in' if made else 'It asks for the token in'} {file}"
