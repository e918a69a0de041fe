"""`observe`: what users say of how a PopTorch model is to be observed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ...sketch.errors import SettingError
from ...wire.address import parse_destination
from ..embedded import folder_of
from ..modes import Mode
from ..schedule import Schedule, Scheduled, never, schedule_of, schedules_by_kind
from ..selection import Selection, Unchecked
from ..settings import configured, destination_of, keys_of, run_name
from .compiling import poptorch_of
from .scope import Scope
from .settings import Settings

KINDS = ("weight", "weight_gradient", "optimizer_state", "tap")
ALL_KINDS = ("activation", *KINDS)


@configured()
def observe(
    model: Any,
    options: Any,
    optimizer: Any = None,
    *,
    run: str | None = None,
    to: str | None = None,
    keys: str | os.PathLike[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    kinds: str | Sequence[str] | None = None,
    every: int = 1,
    schedules: Mapping[str, Scheduled] | None = None,
    hyperparameters: Scheduled = 10,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    taps: str | Sequence[str] | None = None,
    output_modes: str | Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
    where: Literal["host", "device"] = "host",
    unchecked: str | Sequence[str] | None = None,
    start: int = 0,
) -> Scope:
    """Observe a training loop: `with observe(model, options, optimizer, run="x") as scope: …`.

    In the block `scope.training_model(*inputs)` takes the place of `poptorch.trainingModel`.

    Args:
        model: a `torch.nn.Module` that no PopTorch model wraps yet.
        options: `poptorch.Options`; it is copied, and not changed.
        optimizer: as of `poptorch.trainingModel`.
        run: name of the run; else RANKSCOPE_RUN. A start under a name that exists adds an attempt.
        to: address of a collector or relay, as tcp://host:7600; else RANKSCOPE_RELAY; else
            RANKSCOPE_TO; else a collector is started here.
        keys: folder of the agent's keys, for a collector that asks for them; else RANKSCOPE_KEYS.
        directory: where a collector started here keeps its runs; else RANKSCOPE_DIR, else
            ./rankscope-runs.
        kinds: what is observed; by default all, `activation` only with where="device".
        every: distance of the steps in which sites are sketched.
        schedules: for single kinds: a `Schedule`, its `every`, a text as "logarithmic(10)", or a
            function of the step.
        hyperparameters: in which steps the loss scale and the optimizer's hyper-parameters are
            read. PopTorch copies the whole state of the optimizer to the host for that.
        include, exclude: regular expressions that are searched for in names of parameters, of
            modules, and of taps.
        taps: regular expressions, searched for in the names of `getTensorNames`: what they find,
            and is no parameter's, is observed under that name.
        output_modes: what is taken of a call's micro-batches: "final", "sum", "all" or "every(4)",
            for all gradients and taps, or by a regular expression that is searched for in labels.
            By default all that the model's own output mode returns. What that does not return
            cannot be had: then a warning says what is taken.
        names: of the graph's tensors, as `getTensorNames` gave them before. Without them the model
            is compiled once more, for its names alone.
        where: "device" adds what the device tells of the outputs of modules: their extremes, and
            how many elements are not finite, as further outputs of the compiled program.
        unchecked: regular expressions, searched for in labels: where copies may differ.
        start: number of the first step; a resumed job passes its own.

    Raises:
        SettingError: an argument cannot be used; the message says which, and what would do.
        AddressError: the address cannot be understood.
    """
    if start < 0:
        raise SettingError(f"`start` must not be negative, got {start}.")
    if where not in ("host", "device"):
        raise SettingError(f"`where` must be 'host' or 'device', got {where!r}.")
    _check_options(options)
    on_device = where == "device"
    known = ALL_KINDS if on_device else KINDS
    chosen = schedules_by_kind(Schedule(every=every), schedules or {}, kinds or known, known)
    for kind, schedule in chosen.items():
        if schedule.staggered or schedule.when is never:
            raise SettingError(
                f"The schedule of {kind!r} is staggered or on_alert, which the agent for PopTorch "
                "does not know: give `every`, or another schedule."
            )
    address = destination_of(to)
    if address:
        parse_destination(address)
    by_pattern = {"": output_modes} if isinstance(output_modes, str) else output_modes or {}
    settings = Settings(
        run=run_name(run),
        to=address,
        keys=keys_of(keys, address),
        directory=folder_of(directory),
        schedules=chosen,
        hyperparameters=schedule_of(hyperparameters, Schedule(), "hyperparameters"),
        selection=Selection.of(include, exclude),
        taps=Selection.of(taps, None),
        output_modes=[
            (pattern, Mode.parse(mode))
            for text, mode in by_pattern.items()
            for pattern in Selection.of(text, None).include
        ],
        names=names,
        on_device=on_device,
        unchecked=Unchecked.of(unchecked),
        start=start,
    )
    return Scope(settings, model, options, optimizer)


def _check_options(options: Any) -> None:
    """Refuse what is no `poptorch.Options`, and jobs of several processes.

    Raises:
        SettingError: it is one of both.
    """
    if not hasattr(options, "anchorTensor") or poptorch_of(options) is None:
        raise SettingError(f"`options` must be a poptorch.Options, got {type(options).__name__}.")
    processes = options.Distributed.numProcesses
    if processes > 1:
        raise SettingError(
            f"options.Distributed says {processes} processes (PopRun), and the agent for PopTorch "
            "observes jobs of one process, with any number of replicas."
        )
