"""`rankscope demo`: train a small GPT on several ranks, with a fault to find, and watch it live."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import click

from rankscope.sketch import SettingError

from .demo import Demo, Viewer, compiling, page
from .fault import Fault
from .job import SIZES
from .screen import Screen

INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C ended."""


@click.command()
@click.option(
    "--fault/--no-fault",
    "with_fault",
    default=True,
    show_default=True,
    help="Let the activations of one rank overflow from some step on; --no-fault stays healthy.",
)
@click.option(
    "--ranks",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Processes that train together on this machine, data-parallel.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=80,
    show_default=True,
    help="Steps of training; two to three a second on two cores.",
)
@click.option(
    "--size",
    type=click.Choice(list(SIZES)),
    default="small",
    show_default=True,
    help="The model: on several ranks `small` has 6 blocks and 328 sites, `tiny` 2 blocks and 128.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Other seeds plant the fault elsewhere; the same seed trains the same again.",
)
@click.option(
    "--name",
    default="demo",
    show_default=True,
    help="Name of the run; if there is one of this name, -2, -3, … is added to it.",
)
@click.option(
    "--directory",
    envvar="RANKSCOPE_DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("rankscope-runs"),
    show_default=True,
    help="Folder of the runs.",
)
@click.option(
    "--view/--no-view",
    default=True,
    show_default=True,
    help="Show the run in the browser until Ctrl-C; --no-view trains, stores, tells and ends.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Of the viewer.  [default: any that is free]",
)
@click.option(
    "--open/--no-open",
    "open_browser",
    default=True,
    show_default=True,
    help="Open the browser by itself.",
)
@click.option("--tell", is_flag=True, help="Tell the answer when training ends, not at Ctrl-C.")
def demo(
    *,
    with_fault: bool,
    ranks: int,
    steps: int,
    size: str,
    seed: int,
    name: str,
    directory: Path,
    view: bool,
    port: int,
    open_browser: bool,
    tell: bool,
) -> None:
    """Train a small GPT on this machine and watch its numbers live, in about a minute.

    Several ranks learn the source of Python's standard library, byte by byte, on the CPU. Each has
    the agent on. What they measure is stored in DIRECTORY and shown in the browser. Unless you say
    --no-fault, one rank breaks on purpose, and you are to find where. Ctrl-C ends everything.
    """
    fault = Fault.plan(seed, size=SIZES[size], ranks=ranks, steps=steps) if with_fault else None
    path = free_path(directory, name)
    job = Demo(path=path, ranks=ranks, steps=steps, size=size, seed=seed, fault=fault)
    with ending_by_signal(), ExitStack() as stack:
        try:
            with Screen() as screen:
                if path.name != name:
                    screen.say(f"There is a run {name} already, so this one is {path.name}.")
                server = prepare(job, screen, port if view else None, stack)
                job.train(screen, server, open_page=open_browser)
        except KeyboardInterrupt:
            stored = f" What was measured until then is in {path}." if path.exists() else ""
            click.echo(f"Ended early.{stored}")
            sys.exit(INTERRUPTED)
        conclude(job, screen, server, tell=tell)


def prepare(job: Demo, screen: Screen, port: int | None, stack: ExitStack) -> Viewer | None:
    """Say what is to come, compile the kernels and, beside that, start the viewer."""
    job.introduce(screen)
    screen.doing("Preparing; the first time on a machine kernels are compiled, for about a minute")
    make_folder(job.path.parent)
    with compiling():
        if port is None:
            return None
        # Imported late: Panel takes seconds, which `--help` should not.
        from rankscope.viewer import serve

        server = serve(job.path.parent, port=port)
        stack.callback(server.stop)
        return server


def make_folder(directory: Path) -> None:
    """Make the folder of the runs, with its parents.

    Raises:
        SettingError: it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"The folder {directory} cannot be made: {error.strerror}; take another --directory."
        ) from None


def conclude(job: Demo, screen: Screen, server: Viewer | None, *, tell: bool) -> None:
    """Tell the answer, at once or when the user has looked long enough."""
    screen.say(f"Trained and stored in {job.path}")
    if server is None:
        screen.say(job.answer())
        screen.say(f"Look at it: rankscope view {job.path}")
        return
    if tell:
        screen.say(job.answer())
    then = "" if tell or job.fault is None else " and tells the answer"
    screen.say(f"It stays at {page(server, job.path)}; Ctrl-C ends this{then}.")
    with suppress(KeyboardInterrupt):
        server.wait()
    if not tell:
        screen.say(f"\n{job.answer()}")


def free_path(directory: Path, name: str) -> Path:
    """Where a run of this name can lie without touching what is there."""
    if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._+=@ -]*[A-Za-z0-9_])?", name):
        raise click.BadParameter(
            f"a name is letters, digits and ._+=@-, got {name!r}", param_hint="--name"
        )
    path, count = directory / name, 1
    while path.exists():
        count += 1
        path = directory / f"{name}-{count}"
    return path


@contextmanager
def ending_by_signal() -> Generator[None]:
    """Within the block SIGTERM, and the end of the terminal, are as Ctrl-C."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else it is under nohup
        numbers.append(signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
