"""What all agents are told alike, by arguments, the environment, or a file of settings."""

from __future__ import annotations

import os
import tomllib
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert

from ..settings import (
    BEGINS,
    OF_COMMANDS,
    TABLES,
    VARIABLES,
    Read,
    check_names,
    given,
    meant_by,
    ours,
    read_toml,
    settings_file,
    settings_of,
    strangers,
)
from ..sketch.errors import SettingError
from ..wire.address import parse_destination
from ..wire.keys import AgentKeys
from ..wire.messages import LEAST_BUDGET, LONGEST_NAME, RUN_NAME, Kind, Placement
from .schedule import Schedule, schedule_of, schedules_by_kind
from .selection import Counting, Placing, RankscopeWarning, Selection, Unchecked

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")

PLACES = ("run", "to", "keys", "directory")
"""Options that have variables of shorter names, and none of `OF_OPTIONS`."""
Patterns = str | list[str]
OneOrMore = Annotated[int, Meta(ge=1)]
Entry = str | Annotated[list[str | OneOrMore], Meta(min_length=1, max_length=2)]
"""A quantity, or a list of one and its schedule."""
Quantities = str | dict[str, str | list[Entry]]


def check_name(run: str) -> None:
    """Refuse what cannot name a run's folder.

    Raises:
        SettingError: it cannot.
    """
    if len(run) > LONGEST_NAME:
        raise SettingError(
            f"A run's name has {LONGEST_NAME} characters at most, got {len(run)}: {run[:40]!r}…"
        )
    if not RUN_NAME.fullmatch(run):
        raise SettingError(f"A run's name is letters, digits and ._+=@ -, got {run!r}.")


def check_schedules(quantities: Quantities) -> None:
    """Refuse quantities whose schedule is none; names are the script's, it may register its own.

    Raises:
        SettingError: a text is no schedule.
    """
    for module, asked in quantities.items() if isinstance(quantities, dict) else ():
        for entry in asked:
            if isinstance(entry, list) and len(entry) == 2:
                name, schedule = entry
                schedule_of(schedule, Schedule(), f"{name} of {module}")


class AgentSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `agent` of a file of settings: keywords of `observe`, whichever framework's."""

    run: Annotated[str, Read(check_name)] | UnsetType = UNSET
    """Name of the run."""
    to: Annotated[str, Read(parse_destination)] | UnsetType = UNSET
    """Address of a collector or relay, as tcp://host:7600."""
    keys: str | UnsetType = UNSET
    """Folder of the agents' keys."""
    directory: str | UnsetType = UNSET
    """Where a collector that rank 0 starts keeps its runs."""
    kinds: Kind | list[Kind] | UnsetType = UNSET
    """What is observed."""
    every: OneOrMore | UnsetType = UNSET
    """Distance of the steps in which sites are sketched."""
    staggered: bool | UnsetType = UNSET
    """Whether sites take turns, so that no step takes longer. PyTorch."""
    schedules: (
        Annotated[
            dict[Kind, OneOrMore | str], Read(partial(schedules_by_kind, Schedule(), kinds=()))
        ]
        | UnsetType
    ) = UNSET
    """For single kinds: a distance of steps, or a text as "logarithmic(10)"."""
    sentinel: bool | UnsetType = UNSET
    """Whether every site is looked at in every step. PyTorch."""
    budget: Annotated[float, Meta(ge=LEAST_BUDGET, le=1)] | UnsetType = UNSET
    """Share of step time that the agent may take, as 0.01. PyTorch."""
    sample: float | dict[Kind, float] | UnsetType = UNSET
    """Share of the elements of large tensors that is sketched, as 0.125. PyTorch."""
    ring: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    """Steps that are kept in full until something is wrong. PyTorch."""
    overflow: str | UnsetType = UNSET
    """Number format beyond which the ring is sent, as float8_e4m3fn. PyTorch."""
    exact_counts: Annotated[dict[str, Patterns], Read(Counting.of)] | UnsetType = UNSET
    """By pattern of labels: fine_exponents:2, block_exponents:1x32:power:1, or
    cast_counts:float8_e4m3fn; one or several. PyTorch and JAX."""
    quantities: Annotated[Quantities, Read(check_schedules)] | UnsetType = UNSET
    """By name or class of modules what is derived, or a TOML file of it. PyTorch."""
    mesh: dict[str, OneOrMore] | UnsetType = UNSET
    """Sizes of the mesh's axes by name, ranks counted with the last axis first. PyTorch."""
    axes: dict[str, str] | UnsetType = UNSET
    """What mesh axes are called in the run, as data = dp. JAX."""
    in_program: bool | UnsetType = UNSET
    """Whether sketches are made on the devices, in the step's program. JAX."""
    placements: Annotated[dict[str, dict[str, Placement]], Read(Placing.of)] | UnsetType = UNSET
    """By pattern of labels, and by mesh axis, how sites relate to the whole. PyTorch and JAX."""
    unchecked: Annotated[Patterns, Read(Unchecked.of)] | UnsetType = UNSET
    """Patterns of labels whose copies may differ."""
    rename: dict[str, str] | UnsetType = UNSET
    """What to replace in names, by pattern. PyTorch."""
    include: Annotated[Patterns, Read(partial(Selection.of, exclude=None))] | UnsetType = UNSET
    """Patterns of names that are observed; otherwise all are."""
    exclude: Annotated[Patterns, Read(partial(Selection.of, None))] | UnsetType = UNSET
    """Patterns of names that are not."""
    modules: list[str] | UnsetType = UNSET
    """Classes of the modules whose tensors are observed. PyTorch."""
    training_only: bool | UnsetType = UNSET
    """Whether forwards in evaluation mode are left out. PyTorch."""
    hyperparameters: OneOrMore | str | UnsetType = UNSET
    """In which steps loss scale and hyper-parameters are read. PopTorch."""
    taps: Patterns | UnsetType = UNSET
    """Patterns of the graph's tensors that are observed, too. PopTorch."""
    output_modes: str | dict[str, str] | UnsetType = UNSET
    """What is taken of micro-batches: final, sum, all or every(4). PopTorch."""
    names: list[str] | UnsetType = UNSET
    """Names of the graph's tensors. PopTorch."""
    where: Literal["host", "device"] | UnsetType = UNSET
    """Whether the device tells of the outputs of modules. PopTorch."""


