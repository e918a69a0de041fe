"""News as runs of Weights & Biases: one for each attempt, in a group for each run.

How it is reached is W&B's own affair: WANDB_MODE=offline writes to ./wandb (or WANDB_DIR) what
`wandb sync` sends later; else there must be a key, by `wandb login` or in WANDB_API_KEY.
"""

from __future__ import annotations

import hashlib

import numpy as np
import wandb

from ..sketch.errors import SettingError
from ..sketch.table import BINS, FIRST_EXPONENT, Ints
from .news import Alarm, Ended, Found, News, Numbers, Table, Trouble

MOST_ATTEMPTS = 2
"""Of a run that are open: records of the last but one may still be patched."""
EDGES = np.arange(FIRST_EXPONENT, FIRST_EXPONENT + BINS + 1, dtype=np.float64)


class WeightsAndBiases:
    """Logs into a project, as `PROJECT` or `ENTITY/PROJECT`.

    Raises:
        SettingError: W&B does not know who we are.
    """

    def __init__(self, project: str) -> None:
        entity, _, self._project = project.rpartition("/")
        self._entity = entity or None
        self._open: dict[str, dict[str, wandb.Run]] = {}
        """By run and launch: the run there."""
        if wandb.setup().settings.mode == "online":
            try:
                # Asks on a terminal, now rather than from a thread; but does not ask the server.
                wandb.login(verify=False)
            except wandb.Error as error:
                raise SettingError(
                    f"`--sink wandb:{project}` cannot log in: {error} Or say WANDB_MODE=offline."
                ) from error

    def take(self, news: News) -> None:
        """Log it; W&B's own process sends it."""
        match news:
            case Numbers():
                run = self._run(news.run, news.launch, news.attempt)
                run.log(payload_of(news))
            case Found(incident=incident):
                run = self._run(news.run, news.launch, incident.attempt)
                is_over, cause = incident.last_step is not None, incident.cause
                over = f" Over since step {incident.last_step}." if is_over else ""
                title = f"{cause.rule}, step {incident.first_step}"
                level = "INFO" if is_over else "ERROR" if incident.severity == "error" else "WARN"
                run.alert(title=title, text=incident.text + over, level=level)
            case Trouble():
                run = self._run(news.run, news.launch, news.attempt)
                title = f"{news.kind.replace('-', ' ')}, step {news.step}"
                run.alert(title=title, text=news.text, level="ERROR")
            case Alarm():
                pass  # it is part of an incident
            case Ended(run=run):
                self._finish(run)

    def close(self) -> None:
        """Finish all runs, and end W&B's own process."""
        for run in list(self._open):
            self._finish(run)
        wandb.teardown()

    def _run(self, name: str, launch: str, attempt: int) -> wandb.Run:
        launches = self._open.setdefault(name, {})
        if launch not in launches:
            launches[launch] = self._begin(name, launch, attempt)
            if len(launches) > MOST_ATTEMPTS:
                launches.pop(next(iter(launches))).finish()
        return launches[launch]

    def _begin(self, name: str, launch: str, attempt: int) -> wandb.Run:
        settings = wandb.Settings(
            silent=True,
            console="off",  # our log is not the training's
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,  # nor is this machine's load
        )
        run = wandb.init(
            entity=self._entity,
            project=self._project,
            group=name,
            name=name if attempt == 0 else f"{name} (attempt {attempt})",
            # A collector that is started again goes on with the same one.
            id=hashlib.sha256(f"{name}\n{launch}".encode()).hexdigest()[:16],
            resume="allow",
            reinit="create_new",
            config={"run": name, "attempt": attempt, "source": "rankscope"},
            settings=settings,
        )
        # Patched records come again, after later steps: W&B's own step knows only forward.
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return run

    def _finish(self, name: str) -> None:
        for run in self._open.pop(name, {}).values():
            run.finish()


def payload_of(news: Numbers) -> dict[str, object]:
    """What is logged of a record."""
    logged: dict[str, object] = {"step": news.step, **news.values}
    for group, counts in news.exponents.items():
        histogram = histogram_of(counts)
        if histogram is not None:
            logged[f"{group}/exponents"] = histogram
    if news.table is not None:
        logged["sites"] = table_of(news.table)
    return logged


def histogram_of(counts: Ints) -> wandb.Histogram | None:
    """A histogram over log2 |x|, a bin each exponent; None for no elements."""
    held = np.flatnonzero(counts)
    if not len(held):
        return None
    first, last = int(held[0]), int(held[-1])
    return wandb.Histogram(np_histogram=(counts[first : last + 1], EDGES[first : last + 2]))


def table_of(table: Table) -> wandb.Table:
    """A table as the page shows it."""
    rows = zip(table.sites, table.values.tolist(), strict=True)
    return wandb.Table(
        columns=["site", *table.statistics],
        data=[[site, *(None if value != value else value for value in row)] for site, row in rows],
    )
