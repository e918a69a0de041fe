"""The command, and what is installed."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import click
import zmq

from ..wire.messages import PROTOCOL
from .finding import Check, Finding
from .network import check_network, check_port

BASE = ("numpy", "msgspec", "pyzmq")
COLLECTOR = ("icechunk", "zarr", "xarray", "pandas")
"""What a collector needs beside them."""
EXTRA = "pip install 'rankscope[collector]'"


@click.command()
@click.option("--to", help="Address of a collector or relay, as tcp://host:7600.")
@click.option("--keys", help="Folder of an agent's keys, for a collector that asks for them.")
@click.option("--store", help="Folder or URL of runs that a collector here would write.")
def doctor(to: str | None, keys: str | None, store: str | None) -> None:
    """Check what a collector and its agents need; a line each, and what to do.

    Without options: this installation, and whether a collector could listen here. The exit code is
    1 if something is bad. `rankscope doctor --poptorch` checks PopTorch instead, by itself.
    """
    checks: list[Callable[[], Check]] = [check_versions]
    checks.append((lambda: check_network(to, keys)) if to else (lambda: check_port(keys)))
    if store is not None:
        checks.append(lambda: check_stored(store))
    is_bad = False
    for check in checks:
        for finding in check():
            click.echo(f"{finding.state:<5} {finding.text}")
            is_bad |= finding.state == "bad"
    sys.exit(int(is_bad))


def check_versions() -> Check:
    """What is installed."""
    found: list[str] = []
    missing: list[str] = []
    for name in BASE + COLLECTOR:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    python = f"Python {platform.python_version()} on {platform.system()}"
    ours = f"rankscope {version('rankscope')} (protocol {PROTOCOL})"
    yield Finding("ok", f"{ours}, {python}, {', '.join(found)}, libzmq {zmq.zmq_version()}.")
    if missing:
        text = "Agents and relays can run here, a collector cannot: it needs"
        yield Finding("note", f"{text} {', '.join(missing)} ({EXTRA}).")


def check_stored(store: str) -> Check:
    """Whether a collector here could write that place."""
    try:
        # Imported late: agents and relays are on machines that have none of what a store needs.
        from .storage import check_store
    except ModuleNotFoundError as error:
        yield Finding("bad", f"--store needs {error.name}, which is not installed: {EXTRA}.")
        return
    yield from check_store(store)
