"""`rankscope runs`: what runs a folder holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

import click
from rich.console import Console
from rich.table import Table

from .runs import RunSummary, list_runs


@click.command()
@click.argument("directory", default="rankscope-runs")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array instead of a table.")
def runs(directory: str, as_json: bool) -> None:
    """List the runs in DIRECTORY, a folder or a URL (s3, gs, az), the latest first."""
    found = list_runs(directory)
    if as_json:
        click.echo(
            json.dumps([asdict(run) | {"path": run.path} for run in found], default=plain, indent=2)
        )
    elif found:
        # Wide enough for every column where output is a file or a pipe.
        console = Console() if Console().is_terminal else Console(width=160)
        console.print(table_of(found))
    else:
        click.echo(f"{directory} holds no runs yet.")


def table_of(found: Sequence[RunSummary]) -> Table:
    """The runs as a table for the terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold")
    for name in ("steps", "records", "attempts", "ranks"):
        table.add_column(name, justify="right")
    for name in ("started", "updated", "state"):
        table.add_column(name)
    for run in found:
        steps = "" if run.first_step is None else f"{run.first_step} to {run.last_step}"
        table.add_row(
            run.name,
            steps,
            str(run.records),
            str(run.attempts),
            str(run.world_size),
            shown(run.started),
            shown(run.updated),
            "finished" if run.finished else "open",
        )
    return table


def shown(moment: datetime | None) -> str:
    """A time as people write it, in their own time zone."""
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def plain(value: object) -> str:
    """What JSON has no word for."""
    return value.isoformat() if isinstance(value, datetime) else str(value)
