"""`rankscope import`: a run of a LogFrame."""

from __future__ import annotations

from pathlib import Path

import click

from ..sketch.errors import LogFrameError
from ..store.place import place_of
from .files import read_logframe
from .importing import import_logframe
from .schema import Exponents


@click.command("import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--store",
    envvar="RANKSCOPE_DIR",
    default="rankscope-runs",
    show_default=True,
    help="A folder or a URL.",
)
@click.option("--run", help="Name of the run; by default that of the file.")
@click.option("--trust-pickle", is_flag=True, help="Read a pickle: you trust whoever wrote it.")
@click.option(
    "--exponents",
    type=click.Choice(["auto", "tandv", "documented"]),
    default="auto",
    show_default=True,
    help="Column n holds: tandv, from 2^(n-1) on; documented, from 2^n on; auto: as FILE says.",
)
def import_(
    file: Path, store: str, run: str | None, trust_pickle: bool, exponents: Exponents
) -> None:
    """Make a run of FILE, a LogFrame of Track & Visualize (.parquet, .csv or .pkl)."""
    name = run or file.stem
    if not name or "/" in name or name.startswith("."):
        raise click.UsageError(f"A run cannot be called {name!r}; choose another --run.")
    frame = read_logframe(file, trust_pickle=trust_pickle, exponents=exponents)
    place = place_of(store) / name
    try:
        time_ns = file.stat().st_mtime_ns
    except OSError as error:
        raise LogFrameError(f"Cannot read {file}: {error.strerror or error}.") from error
    done = import_logframe(frame, place, run=name, time_ns=time_ns)
    click.echo(f"{place}: {done.records} records of {done.sites} sites; alerts: {done.alerts}.")
    for text in done.not_observed:
        click.echo(text)
