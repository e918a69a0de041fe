"""`observe`: the agent is on for the length of a `with` block."""

from __future__ import annotations

import logging
import os
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from jax.sharding import NamedSharding

from ...sketch.errors import SettingError
from ...wire.connection import Connection
from ...wire.messages import PROTOCOL, Hello
from ..block import Block, numbers_given
from ..lifetime import OpenBlocks
from ..modes import Mode
from ..outbox import Outbox, OutboxStatistics
from ..own_collector import collector_of
from ..printing import Printer, PrintOptions
from ..selection import RankscopeWarning
from ..sitebook import SiteBook
from ..stopwatch import Stopwatch
from ..telling import Telling
from ..warming import warm
from ..worker import Worker
from .collecting import Taps, collect
from .delivery import Delivery
from .due import Due, nothing_due
from .gathering import Trees, gather
from .layout import Layout
from .meshes import Ranks
from .mistakes import Mistakes
from .parcel import Number, Parcel
from .processes import Processes, facts
from .settings import Settings
from .streams import Streams
from .taps import Mark, Tree, marked_as, tap
from .telemetry import Telemetry

TAPPED_KINDS = frozenset({"activation", "activation_gradient", "tap"})
"""Those of what `collect` finds."""

logger = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_scopes = OpenBlocks["Scope"]()
leave_scopes = _scopes.leave


