"""`observe`: what users say of how a model is to be observed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from ...wire.messages import Placement
from ..embedded import folder_of
from ..schedule import Schedule, Scheduled, schedules_by_kind
from ..selection import Counting, ExactCounts, Placing, Selection, Unchecked
from ..settings import configured, destination_of, keys_of, run_name
from .megatron import mesh_of_megatron
from .names import Names, Rename
from .quantities import Configuration, Quantities
from .scaling import LossScale
from .scope import Scope
from .settings import (
    as_list,
    check_model,
    chosen_classes,
    is_part_of_pipeline,
    ring_of,
    timetable_of,
    warn_of_strangers,
)
from .stages import Observable, mesh_along, numbered, stages_around, stages_made, stages_of

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler
    from torch.distributed.device_mesh import DeviceMesh

DEFAULT_KINDS = (
    "activation",
    "local_activation",
    "activation_gradient",
    "input_gradient",
    "local_input_gradient",
    "weight",
    "unsharded_weight",
    "weight_gradient",
    "local_weight_gradient",
    "optimizer_state",
    "tap",
)


@configured()
def observe(
    model: Observable,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    run: str | None = None,
    to: str | None = None,
    keys: str | os.PathLike[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    kinds: str | Sequence[str] = DEFAULT_KINDS,
    every: int = 1,
    staggered: bool = False,
    schedules: Mapping[str, Scheduled] | None = None,
    sentinel: bool = False,
    budget: float | None = None,
    sample: float | Mapping[str, float] | None = None,
    ring: int = 0,
    overflow: str | None = None,
    exact_counts: ExactCounts | None = None,
    quantities: Configuration | None = None,
    scaler: GradScaler | None = None,
    mesh: DeviceMesh | Mapping[str, int] | None = None,
    placements: Mapping[str, Mapping[str, Placement]] | None = None,
    unchecked: str | Sequence[str] | None = None,
    rename: Mapping[str, Rename] | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    modules: Sequence[type | str] | None = None,
    start: int = 0,
    training_only: bool = True,
) -> Scope:
    """Observe a model while it trains: `with observe(model, optimizer, run="x") as scope: …`.

    Call it after the model is built and parallelised, and before it is compiled: `torch.compile`
    keeps one graph then, and what runs compiled is seen.

    Args:
        model: the module whose forward is called, with its wrappers. Where a rank holds several
            stages of a pipeline: a sequence of them, as PipelineStages or as modules; where these
            are in no PipelineStage yet, they are numbered in turn over the ranks.
        optimizer: what updates it; several as a sequence. Without it weights are read when the
            forward begins, and no optimizer state is seen.
        run: name of the run; else RANKSCOPE_RUN. A start under a name that exists adds an attempt.
        to: address of a collector or relay, as tcp://host:7600; else RANKSCOPE_RELAY; else
            RANKSCOPE_TO; else rank 0 starts a collector.
        keys: folder of the agent's keys, as `rankscope keygen` makes it, for a collector that asks
            for them; else RANKSCOPE_KEYS. A collector started here needs none.
        directory: where a collector started here keeps its runs; else RANKSCOPE_DIR, else
            ./rankscope-runs.
        kinds: what is observed; by default all but `input` and `update`. An `update` is what a step
            adds to a weight: from the update to the step's end a copy of all weights is held for
            it, where it is due.
        every: distance of the steps in which sites are sketched.
        staggered: record every step, but at each another part of the sites, and each site every
            `every` steps: no step takes longer than the others.
        schedules: for single kinds, which are observed then: a `Schedule`, its `every`, a text as
            "logarithmic(10)" (see `Schedule.parse`), or a function of the step that says whether it
            is due.
        sentinel: whether each site is looked at in every step, for its extremes and for what is not
            finite, though it be sketched in few. The hooks take as long as those of sketches.
        budget: share of step time, as 0.01, that the agent may take on the training thread. Sites
            take turns then; where a rank takes more the collector lets all ranks sketch them more
            rarely, from the same step on, and the run's events say so.
        sample: share of the elements of large tensors that is sketched, as 1/8, or such a share for
            single kinds. A rarer schedule saves as much, and leaves nothing out.
        ring: so many steps are kept here in full, whatever schedules leave out, and sent when some
            site has values that are not finite, as it had not before, or when training ends with
            an error or hangs: the steps before a fault are there without being sent every time.
            Every step is sketched for it.
        overflow: name of a number format, as float8_e4m3fn: magnitudes beyond it send the ring,
            too.
        exact_counts: what is counted of some sites beside their sketches, whenever these are taken:
            `FineExponents`, `BlockExponents`, `CastCounts` or their names, by a regular
            expression that is searched for in the site's label, as `r"activation:.*mlp"`. Such
            sites are never sampled.
        quantities: what is derived from the tensors of some modules, by name or class: quantities,
            each with its schedule if it has one, as `{"Linear": ["input_cov_max_eig", ["rank_me",
            "linear(100)"]]}`; or a TOML file with a table `quantities`. `known_quantities()` of
            `rankscope.agent.torch.quantities` has all.
        scaler: the job's GradScaler, if it has one: its scale is kept with each step as
            `loss_scale`, so that gradients can be asked for without it.
        mesh: the job's device mesh, or the sizes of its axes by name, ranks counted with the last
            axis first. By default that of the model's DTensors, or of which theirs is a part, or
            along whose axis its PipelineStages lie; else one axis `dp` over all ranks.
        placements: how sites relate to the whole where that is not known, or wrong: "shard",
            "replicate" or "partial" by mesh axis, by a regular expression that is searched for in
            the site's label, as `{r"activation:.*rope": {"tp": "shard"}}`.
        unchecked: regular expressions, searched for in a site's label: where copies on several
            ranks may differ, and where a reduced gradient need not be the sum of the ranks' own,
            so that neither is an alert.
        rename: what to replace in names, by regular expression, as of `re.sub`, where a rank holds
            a part of the model that counts from 0: `{"^expert": "experts.3"}`. Pipeline stages of
            torch.distributed.pipelining have their names in the whole, or else their number before.
        include, exclude: regular expressions that are searched for in the names of modules,
            parameters and taps; they apply to every kind.
        modules: classes, or names of classes, of the modules whose tensors are observed.
        start: number of the first step; a resumed job passes its own.
        training_only: leave out forwards while the model is in evaluation mode, and of a model
            that trains by gradients those without.

    Raises:
        SettingError: an argument cannot be used; the message says which, and what would do.
    """
    optimizers = as_list(optimizer)
    stages = stages_of(model)
    made = stages_around(stages_made(), (module for module, _ in stages))
    if mesh is None:
        mesh = mesh_along(made[0]) if made else mesh_of_megatron([module for module, _ in stages])
    stages = numbered(stages, made, mesh)
    for module, _ in stages:
        check_model(module, start)
    selection = Selection.of(include, exclude)
    names = Names(stages, rename)
    known = [name for name, _ in names.modules()]
    known += [name for name, _ in names.parameters().values()]
    selection.warn_of_strays(known)
    classes = chosen_classes(modules, (module for _, module in names.modules()))
    warn_of_strangers(optimizers, names.parameters())
    kept, alarm = ring_of(ring, overflow)
    asked = Quantities.of(quantities, names, is_part=is_part_of_pipeline(stages, mesh))
    observed = schedules_by_kind(Schedule(every=every, staggered=staggered), schedules or {}, kinds)
    return Scope(
        optimizers,
        run=run_name(run),
        to=(address := destination_of(to)),
        keys=keys_of(keys, address),
        directory=folder_of(directory),
        timetable=timetable_of(
            {**asked.kinds, **observed},
            sentinel=sentinel,
            budget=budget,
            sample=sample,
            ring=ring,
        ),
        budget=budget,
        ring=kept,
        alarm=alarm,
        selection=selection,
        names=names,
        counting=Counting.of(exact_counts),
        quantities=asked,
        scale=LossScale(scaler),
        mesh=mesh,
        placing=Placing.of(placements),
        unchecked=Unchecked.of(unchecked),
        modules=classes,
        start=start,
        training_only=training_only,
    )
