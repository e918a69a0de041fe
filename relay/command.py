"""`rankscope relay`: take in what ranks measure, keep it, and send it on."""

from __future__ import annotations

import json
import logging
import re
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import click

from ..settings.options import Said, insecure_option, log_format_option
from ..wire.address import parse_address, parse_destination
from ..wire.health import HealthServer, parse_place
from ..wire.keys import RelayKeys
from ..wire.logs import log_to_stderr
from ..wire.memory import raise_file_limit
from ..wire.stopping import StopSignal, input_has_ended, leave
from .service import Service
from .settings import RelaySettings

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Bytes(click.ParamType):
    """A number of bytes: `512MiB`, `2G`, `1000000`.

    Args:
        least: fewer are refused.
    """

    name = "size"

    def __init__(self, least: int = 1) -> None:
        self._least = least

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", str(value), re.IGNORECASE)
        if match is None:
            self.fail(f"A size looks like 512MiB, 2G or 1000000, got {value!r}.", param, ctx)
        size = int(float(match[1]) * UNITS[match[2].upper()])
        if size < self._least:
            self.fail(f"It must be {self._least} at least, got {value!r}.", param, ctx)
        return size


@click.command(context_settings={"auto_envvar_prefix": "RANKSCOPE_RELAY"})
@click.option(
    "--to",
    type=Said(parse_destination),
    required=True,
    help="The collector, or the next relay: tcp://host:7600.",
)
@click.option(
    "--bind",
    type=Said(parse_address),
    default="tcp://127.0.0.1:7601",
    show_default=True,
    help="Where to listen; port * takes a free one.",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder in which frames are kept until they are stored; without it, memory.",
)
@click.option(
    "--spool-bytes",
    type=Bytes(),
    default="2GiB",
    show_default=True,
    help="What the spool holds at most; beyond it steps are left out.",
)
@click.option(
    "--min-free",
    type=Bytes(least=0),
    default="1GiB",
    show_default=True,
    help="While the disk has less free than this the spool does not grow.",
)
@click.option(
    "--memory-bytes",
    type=Bytes(),
    default="512MiB",
    show_default=True,
    help="What it holds in memory before agents have to wait.",
)
@click.option("--merge", is_flag=True, help="Send one frame a step for all ranks that come here.")
@click.option("--until-done", is_flag=True, help="End when every rank has left or is gone.")
@click.option(
    "--first-agent",
    type=click.FloatRange(min=0.0),
    default=60.0,
    show_default=True,
    help="With --until-done: seconds to wait for the first rank; 0 sends what is in the spool.",
)
@click.option(
    "--while-input",
    is_flag=True,
    help="Serve while the input is open, then end when nobody is connected and all is stored: for "
    "a process that starts this one, and knows when the last rank has ended. SIGTERM bounds what "
    "comes after the input has ended, to 5 s.",
)
@click.option("--announce", is_flag=True, help="Print one line of JSON once it listens.")
@click.option(
    "--keys",
    type=Said(RelayKeys.load),
    metavar="DIR",
    help="Folder of the relay's keys, see `rankscope keygen --relay`.",
)
@insecure_option
@click.option(
    "--health",
    type=Said(parse_place),
    help="Answer /healthz and /counters over HTTP, as 127.0.0.1:7611.",
)
@log_format_option
def relay(
    *,
    to: str,
    bind: str,
    spool: Path | None,
    spool_bytes: int,
    min_free: int,
    memory_bytes: int,
    merge: bool,
    until_done: bool,
    while_input: bool,
    first_agent: float,
    announce: bool,
    keys: str | None,
    insecure: bool,
    health: str | None,
    log_format: str,
) -> None:
    """Take in what ranks measure, keep it, and send it on."""
    log_to_stderr(as_json=log_format == "json")
    settings = RelaySettings(
        spool=spool,
        spool_bytes=spool_bytes,
        min_free=min_free,
        memory_bytes=memory_bytes,
        first_hello_s=first_agent,
        merge=merge,
    )
    loaded = RelayKeys.load(keys) if keys else None
    stop = StopSignal()
    raise_file_limit()
    logger = logging.getLogger(__name__)
    with ExitStack() as cleanup:
        service = Service(bind, to, settings=settings, keys=loaded, insecure=insecure)
        cleanup.callback(lambda: logger.info("%s", json.dumps(asdict(service.statistics()))))
        # After the end of the input there was time already.
        cleanup.callback(lambda: service.close(drain=not while_input or stop.interrupted))
        said = {"address": service.address}
        if health is not None:
            server = HealthServer(health, lambda: service.health, insecure=insecure)
            cleanup.callback(server.close)
            said["health"] = server.address
        if announce:
            print(json.dumps(said), flush=True)
        below = "with keys" if loaded and loaded.below else "without keys"
        above = "with keys" if loaded else "without keys"
        logger.info("Listening on %s, %s, sending to %s, %s.", service.address, below, to, above)
        if while_input:
            # A scheduler tells all processes at once to end: whom we serve ends first.
            service.run(lambda: stop.interrupted or input_has_ended(), until_done=until_done)
            ended = time.monotonic()

            def is_late() -> bool:
                return stop() and time.monotonic() - ended > settings.drain_s

            service.run(lambda: stop.interrupted or is_late(), until_done=True, nobody_comes=True)
        else:
            service.run(stop, until_done=until_done)
    leave()
