"""`rankscope report`: a run's health as one file."""

from __future__ import annotations

import click

from ...store.query import open_run
from ..figures.colours import THEMES
from .writing import write_report


@click.command()
@click.argument("run")
@click.option(
    "-o", "--output", default="report.html", show_default=True, metavar="FILE",
    help="Where to write it; a file that is there is replaced.",
)  # fmt: skip
@click.option("--site", default="", metavar="LABEL", help="Show this tensor, whatever was found.")
@click.option("--step", type=int, default=None, help="Show tensors at this step.")
@click.option(
    "--theme", type=click.Choice(list(THEMES)), default="light", show_default=True,
    help="Its colours.",
)  # fmt: skip
def report(run: str, output: str, site: str, step: int | None, theme: str) -> None:
    """Write what is known of RUN (a folder or a URL) as one HTML file that opens offline.

    What is wrong and where it began, each finding with its evidence, the training curves, and what
    was not observed.
    """
    path = write_report(open_run(run), output, site=site, step=step, theme=theme)
    click.echo(f"Wrote {path}, {path.stat().st_size / 1e6:.1f} MB.")
