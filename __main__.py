"""The command line: one command a room, its module imported only when it is asked for."""

import importlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """Where a command lives, and what is said of it before it is loaded."""

    target: str
    """The room's module and the command in it, as `room.command:function`."""
    extra: str
    """What stands in the brackets of `pip install 'rankscope[...]'`; empty: nothing does."""
    summary: str
    """The line in `rankscope --help`."""
    by_option: Mapping[str, str] = field(default_factory=dict[str, str])
    """By an option that makes it another command, of another room, that command's target."""


COMMANDS: Mapping[str, LazyCommand] = {
    "demo": LazyCommand(
        target="examples.command:demo",
        extra="torch,collector,viewer",
        summary="Train a small model and watch it in the browser.",
    ),
    "collect": LazyCommand(
        target="collector.command:collect",
        extra="collector",
        summary="Receive what the ranks of a job measure and store it.",
    ),
    "run": LazyCommand(
        target="launch.command:run",
        extra="torch,collector",
        summary="Run a training script as it is, and observe what it trains.",
    ),
    "relay": LazyCommand(
        target="relay.command:relay",
        extra="",
        summary="Pass on what ranks measure, and keep it while it cannot be stored.",
    ),
    "doctor": LazyCommand(
        target="doctor.command:doctor",
        extra="",
        summary="Check versions, network, clocks, store and speed; say what to do.",
        by_option={"--poptorch": "agent.poptorch.doctor:doctor"},
    ),
    "keygen": LazyCommand(
        target="wire.command:keygen",
        extra="",
        summary="Make the keys of a collector, its relays and its agents.",
    ),
    "why": LazyCommand(
        target="rules.command:why",
        extra="collector",
        summary="Say what went wrong in a run: what, where, when, on which rank.",
    ),
    "rules": LazyCommand(
        target="rules.command:rules",
        extra="collector",
        summary="List the rules of the watch, or replay them over a stored run.",
    ),
    "runs": LazyCommand(
        target="store.command:runs",
        extra="collector",
        summary="List stored runs.",
    ),
    "compare": LazyCommand(
        target="store.command:compare",
        extra="collector",
        summary="Say where two runs part: in which step, at which tensor, how far.",
    ),
    "export": LazyCommand(
        target="store.command:export",
        extra="collector",
        summary="Write a run as a plain Zarr store, or as a LogFrame.",
    ),
    "import": LazyCommand(
        target="logframe.command:import_",
        extra="collector",
        summary="Make a run of a LogFrame, a log of Track & Visualize.",
    ),
    "formats": LazyCommand(
        target="store.formats_command:formats",
        extra="collector",
        summary="Say which tensors would break in which number formats.",
    ),
    "quantities": LazyCommand(
        target="store.quantities_command:quantities",
        extra="collector",
        summary="Show what was derived of modules: spectra, ranks, dead neurons.",
    ),
    "prune": LazyCommand(
        target="store.command:prune",
        extra="collector",
        summary="Delete the detail of a run's old steps.",
    ),
    "config": LazyCommand(
        target="config.command:config",
        extra="collector,viewer",
        summary="Check a file of settings, show what holds, print its schema.",
    ),
    "view": LazyCommand(
        target="viewer.command:view",
        extra="viewer",
        summary="Show a run in the browser, live or finished.",
    ),
    "report": LazyCommand(
        target="viewer.report.command:report",
        extra="viewer",
        summary="Write a run's health as one HTML file that opens offline.",
    ),
}


class LazyGroup(click.Group):
    """A click group that reads its commands from a table and imports the one that is called."""

    def __init__(
        self,
        # click passes its own settings (name, help, callback, params, ...) through.
        *args: Any,
        table: Mapping[str, LazyCommand] = COMMANDS,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        try:
            return load(self.table[cmd_name].target)
        except ModuleNotFoundError as error:
            self.name_the_extra(error, cmd_name)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.table.get(args[0])
        near = get_close_matches(args[0], self.table)
        if known is None and near:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(near)}?")
        for option, target in known.by_option.items() if known else ():
            if option in args:
                return args[0], load(target), args[1:]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own version loads every command to read its help.
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in self.table.items()])

    def invoke(self, ctx: click.Context) -> Any:  # whatever the command returns
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            self.name_the_extra(error, ctx.invoked_subcommand)
            raise
        except Exception as error:
            # Imported late: this loads NumPy, which `--help` does not need.
            from .sketch.errors import RankscopeError

            if isinstance(error, RankscopeError):
                raise click.ClickException(str(error)) from error
            raise

    def name_the_extra(self, error: ModuleNotFoundError, command: str | None) -> None:
        """Say which extra is missing; return if none is: a module of ours that is gone is a bug."""
        known = self.table.get(command or "")
        theirs = error.name is not None and error.name.partition(".")[0] != "rankscope"
        if known and theirs:
            package = f"'rankscope[{known.extra}]'" if known.extra else "rankscope"
            raise click.ClickException(
                f"`rankscope {command}` needs {error.name}, which is not installed. "
                f"Install it with: pip install {package}"
            ) from error


def load(target: str) -> click.Command:
    """Import the command at `room.command:function`."""
    module_name, _, function = target.partition(":")
    command = getattr(importlib.import_module(f".{module_name}", "rankscope"), function)
    if not isinstance(command, click.Command):
        raise TypeError(f"`{target}` must be a click command, got {type(command).__name__}.")
    return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(resolve_path=True),
    envvar="RANKSCOPE_CONFIG",
    show_envvar=True,
    help="File of settings, TOML, for what is not said otherwise: docs/configuration.md.",
)
@click.version_option(package_name="rankscope", prog_name="rankscope")
@click.pass_context
def cli(context: click.Context, config: str | None) -> None:
    """Watch the numbers inside a neural network while it trains."""
    name = context.invoked_subcommand
    if config is not None:
        os.environ["RANKSCOPE_CONFIG"] = config  # for what is started from here, too
    has_variables = name in ("collect", "relay", "run", "view")
    has_table = config is not None and (has_variables or name == "rules")
    group = context.command
    if name is None or not (has_variables or has_table) or not isinstance(group, click.Group):
        return
    command = group.get_command(context, name)
    if command is None:
        return
    # Imported late: this loads NumPy, which other commands may not need.
    from .config import defaults_of, strays_of

    if has_variables:
        started = None
        if name == "run":  # its collector's own warnings would be in that one's log alone
            with suppress(click.ClickException):  # one that is not installed is not started
                started = group.get_command(context, "collect")
        for stray in [*strays_of(command), *(strays_of(started) if started else [])]:
            click.echo(f"Warning: {stray}", err=True)
    if config is not None:
        context.default_map = {name: defaults_of(command, name, Path(config))}


def main() -> None:
    """Run the command line; the console script `rankscope` starts here."""
    cli.main(prog_name="rankscope")


if __name__ == "__main__":
    main()
