"""`rankscope quantities`: what was derived of a run's modules and parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from pathlib import Path

import click
import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from ..sketch.quantities import COMBINED, SKETCHED
from ..sketch.writing import writing
from .query import open_run
from .selection import Steps, is_one, nearest, steps_from


@click.command()
@click.argument("run")
@click.argument("quantity", required=False)
@click.option("--of", help="Only modules and parameters in whose name this expression is found.")
@click.option("--step", type=int, help="One step.")
@click.option("--steps", metavar="A:B", help="Steps A to B, both included; by default all.")
@click.option("--csv", type=click.Path(path_type=Path), help="Write every number there.")
def quantities(
    run: str,
    quantity: str | None,
    of: str | None,
    step: int | None,
    steps: str | None,
    csv: Path | None,
) -> None:
    """List what was derived in RUN (a folder or a URL), or show one QUANTITY of it."""
    opened = open_run(run)
    if quantity is None:
        if step is not None or steps is not None or csv is not None:
            raise click.UsageError("Steps and --csv are of one quantity: name it after the run.")
        own = {one.name for one in opened.quantity_infos}
        click.echo("\n".join(_listed(opened.quantities(of), own)))
        return
    wanted = steps_from(step, steps)
    found = opened.quantity(quantity, of=of, steps=wanted)
    if csv is not None:
        with writing(csv):
            found.to_csv(csv, index=False)
    if not len(found):
        click.echo(_nothing(quantity, wanted, opened.quantity(quantity, of=of)))
        return
    console = Console() if Console().is_terminal else Console(width=120)
    console.print(_table(found))


def _listed(found: pd.DataFrame, own: Set[str]) -> Iterator[str]:
    """The quantities, and of how many modules or parameters; those of sketches in one line.

    Args:
        own: the names of those that were derived on request.
    """
    asked = found[found["quantity"].isin([*own - SKETCHED.keys()])]
    for name in sorted(set(asked["quantity"])):
        what = sorted(set(asked.loc[asked["quantity"] == name, "of"]))
        more = f", and {len(what) - 4} more" if len(what) > 4 else ""
        yield f"{name}: of {', '.join(what[:4])}{more}"
    if not len(asked):
        yield "Nothing was derived: ask for it by observe(…, quantities=…), see docs/quantities.md."
    sketched = [name for name in SKETCHED if name in set(found["quantity"])]
    if sketched:
        yield f"Sketches tell, of every site: {', '.join(sketched)}."
    combined = [name for name in COMBINED if name in set(found["quantity"]) - own]
    if combined:
        yield f"Sketches of several kinds tell: {', '.join(combined)}."


def _nothing(quantity: str, steps: Steps, known: pd.DataFrame) -> str:
    """That there is no number in some steps, and where there are.

    Args:
        known: the numbers in all steps.
    """
    recorded = np.unique(known["step"].to_numpy(np.int64))
    if not is_one(steps):
        there = f"it was in {recorded[0]} to {recorded[-1]}" if len(recorded) else "nor in others"
        return f"{quantity} was not measured in these steps; {there}."
    return f"{quantity} was not measured in step {steps}; {nearest(recorded, int(steps))}."


def _table(found: pd.DataFrame) -> Table:
    """One row a module, parameter, part and place in a vector."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("of", overflow="fold")
    series = dict[tuple[str, str, int], list[float]]()
    columns = (found[name].tolist() for name in ("of", "part", "index", "value"))
    for of, part, index, value in zip(*columns, strict=True):
        series.setdefault((of, part, index), []).append(value)
    shown = [any(key[place] for key in series) for place in (1, 2)]
    for name, is_shown in zip(("part", "index"), shown, strict=True):
        if is_shown:
            table.add_column(name, justify="right")
    for name in ("steps", "first", "last", "least", "largest"):
        table.add_column(name, justify="right")
    for (of, *rest), values in sorted(series.items()):
        known = [value for value in values if not math.isnan(value)] or [math.nan]
        where = [str(one) for one, is_shown in zip(rest, shown, strict=True) if is_shown]
        numbers = (values[0], values[-1], min(known), max(known))
        table.add_row(of, *where, str(len(values)), *(f"{value:.4g}" for value in numbers))
    return table
