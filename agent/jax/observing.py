"""`observe`: what users say of how a loop is to be observed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from jax.sharding import Mesh

from ...sketch.errors import SettingError
from ...wire.address import parse_destination
from ...wire.messages import Placement
from ..embedded import folder_of
from ..schedule import Schedule, Scheduled, never, schedules_by_kind
from ..selection import Counting, ExactCounts, Placing, Selection, Unchecked
from ..settings import configured, destination_of, keys_of, run_name
from .meshes import check_axes
from .scope import Scope
from .settings import Settings

KINDS = (
    "activation",
    "activation_gradient",
    "weight",
    "weight_gradient",
    "optimizer_state",
    "update",
    "tap",
)


@configured("mesh")
def observe(
    *,
    run: str | None = None,
    to: str | None = None,
    keys: str | os.PathLike[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    kinds: str | Sequence[str] = KINDS,
    every: int = 1,
    schedules: Mapping[str, Scheduled] | None = None,
    exact_counts: ExactCounts | None = None,
    mesh: Mesh | None = None,
    axes: Mapping[str, str] | None = None,
    in_program: bool | None = None,
    placements: Mapping[str, Mapping[str, Placement]] | None = None,
    unchecked: str | Sequence[str] | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    start: int = 0,
) -> Scope:
    """Observe a training loop: `with observe(run="x") as scope: …`.

    Call it after `jax.distributed.initialize`, in every process.

    Args:
        run: name of the run; else RANKSCOPE_RUN. A start under a name that exists adds an attempt.
        to: address of a collector or relay, as tcp://host:7600; else RANKSCOPE_RELAY; else
            RANKSCOPE_TO; else process 0 starts a collector.
        keys: folder of the agent's keys, as `rankscope keygen` makes it, for a collector that asks
            for them; else RANKSCOPE_KEYS. A collector started here needs none.
        directory: where a collector started here keeps its runs; else RANKSCOPE_DIR, else
            ./rankscope-runs.
        kinds: what is observed of what `sketch` is given.
        every: distance of the steps in which sites are sketched.
        schedules: for single kinds: a `Schedule`, its `every`, a text as "logarithmic(10)" (see
            `Schedule.parse`), or a function of the step that says whether it is due.
        exact_counts: what is counted of some sites beside their sketches, whenever these are taken:
            `FineExponents`, `BlockExponents`, `CastCounts` or their names, by a regular
            expression that is searched for in the site's label, as `r"weight:.*mlp"`. Each device
            counts its own part. On the CPU.
        mesh: the job's mesh: its devices are the ranks, in its order. By default the largest that
            the arrays of the first step lie on, else the devices that they lie on.
        axes: what mesh axes are called in the run, as {"data": "dp", "model": "tp"}: ranks apart on
            `tp` and `pp` hold other parts of the model, on all others they see other samples.
        in_program: whether sketches are made on the devices, in the step's own program as far as
            that knows where its arrays lie; by default, except on the CPU, whose kernels read what
            the step returns on a thread of the agent's.
        placements: how sites relate to the whole where their sharding does not say it: "shard",
            "replicate" or "partial" by mesh axis, by a regular expression that is searched for in
            the site's label.
        unchecked: regular expressions, searched for in a site's label: where copies on several
            devices may differ, so that it is no alert.
        include, exclude: regular expressions that are searched for in the names of what `sketch` is
            given.
        start: number of the first step; a resumed job passes its own.

    Raises:
        SettingError: an argument cannot be used; the message says which, and what would do.
        AddressError: the address cannot be understood.
    """
    if start < 0:
        raise SettingError(f"`start` must not be negative, got {start}.")
    chosen = schedules_by_kind(Schedule(every=every), schedules or {}, kinds, KINDS)
    for kind, schedule in chosen.items():
        if schedule.staggered:
            raise SettingError(
                f"The schedule of {kind!r} is `staggered`, which JAX has no use for: each step "
                "would be a program of its own. Give `every` alone."
            )
        if schedule.when is never:
            raise SettingError(
                f"The schedule of {kind!r} is `on_alert`, and under JAX nobody looks closer at an "
                "alert: it would never be sketched."
            )
    check_axes(mesh, axes or {})
    address = destination_of(to)
    if address:
        parse_destination(address)
    settings = Settings(
        run=run_name(run),
        to=address,
        keys=keys_of(keys, address),
        directory=folder_of(directory),
        schedules=chosen,
        selection=Selection.of(include, exclude),
        counting=Counting.of(exact_counts),
        mesh=mesh,
        axes=axes or {},
        in_program=in_program,
        placing=Placing.of(placements),
        unchecked=Unchecked.of(unchecked),
        start=start,
    )
    return Scope(settings)