OF_OPTIONS = f"{BEGINS}AGENT_"
"""How the variables begin that say options of `observe`."""
OF_AGENTS = {
    "RANKSCOPE_RUN": "run",
    "RANKSCOPE_TO": "to",
    "RANKSCOPE_RELAY": "to",
    "RANKSCOPE_KEYS": "keys",
    "RANKSCOPE_DIR": "directory",
    **{
        f"{OF_OPTIONS}{option.upper()}": option
        for option in AgentSettings.__struct_fields__
        if option not in PLACES
    },
}
"""The variables that say options of `observe`, and which; the later goes before the earlier."""


def faults_of_agent(said: Any, where: str) -> list[str]:
    """All that is wrong in a table `agent`, its folder of keys among it.

    That is no `Read`: `observe` loads it only where neither its call nor the environment names one.

    Args:
        where: what the table is called in a fault.
    """
    faults = list[str]()
    settings_of(said, AgentSettings, where, faults)
    keys = said.get("keys") if isinstance(said, dict) else None
    if isinstance(keys, str):
        try:
            AgentKeys.load(keys)
        except SettingError as error:
            faults.append(f"{where}: keys cannot be {keys!r}: {error}")
    return faults


def said_by_variables() -> dict[str, tuple[str, Any]]:
    """By keyword of `observe`, which variable says it, if one does, and what."""
    said = dict[str, tuple[str, Any]]()
    for variable, option in OF_AGENTS.items():
        text = os.environ.get(variable)
        if text:
            said[option] = variable, text if option in PLACES else _value_of(text, option)
    return said


def _value_of(text: str, option: str) -> Any:
    """What a variable's text says: a value as it stands in TOML, or a text without its quotes."""
    kind = get_type_hints(AgentSettings)[option]
    with suppress(ValidationError):
        if bool in get_args(kind):
            return convert(text, bool, strict=False)
    try:
        [value] = tomllib.loads(f"value = {text}").values()
    except ValueError:  # no TOML, or several lines
        return text
    return value


def agent_settings(file: Path | None = None) -> dict[str, Any]:
    """What variables and a file of settings say to agents, but for what variables say of `PLACES`.

    Args:
        file: without one it is that which RANKSCOPE_CONFIG names.

    Raises:
        SettingError: it cannot be read, or one of them says what cannot be used.
    """
    faults = list[str]()
    file = file or settings_file()
    settings: AgentSettings | None = AgentSettings()
    if file is not None:
        said = read_toml(file)
        check_names(said, TABLES, f"{file}", faults)
        settings = settings_of(said.get("agent", {}), AgentSettings, f"{file}, [agent]", faults)
    before_file = dict[str, Any]()
    for option, (variable, value) in said_by_variables().items():
        if option not in PLACES:
            before_file[option] = value
            settings_of({option: value}, AgentSettings, variable, faults)
    if settings is None or faults:
        raise SettingError("\n".join(faults))
    return given(settings) | before_file


