"""`rankscope view`: show a run in the browser, live or finished."""

from __future__ import annotations

import webbrowser

import click

from .server import serve


@click.command()
@click.argument("directory")
@click.option("--port", default=5006, show_default=True, help="0 takes any that is free.")
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--open/--no-open", "open_browser", default=True, help="Whether to open the browser.")
def view(directory: str, port: int, address: str, open_browser: bool) -> None:
    """Show the run, or the runs, in DIRECTORY (or at a URL) in the browser, live or finished."""
    server = serve(directory, port=port, address=address)
    click.echo(f"Showing {directory} at {server.address} (Ctrl+C ends)")
    if open_browser:
        webbrowser.open(server.address)
    try:
        server.wait()
    except KeyboardInterrupt:
        server.stop()