class Scope(Block):
    """The open observation of one loop; made by `observe`."""

    _open_blocks = _scopes

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.run, settings.directory, settings.start, settings.to)
        self._settings = settings
        self._to, self._keys = settings.to, settings.keys
        self._in_program = False
        self._names = dict[str, None]()
        """All that `sketch` was given, observed or not."""
        self._due, self._is_due = Due(), False
        self._mistakes = Mistakes()
        self._telling = Telling()
        self._stopwatch, self._begun = Stopwatch(), time.monotonic()
        self._streams = Streams(self._outbox_of)
        self._book = SiteBook(
            settings.selection.chooses,
            settings.counting.of_site,
            settings.placing.of_site,
            settings.unchecked.leaves,
        )

    def sketch(
        self,
        *,
        weights: Any = None,
        gradients: Any = None,
        updates: Any = None,
        optimizer: Any = None,
        taps: Taps | None = None,
        aux: Any = None,
        **numbers: Any,
    ) -> Telemetry:
        """What is due of this step; to be called in the jitted step, and returned by it.

        Of steps in which nothing is due, it is empty, and costs nothing. It is a pure function of
        its arguments and of which kinds are due; that is part of the key of JAX's caches.

        Args:
            weights: parameters as the step uses them, as a pytree of any shape.
            gradients: their gradients, in a tree of the same shape.
            updates: what the step adds to them, in a tree of the same shape: new less old.
            optimizer: the optimizer's state after the update: that of any optax chain, or other.
                Floating-point scalars in it, as those of `optax.inject_hyperparams`, are kept as
                numbers of the step.
            taps: what `collect` found: activations, their gradients, and what was tapped.
            aux: anything else: its scalars are numbers of the step, its other arrays taps.
            numbers: further numbers of the step, as `loss=loss`.
        """
        trees = Trees(
            weights=weights,
            gradients=gradients,
            updates=updates,
            optimizer=optimizer,
            taps=taps,
            aux=aux,
            numbers=numbers,
        )
        kinds = self._due.kinds()
        if kinds:
            self._mistakes.note(trees)
        with nothing_due():
            return gather(trees, kinds, self._chooses, in_program=self._in_program)

    def collect(
        self,
        fn: Callable[Arguments, Result],
        *,
        within: Callable[[], AbstractContextManager[object]] = nullcontext,
        samples: NamedSharding | None = None,
        batch: int | None = None,
    ) -> Callable[Arguments, tuple[Result, Taps]]:
        """`rankscope.agent.jax.collect`, in steps in which something of it is due.

        In others the function is called as it is, and nothing is found.

        Args:
            fn: what is tapped in, as `jax.value_and_grad(loss_of)`.
            within: a context in which it is traced, as `linen.outputs`.
            samples: how samples lie on the mesh, where its axes are automatic.
            batch: how many samples there are.

        Raises:
            SettingError: `samples` or `batch` cannot be used.
        """
        sketched = collect(fn, within=within, samples=samples, batch=batch)

        @wraps(fn)
        def collected(*args: Arguments.args, **kwargs: Arguments.kwargs) -> tuple[Result, Taps]:
            if self._due.kinds().isdisjoint(TAPPED_KINDS):
                return fn(*args, **kwargs), Taps()
            return sketched(*args, **kwargs)

        return collected

    def tap(
        self, name: str, x: Tree, *, mode: str = "all", sharding: NamedSharding | None = None
    ) -> Tree:
        """`rankscope.agent.jax.tap`: marks arrays, and their gradients, for `collect`."""
        return tap(name, x, mode=mode, sharding=sharding)

    def print(
        self,
        name: str,
        x: Tree,
        *,
        mode: str = "all",
        gradient: bool = True,
        threshold: int = 1000,
        edgeitems: int = 3,
        linewidth: int = 80,
        precision: int = 4,
        sci_mode: bool | None = None,
        sharding: NamedSharding | None = None,
    ) -> Tree:
        """Print the arrays of `x`, and their gradients, in the steps of taps; returns it.

        `collect` finds them, as it does taps: use what is returned for `x`. They are printed on the
        agent's thread, once the step is computed, and each device's own elements by themselves.

        Args:
            name: what they are called in what is printed, with the step and the rank.
            x: as of `tap`.
            mode: which calls of a step are printed, or their sum, as of `tap`.
            gradient: whether gradients are printed, too.
            threshold: elements beyond which an array is summarised.
            edgeitems: how many elements a summary has at both ends of each axis.
            linewidth: characters of a line.
            precision: digits after the point, at most.
            sci_mode: whether numbers are written with exponents; None: where they differ much.
            sharding: as of `tap`.

        Raises:
            SettingError: an argument cannot be used; the message says which, and what would do.
        """
        how = PrintOptions(
            threshold=threshold,
            edgeitems=edgeitems,
            linewidth=linewidth,
            precision=precision,
            sci_mode=sci_mode,
        )
        mark = Mark(
            kind="tap",
            gradient_kind="tap",
            name=name,
            slot="",
            module="",
            sharding=sharding,
            mode=Mode.parse(mode),
            printed=how,
            with_gradient=gradient,
        )
        return marked_as(mark, x)

    def step(self, telemetry: Telemetry | None = None, **training: Number | None) -> None:
        """Close the step that is open and begin the next; to be called after the jitted step.

        Args:
            telemetry: what `sketch` made of it.
            training: further numbers to keep with the step; arrays of one element are copied
                without waiting for their device. None, as of a process without a loss, is left out.

        Raises:
            SettingError: called outside the `with` block.
        """
        self._end_step_by(lambda: self._end_step(telemetry, numbers_given(training)))

    def health(self) -> dict[str, float]:
        """Counters: what was dropped or unreadable; and seconds in `step`.

        Raises:
            SettingError: called before the `with` block.
        """
        self._check_entered("health")
        return {
            **{name: float(count) for name, count in self._telling.counters.items()},
            "tensors_stale": 0.0,
            "sites_refused": float(self._book.refused),
            "exact_counts_refused": float(self._book.refused_exact_counts),
            "stretch": 1.0,
            "wall_seconds": time.monotonic() - self._begun,
            "hook_seconds": self._stopwatch.seconds,
        }

    def _enter(self) -> None:
        processes, settings = Processes(), self._settings
        self._in_program = settings.sketches_in_program()
        if settings.mesh is not None:
            settings.placing.check(Ranks.of(settings.mesh, settings.axes).names)
        self._launch = processes.share("launch", lambda: uuid.uuid4().hex)
        if self._to is None:
            meeting, share = processes.meeting(), processes.share
            self._to, self._keys = collector_of(
                meeting, share, settings.run, settings.directory, self._own_collector
            )
        self._streams.announce(Connection(self._to, keys=self._keys))
        self._worker = Worker(self._streams, self._idle, self._job_failed)
        self._printer = Printer(self._worker.submit)
        self._layout = Layout(
            self._book,
            settings.mesh,
            settings.axes,
            self._in_program,
            self._telling,
            self._found,
        )
        self._delivery = Delivery(
            self._layout,
            self._streams,
            self._telling,
            self._worker.submit,
            self.health,
            self._printer,
        )

    def _prepare(self) -> None:
        if self._settings.mesh is not None:  # it says hello while the step is compiled
            self._layout.settle(())
        warm()
        self._begun = time.monotonic()

    def _chooses(self, name: str) -> bool:
        self._names[name] = None
        return self._settings.selection.chooses(name)

    def _end_step(self, telemetry: object, training: Mapping[str, Number]) -> None:
        if not self._is_due:
            return
        tells = isinstance(telemetry, Telemetry) and not telemetry.is_empty
        self._mistakes.steps_untold += not tells
        self._mistakes.has_told = self._mistakes.has_told or tells
        if not isinstance(telemetry, Telemetry | None):
            raise TypeError(f"it takes what scope.sketch() made, got {type(telemetry).__name__}")
        if telemetry is not None or training:
            self._delivery.send(Parcel(self._step, telemetry or Telemetry(), training))

    def _begin(self) -> None:
        schedules = self._settings.schedules.items()
        due = [kind for kind, schedule in schedules if schedule.due(self._step)]
        self._is_due = bool(due)
        self._due.turn_to(due)

    def _send_rest(self, *, partial: bool) -> None:
        if partial:
            self._delivery.put(Parcel(self._step, Telemetry(), {}, partial=True))

    def _finish(self, timeout_s: float) -> None:
        self._delivery.finish(timeout_s)
        self._printer.attend()

    def _detach(self) -> None:
        self._due.turn_to(())

    def _forget(self) -> None:
        self._due.turn_to(())

    def _report(self, sentence: str, error: BaseException | None = None) -> None:
        self._telling.report(sentence, error)

    def _transport(self) -> OutboxStatistics:
        return self._streams.statistics()

    def _never_made(self) -> int:
        return self._delivery.lost

    def _warn_of_settings(self) -> None:
        if self._mistakes.is_in_program and self._step == self._start:  # or it was lowered alone
            logger.warning(
                "No step was stored: call scope.step(telemetry) after each jitted step, with what "
                "scope.sketch(…) has made in it."
            )
        for sentence in self._mistakes.sentences():
            warnings.warn(sentence, RankscopeWarning, stacklevel=3)
        if self._book.sites:
            labels, settings = self._book.labels(), self._settings
            settings.selection.warn_of_strays(self._names)
            settings.counting.warn_of_strays(labels)
            settings.placing.warn_of_strays(labels)
            settings.unchecked.warn_of_strays(labels)

    def _found(self, ranks: Ranks) -> None:
        self._streams.open(ranks)
        strays = [old for old, new in self._settings.axes.items() if new not in ranks.names]
        if strays:
            self._telling.report(
                f"`axes` names {', '.join(strays)}; this job's mesh has {', '.join(ranks.names)}"
            )
        try:
            self._settings.placing.check(ranks.names)
        except SettingError as error:  # it is too late to raise it
            self._telling.report("`placements` are not used as they were meant", error)

    def _outbox_of(self, ranks: Ranks, rank: int) -> Outbox:
        assert self._to is not None
        hello = Hello(
            protocol_min=PROTOCOL,
            protocol_max=PROTOCOL,
            run=self._settings.run,
            launch=self._launch,
            stream=uuid.uuid4().hex,
            rank=rank,
            world_size=len(ranks.devices),
            mesh=ranks.mesh_of(rank),
            host=os.uname().nodename,
            process=os.getpid(),
            device=str(ranks.devices[rank]),
            facts=facts(in_program=self._in_program),
        )
        return Outbox(self._to, hello, keys=self._keys, warn=self._streams.warn)

    def _idle(self, now: float) -> None:
        self._delivery.attend()
        for told in self._streams.take_alerts():
            untold = self._callbacks.hear(told.alerts, told.more)
            self._telling.counters["alerts_untold"] += untold
        self._streams.beat(now, step=self._step, tensors=len(self._book.sites), health=self.health)
