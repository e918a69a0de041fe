"""`rankscope collect`: receive what the ranks of a job measure, and store it."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import click

from ..rules.book import rule_book
from ..settings.options import Said, insecure_option, log_format_option
from ..sinks.opening import Metrics, open_sinks, parse_sink
from ..store.place import place_of
from ..wire.address import parse_address
from ..wire.health import HealthServer, parse_place
from ..wire.keys import CollectorKeys, read_keys
from ..wire.logs import log_to_stderr
from ..wire.memory import raise_file_limit, use_one_heap
from ..wire.stopping import StopSignal, input_has_ended, leave
from .health import pipeline_of
from .joiner import JoinerSettings
from .keeper import per_rank
from .service import Service
from .settings import CollectorSettings

TAKE_OVER_S = 30.0
"""With `--until-done` it waits so long for the collector of the job before to let go of a run."""


@click.command(context_settings={"auto_envvar_prefix": "RANKSCOPE_COLLECT"})
@click.option(
    "--bind",
    type=Said(parse_address),
    default="tcp://127.0.0.1:7600",
    show_default=True,
    help="Where to listen; port * takes a free one.",
)
@click.option(
    "--store",
    type=Said(place_of),
    default="rankscope-runs",
    show_default=True,
    help="Folder of the runs, or a URL: s3://, gs:// or az://BUCKET/FOLDER.",
)
@click.option("--run", multiple=True, help="Take only this run; may be said several times.")
@click.option(
    "--until-done",
    is_flag=True,
    help="End when every rank has left or is gone. With --run it waits for a collector of the run "
    "that is about to end.",
)
@click.option(
    "--while-input",
    is_flag=True,
    help="Serve while the input is open, then as with --until-done: for a process that starts this "
    "one, and may be killed.",
)
@click.option("--announce", is_flag=True, help="Print one line of JSON once it listens.")
@click.option(
    "--keys",
    type=Said(lambda folder: folder in ("", "-") or CollectorKeys.load(folder)),
    metavar="DIR",
    help="Folder of the collector's keys, see `rankscope keygen`; - reads them from the input.",
)
@insecure_option
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
@click.option(
    "--keep-per-rank",
    type=Said(per_rank),
    default="alert",
    show_default=True,
    help="Keep all that single ranks said: of `all`, of `none`, of ranks as `0,3`, or of the "
    "records around an alert.",
)
@click.option("--rules", metavar="FILE", help="Settings of the rules; otherwise those of --config.")
@click.option(
    "--memory",
    type=click.IntRange(min=16),
    default=256,
    show_default=True,
    help="MiB that frames may take until they are stored; above it agents are held back.",
)
@click.option(
    "--health",
    type=Said(parse_place),
    help="Answer /healthz and /counters over HTTP, as 127.0.0.1:7610.",
)
@click.option(
    "--sink",
    type=Said(parse_sink),
    multiple=True,
    envvar="RANKSCOPE_SINKS",
    metavar="KIND:TARGET",
    help="Pass numbers and alerts on to jsonl:PATH, tensorboard:DIR, wandb:PROJECT or prometheus "
    "(at /metrics of --health), alerts to webhook:URL; may be said several times, or in "
    "RANKSCOPE_SINKS, with blanks between.",
)
@log_format_option
def collect(
    *,
    bind: str,
    store: str,
    run: tuple[str, ...],
    until_done: bool,
    while_input: bool,
    announce: bool,
    keys: str | None,
    insecure: bool,
    deadline: float,
    lost_after: float,
    keep_steps: int | None,
    keep_per_rank: str,
    rules: str | None,
    memory: int,
    health: str | None,
    sink: tuple[str, ...],
    log_format: str,
) -> None:
    """Receive what the ranks of a job measure and store it."""
    use_one_heap()
    log_to_stderr(as_json=log_format == "json")
    joiner = JoinerSettings(
        deadline_s=deadline,
        lost_after_s=lost_after,
        open_bytes=memory << 19,
        retain_bytes=memory << 18,
        per_rank=per_rank(keep_per_rank),
        rules=rule_book(rules),
    )
    settings = CollectorSettings(
        joiner=joiner,
        runs=frozenset(run),
        keep_records=keep_steps,
        take_over_s=TAKE_OVER_S if until_done else 0.0,
        held_bytes=memory << 20,
    )
    stop = StopSignal()
    raise_file_limit()
    told, metrics = open_sinks(sink)
    if metrics is not None and health is None:
        raise click.UsageError(
            "`--sink prometheus` is read at /metrics of `--health`: say `--health 127.0.0.1:7610`."
        )
    with ExitStack() as cleanup:
        cleanup.callback(told.close)
        loaded = _keys(keys)
        service = Service(
            bind, store, settings=settings, keys=loaded, insecure=insecure, sinks=told
        )
        cleanup.callback(service.close)
        said = {"address": service.address}
        if health is not None:
            tells = None if metrics is None else _told_by(metrics, service)
            server = HealthServer(health, lambda: service.health, insecure=insecure, metrics=tells)
            cleanup.callback(server.close)
            said["health"] = server.address
        if announce:
            print(json.dumps(said), flush=True)
        guard = "with keys" if keys else "without keys"
        logging.getLogger(__name__).info(
            "Listening on %s, %s, storing in %s.", service.address, guard, store
        )
        if while_input:
            service.run(lambda: stop() or input_has_ended(), until_done=until_done)
        service.run(stop, until_done=until_done or while_input)
    leave()


def _told_by(metrics: Metrics, service: Service) -> Callable[[str], tuple[str, bytes]]:
    """What answers `/metrics`: what the sink has taken, and how the collector is."""

    def tell(accept: str) -> tuple[str, bytes]:
        health = service.health
        return metrics.render(accept, pipeline_of(health, time.monotonic()), health.sinks)

    return tell


def _keys(given: str | None) -> CollectorKeys | None:
    if not given:
        return None
    return read_keys(sys.stdin.readline()) if given == "-" else CollectorKeys.load(given)
