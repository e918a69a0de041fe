"""`rankscope runs`, `compare`, `export`, `prune`: what runs there are, and what to do with them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from ..sketch.jsontext import json_text
from ..sketch.table import FIRST_EXPONENT, LAST_EXPONENT
from .compare import Comparison
from .export import export_zarr
from .logframe_file import check_ending, write_logframe
from .query import open_run
from .reader import open_reader
from .retention import doomed
from .runs import RunSummary, list_runs
from .selection import STEP
from .writer import RunWriter

MOST_PARTED = 12


@click.command()
@click.argument("directory", envvar="RANKSCOPE_DIR", default="rankscope-runs")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array instead of a table.")
def runs(directory: str, as_json: bool) -> None:
    """List the runs in DIRECTORY, a folder or a URL (s3, gs, az), the latest first.

    Without one it is RANKSCOPE_DIR, else ./rankscope-runs.
    """
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


@click.command()
@click.argument("run")
@click.option("--zarr", "folder", help="A new folder for a plain Zarr store, as xarray reads it.")
@click.option("--exponents/--no-exponents", default=True, help="Whether Zarr has histograms.")
@click.option("--logframe", "file", help="A .parquet or .csv file for a LogFrame.")
@click.option(
    "--between",
    type=(int, int),
    default=(FIRST_EXPONENT, LAST_EXPONENT),
    show_default=True,
    help="First and last exponent with a column of its own in a LogFrame.",
)
def export(
    run: str, folder: str | None, exponents: bool, file: str | None, between: tuple[int, int]
) -> None:
    """Write RUN (a folder or a URL) for others: as plain Zarr, or as a LogFrame of tandv."""
    if folder is None and file is None:
        raise click.UsageError("Say where to: --zarr DIR, --logframe FILE, or both.")
    if file is not None:
        check_ending(Path(file))
    stored = open_run(run)
    if folder is not None:
        written = export_zarr(stored, Path(folder), exponents=exponents)
        sizes = ", ".join(f"{size} {axis}" for axis, size in written.items())
        click.echo(f"{folder} holds {sizes}.")
    if file is not None:
        frame = stored.logframe(exponents=between)
        write_logframe(frame, file)
        click.echo(f"{file} holds {len(frame)} rows of {frame.shape[1]} columns.")
    pruned = int(stored.records()["deleted"].to_numpy().sum())
    if pruned:
        click.echo(f"The detail of {pruned} steps was pruned: they are left out.")


@click.command()
@click.argument("one")
@click.argument("other")
@click.option("--statistic", default="rms", show_default=True, help="Whose numbers are compared.")
@click.option("--kind", help="Only sites of this kind.")
@click.option("--name", help="Only sites in whose name this regular expression is found.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=0.01,
    show_default=True,
    help="By which share of the larger number they may differ.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(
    one: str,
    other: str,
    statistic: str,
    kind: str | None,
    name: str | None,
    tolerance: float,
    as_json: bool,
) -> None:
    """Say where the runs ONE and OTHER (folders or URLs) part: step, site, and how far.

    Ends with 1 if their numbers differ by more than the tolerance, else with 0.
    """
    found = open_run(one).compare(
        open_run(other), statistic, kind=kind, name=name, tolerance=tolerance
    )
    if as_json:
        sites = json.loads(found.sites.reset_index().to_json(None, orient="records") or "[]")
        partings = {
            part: asdict(where) if (where := getattr(found, part)) else None
            for part in ("bits", "numbers")
        }
        rest = ("statistic", "tolerance", "steps", "first_step", "last_step", "bits_unknown")
        told = {key: getattr(found, key) for key in (*rest, "only_one", "only_other", "text")}
        training = [asdict(one) for one in found.training]
        click.echo(json_text(told | partings | {"training": training, "sites": sites}))
    else:
        click.echo("\n".join(comparison_lines(found)))
    if found.numbers is not None:
        raise SystemExit(1)


@click.command()
@click.argument("run")
@click.option("--keep-steps", type=click.IntRange(min=1), required=True, help="How many to keep.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
def prune(run: str, keep_steps: int, dry_run: bool) -> None:
    """Delete the detail of all recorded steps of RUN (a folder or a URL) but the last ones.

    It goes in whole chunks of 512 records: more may be kept than asked, never less. That a step was
    recorded stays, with its training statistics.
    """
    reader = open_reader(run)
    found = doomed(reader.arrays, reader.state, keep_steps) if reader.state.created else None
    if found is None or found.first == found.stop:
        click.echo(f"Nothing of {run} can be deleted: it keeps {reader.state.records} records.")
        return
    if not dry_run:
        with RunWriter.open(run, run=reader.snapshot.run) as writer:
            writer.prune(keep_steps, free=True)
    steps = reader.facts()[found.first : found.stop, STEP]
    click.echo(
        f"{'Would delete' if dry_run else 'Deleted'} the detail of {len(steps)} records, of steps "
        f"{steps.min()} to {steps.max()}: {found.size_bytes} bytes."
    )


def comparison_lines(found: Comparison) -> Iterator[str]:
    """Where two runs part, for a terminal: the answer, and the sites that part first."""
    yield found.text
    parted = found.sites.dropna(subset=["numbers_step"]).sort_values("numbers_step", kind="stable")
    if len(parted):
        yield f"{len(parted):,} of {len(found.sites):,} sites part; the first:"
    columns = parted.head(MOST_PARTED)[
        ["numbers_step", "largest", "largest_step", "nonfinite_step"]
    ]
    for site, step, largest, at, nonfinite in columns.itertuples(name=None):
        times = f"{2.0 ** float(largest):.3g} times as large in step {at}"
        if np.isnan(float(largest)):
            times = "it is a number in one of them alone"
        told = found.with_nonfinite(times, float(largest), nonfinite)
        yield f"  step {step:>8}  {site}: {told}"
    for run, labels in (("first", found.only_one), ("second", found.only_other)):
        if labels:
            more = ", …" if len(labels) > 3 else ""
            sites = "site" if len(labels) == 1 else "sites"
            yield f"Only the {run} run has {len(labels):,} {sites}: {', '.join(labels[:3])}{more}"


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
            run.ending.brief,
        )
    return table


def shown(moment: datetime | None) -> str:
    """A time as people write it, in their own time zone."""
    return "" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def plain(value: object) -> str:
    """What JSON has no word for."""
    return value.isoformat() if isinstance(value, datetime) else str(value)
