"""Make the runs of the bench: `python -m tests.rules.runs --store FOLDER [NAME …]`, in the root.

Without names all are made, the faulty ones first. Of each it prints the fault, and what the watch
says first: the table of docs/rules.md.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import click

from rankscope.rules import why
from rankscope.sketch.labels import rank_words
from rankscope.store import open_run

from ..end_to_end.launching import run_ranks
from .rank_job import JOBS, train

FINISH_S = 60.0
"""How long collectors may take to finish their runs after the ranks have left."""


def make(name: str, folder: Path, seed: int = 0) -> Path:
    """Train a job with a collector of its own; the path of its finished run.

    A run that was there under that name gives way.
    """
    return make_all([name], folder, seed)[name]


def make_all(names: Sequence[str], folder: Path, seed: int = 0) -> dict[str, Path]:
    """`make` several."""
    paths = {name: folder / name for name in names}
    for path in paths.values():
        shutil.rmtree(path, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if JOBS[name].ranks == 1:
            train([name], folder, seed)
        else:
            arguments = [str(folder.absolute()), str(seed), name]
            output = folder / f"{name}.output"
            run_ranks("tests.rules.rank_job", JOBS[name].ranks, arguments, output)
    deadline = time.monotonic() + FINISH_S
    for path in paths.values():
        while not open_run(path).finished:
            if time.monotonic() > deadline:
                raise TimeoutError(f"The run at {path} was not finished within {FINISH_S:g} s.")
            time.sleep(0.1)
    return paths


@click.command()
@click.option("--store", type=click.Path(path_type=Path), required=True, help="Folder of the runs.")
@click.option("--seed", default=0, show_default=True)
@click.argument("names", nargs=-1, type=click.Choice(list(JOBS)))
def main(store: Path, seed: int, names: tuple[str, ...]) -> None:
    """Train the jobs of these names, or all; tell of each what is wrong, and what was found."""
    click.echo("| run | fault | found first | incidents |\n|---|---|---|---|")
    for name in names or JOBS:
        found, job = why(open_run(make(name, store, seed))), JOBS[name]
        fault, blamed = job.fault, job.fault.ranks if job.fault and job.ranks > 1 else ()
        wrong = "none" if fault is None else place(fault.sites[0], fault.step, blamed)
        first = "nothing"
        if found.findings:
            one = found.findings[0]
            ranks = tuple(at.rank for at in one.ranks if job.ranks > 1)
            first = f"{one.rule}: {place(one.site, one.first_step, ranks)}"
        click.echo(f"| {name} | {wrong} | {first} | {len(found.findings)} |")


def place(site: str, step: int, ranks: Sequence[int]) -> str:
    """Where something is, for a table."""
    return f"{site or 'the run'}, step {step}" + (f", {rank_words(ranks)}" if ranks else "")


if __name__ == "__main__":
    main()
