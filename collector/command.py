"""`rankscope collect`: receive what the ranks of a job measure, and store it."""

from __future__ import annotations

import json
import logging
import signal
import sys
from types import FrameType

import click

from .joiner import JoinerSettings
from .memory import use_one_heap
from .service import Service
from .settings import CollectorSettings


@click.command()
@click.option(
    "--bind",
    default="tcp://127.0.0.1:7600",
    show_default=True,
    help="Where to listen; port * takes a free one.",
)
@click.option(
    "--store",
    default="rankscope-runs",
    show_default=True,
    help="Folder of the runs, or a URL: s3://, gs:// or az://BUCKET/FOLDER.",
)
@click.option("--run", "runs", multiple=True, help="Take only this run; may be said several times.")
@click.option("--until-done", is_flag=True, help="End when every rank has left or is gone.")
@click.option("--announce", is_flag=True, help="Print one line of JSON once it listens.")
@click.option("--insecure", is_flag=True, help="Allow an address that other machines reach.")
@click.option(
    "--deadline",
    type=click.FloatRange(min=0.0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds that a record waits for its last rank.",
)
@click.option(
    "--lost-after",
    type=click.FloatRange(min=0.0, min_open=True),
    default=30.0,
    show_default=True,
    help="Seconds of silence after which a rank is taken for lost.",
)
@click.option(
    "--keep-steps",
    type=click.IntRange(min=1),
    help="Delete the detail of recorded steps older than the last N. Otherwise all is kept.",
)
def collect(
    *,
    bind: str,
    store: str,
    runs: tuple[str, ...],
    until_done: bool,
    announce: bool,
    insecure: bool,
    deadline: float,
    lost_after: float,
    keep_steps: int | None,
) -> None:
    """Receive what the ranks of a job measure and store it."""
    use_one_heap()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    joiner = JoinerSettings(deadline_s=deadline, lost_after_s=lost_after)
    settings = CollectorSettings(joiner=joiner, runs=frozenset(runs), keep_records=keep_steps)
    stop = _StopSignal()
    service = Service(bind, store, settings=settings, insecure=insecure)
    if announce:
        print(json.dumps({"address": service.address}), flush=True)
    else:
        logging.getLogger(__name__).info("Listening on %s, storing in %s.", service.address, store)
    try:
        service.run(stop, until_done=until_done)
    finally:
        service.close()


class _StopSignal:
    """Becomes true with SIGINT or SIGTERM."""

    def __init__(self) -> None:
        self._stopped = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def __call__(self) -> bool:
        return self._stopped

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
