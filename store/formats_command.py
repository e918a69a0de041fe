"""`rankscope formats`: which sites would break in which number formats, and a precision recipe."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np
import xarray as xr

from ..sketch.errors import SettingError
from ..sketch.writing import writing
from .format_table import BREAKS, FITS, MAY_BREAK, VERDICTS, Scale, lacking
from .query import NARROW_FORMATS, Run, open_run
from .recipes import recipe
from .selection import steps_from
from .sketched import fullest_step

MOST = 40
"""Sites that are listed."""


@click.command()
@click.argument("run")
@click.option(
    "--step",
    type=int,
    help="One step; by default the last in which nearly all sites have histograms.",
)
@click.option("--steps", metavar="A:B", help="The worst of steps A to B, both included; : is all.")
@click.option("--kind", multiple=True, help="Only sites of this kind; may be given again.")
@click.option("--name", help="Only sites in whose name this regular expression is found.")
@click.option(
    "--format",
    "formats",
    multiple=True,
    help="A format, as e4m3 or mxfp4_e2m1; may be given again, in order of preference.",
)
@click.option(
    "--scale",
    multiple=True,
    metavar="N|KIND=N|site|kind",
    help="Multiply by 2^N, all or a kind; or by the best power of two of each site, or kind.",
)
@click.option("--overflow", default=0.0, show_default=True, help="Share that may overflow.")
@click.option("--underflow", default=0.01, show_default=True, help="Share that may become zero.")
@click.option("--csv", "csv", type=click.Path(path_type=Path), help="Write the table there.")
@click.option("--recipe", "file", type=click.Path(path_type=Path), help="Write a recipe: JSON.")
def formats(
    run: str,
    step: int | None,
    steps: str | None,
    kind: Sequence[str],
    name: str | None,
    formats: Sequence[str],
    scale: Sequence[str],
    overflow: float,
    underflow: float,
    csv: Path | None,
    file: Path | None,
) -> None:
    """Say which tensors of RUN (a folder or a URL) would break in which number formats."""
    opened = open_run(run)
    table = opened.format_table(
        # Of a run without histograms: all steps, and the answer that nothing is known.
        fullest_step(opened.records())
        if step is None and steps is None
        else steps_from(step, steps),
        kind=kind or None,
        name=name,
        formats=formats or NARROW_FORMATS,
        scale=_scale(scale),
        most_overflow=overflow,
        most_underflow=underflow,
    )
    if csv is not None:
        with writing(csv):
            table.to_dataframe().to_csv(csv)
    if file is not None:
        text = json.dumps(recipe(table, run=opened.name), indent=2)
        with writing(file):
            file.write_text(text + "\n", encoding="utf-8")
    click.echo("\n".join(lines_of(table, opened)))


def lines_of(table: xr.Dataset, run: Run) -> Iterator[str]:
    """How many sites fit each format, and those that do not, the worst first."""
    steps = [table.attrs[end] for end in ("first_step", "last_step") if end in table.attrs]
    if not steps:
        recorded = run.records()["step"]
        others = f" Recorded are {recorded.min()} to {recorded.max()}." if len(recorded) else ""
        yield f"Nothing was recorded in these steps.{others}"
        return
    first, last = steps
    yield f"Step {first}" if first == last else f"The worst of steps {first} to {last}"
    for place, name in enumerate(table["format"].values):
        verdicts = Counter(table["verdict"].values[:, place].tolist())
        told = ", ".join(f"{verdicts[one]} {_of(one)}" for one in VERDICTS if verdicts[one])
        yield f"  {name}: {told}"
    yield from _broken(table)


def _of(verdict: str) -> str:
    return {BREAKS: "break", MAY_BREAK: "may break", FITS: "fit"}.get(verdict, verdict)


def _broken(table: xr.Dataset) -> Iterator[str]:
    low = {one: table[f"{one}_low"].values for one in ("overflow", "underflow")}
    high = {one: table[f"{one}_high"].values for one in low}
    verdicts, shifts = table["verdict"].values, table["shift"].values
    found = [
        (float(sum(high[one][row, column] for one in high)), row, column)
        for row, column in np.argwhere((verdicts == BREAKS) | (verdicts == MAY_BREAK)).tolist()
    ]
    for _, row, column in sorted(found, reverse=True)[:MOST]:
        lost = ", ".join(
            f"{_between(low[one][row, column], high[one][row, column])} {what}"
            for one, what in (("overflow", "overflow"), ("underflow", "become zero"))
            if high[one][row, column] > 0
        )
        scaled = f" times 2^{shifts[row, column]}" if shifts[row, column] else ""
        name, label = table["format"].values[column], table["site"].values[row]
        yield f"{label}{scaled} {verdicts[row, column]} in {name}: {lost}"
    if len(found) > MOST:
        yield f"and {len(found) - MOST} more; --csv writes them all"
    for what, count in Counter(lacking(table).tolist()).items():
        if what:
            yield f"{count} site{' has' if count == 1 else 's have'} {what} in these steps."


def _between(low: float, high: float) -> str:
    return f"{low:.3%}" if low == high else f"{low:.3%} to {high:.3%}"


def _scale(given: Sequence[str]) -> Scale:
    """One for all, or one a kind."""
    if not given:
        return 0
    if len(given) == 1 and given[0] in ("site", "kind"):
        return "site" if given[0] == "site" else "kind"
    by_kind = dict[str, int]()
    try:
        if len(given) == 1 and "=" not in given[0]:
            return int(given[0])
        for one in given:
            kind, _, exponent = one.partition("=")
            by_kind[kind] = int(exponent)
    except ValueError:
        raise SettingError(
            f"--scale must be as 4, weight=4, site or kind, got {' and '.join(given)}."
        ) from None
    return by_kind