def strays() -> list[str]:
    """What variables that are set were probably to say, and do not; others may be the user's."""
    names = [name for name in ours() if not name.startswith(OF_COMMANDS)]
    return faults_of_strangers(
        [name for name in names if name.startswith(OF_OPTIONS) or _variable_meant(name)]
    )


def faults_of_strangers(names: Collection[str], known: Collection[str] = ()) -> list[str]:
    """A fault for each of these variables, which are set, that says nothing, with what could be.

    Args:
        known: others that there are, beside `VARIABLES` and those of agents.
    """
    faults = list[str]()
    for name in strangers(names, [*OF_AGENTS, *known]):
        meant = _variable_meant(name, known)
        if meant:
            faults.append(f"environment: there is no {name!r}; did you mean {meant}?")
        else:
            check_names([name], [*VARIABLES, *OF_AGENTS, *known], "environment", faults)
    return faults


def _variable_meant(name: str, known: Collection[str] = ()) -> str:
    """Which variable one probably means that is none; empty: none is near."""
    meant = {one.removeprefix(BEGINS).lower(): one for one in (*VARIABLES, *OF_AGENTS, *known)}
    for variable, option in OF_AGENTS.items():
        meant.setdefault(option, variable)
        meant.setdefault(f"agent_{option}", variable)
    return meant.get(meant_by(name, meant), "")


def configured(
    *own: str,
) -> Callable[[Callable[Arguments, Made]], Callable[Arguments, Made]]:
    """Have what a call of `observe` leaves out, or gives as None, taken from `agent_settings`.

    The name of the run and the places are left to the functions below.

    Args:
        own: keywords that neither can say, for they take objects of the framework.
    """

    def configure(observe: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
        takes = signature(observe).parameters.keys() - set(own)

        @wraps(observe)
        def with_file(*arguments: Arguments.args, **options: Arguments.kwargs) -> Made:
            for stray in strays():
                warnings.warn(stray, RankscopeWarning, stacklevel=2)
            said = agent_settings()
            foreign = sorted(said.keys() - takes)
            if foreign:
                raise SettingError(_faults_of_foreign(foreign, observe.__module__))
            for name, value in said.items():
                if name not in PLACES and options.get(name) is None:
                    options[name] = value
            return observe(*arguments, **options)

        return with_file

    return configure


def _faults_of_foreign(options: list[str], module: str) -> str:
    """What was said of options that an agent does not have, each with who said it."""
    variables, agent = said_by_variables(), module.rpartition(".")[0]
    whose = [
        variables[one][0] if one in variables else f"{settings_file()}, [agent]" for one in options
    ]
    return "\n".join(
        f"{who}: {one} cannot be said of {agent}." for who, one in zip(whose, options, strict=True)
    )


def run_name(run: str | None) -> str:
    """The run's name, or that of the environment, or of the file of settings.

    Raises:
        SettingError: there is none, or it cannot name a folder.
    """
    name = run or os.environ.get("RANKSCOPE_RUN") or agent_settings().get("run", "")
    if not name:
        raise SettingError('A run needs a name: observe(…, run="my-run"), or set RANKSCOPE_RUN.')
    check_name(name)
    return name


def destination_of(to: str | None) -> str | None:
    """The address of the collector or relay, or that of the environment, or of the file of
    settings; None: there is none."""
    from_environment = os.environ.get("RANKSCOPE_RELAY") or os.environ.get("RANKSCOPE_TO")
    return to or from_environment or agent_settings().get("to")


def keys_of(folder: str | os.PathLike[str] | None, to: str | None) -> AgentKeys | None:
    """The keys in the folder that was given, or in that of the environment, or of the file of
    settings; None: there is none.

    Raises:
        SettingError: they cannot be used, or were given without the collector that they are for.
    """
    place = folder or os.environ.get("RANKSCOPE_KEYS") or agent_settings().get("keys")
    if not place:
        return None
    if not to:
        raise SettingError(
            "`keys` (or RANKSCOPE_KEYS) are for the collector that `to` (or RANKSCOPE_TO) names, "
            "and there is none: a collector that rank 0 starts makes keys of its own."
        )
    return AgentKeys.load(place)
