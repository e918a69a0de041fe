"""What is read of a step's telemetry on which device, and under which site."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
from jax.sharding import Mesh, NamedSharding

from ...sketch.labels import site_label
from ...wire.messages import Site, SiteExactCount
from ..interruption import Lock
from ..printing import Printout
from ..sitebook import UNMEASURED, Key, SiteBook
from ..steptable import StepTable
from ..telling import Telling
from .host import HostBatch, Piece
from .meshes import Device, Ranks, Spread, Spreads, spread_of_parts, wholes_of
from .printouts import printouts
from .telemetry import NamedSite, Plan, SketchedSite, Telemetry


@dataclass(frozen=True, slots=True)
class Sites:
    """What rows are of, from some step on."""

    sites: list[Site]
    exact_counts: list[SiteExactCount]


@dataclass(frozen=True, slots=True)
class Sketched:
    """The sketches of a step."""

    tables: list[StepTable]
    """By device of this process."""
    sites: Sites


class Layout:
    """Of one agent; the devices are found with the first step.

    Args:
        book: the sites and their rows.
        mesh: that of the job; None: it is that which the first step's arrays lie on.
        axes: what mesh axes are called in the run, where that is not their own name.
        in_program: whether programs on the devices make sketches, and not kernels on the host.
        telling: told of what is not read.
        found: called once with the ranks of the job.
    """

    def __init__(
        self,
        book: SiteBook,
        mesh: Mesh | None,
        axes: Mapping[str, str],
        in_program: bool,
        telling: Telling,
        found: Callable[[Ranks], None],
    ) -> None:
        self._book = book
        self._axes, self._telling, self._found = axes, telling, found
        self._spreads: Spreads | None = None
        self._places, self._ranks = dict[Device, int](), dict[Device, int]()
        self._lock = Lock()
        self._mesh, self._in_program = mesh, in_program
        self._placed = dict[Key, Spread]()
        """How sites lie on the devices, as far as they were told of."""
        self._said = dict[Key, tuple[Spread, Spread]]()
        """By site how its array lies, and what that is as the user says."""
        self._unseen, self._uncounted = set[str](), set[str]()
        self._has_told_strays = False
        self._version, self._known = (0, 0), Sites([], [])
        self._expected = Plan()

    @property
    def is_settled(self) -> bool:
        """Whether the devices are known, or the mesh that has them."""
        return self._spreads is not None or self._mesh is not None

    def read(self, step: int, telemetry: Telemetry) -> Sketched:
        """The sketches of a step; waits for its arrays."""
        with self._lock:
            spreads = self._settled(telemetry.leaves)
            self._expect(telemetry.plan)
            pieces = list(self._pieces(telemetry, spreads))
            rows = [self._rows_of(*group, spreads) for group in _groups(telemetry)]
            self._tell_of(telemetry)
            batch = HostBatch(step, len(self._places), len(self._book.sites))
            sites = self._sites()
        if self._in_program:
            batch.read_on_devices(pieces)
        else:
            batch.read(pieces)
        for numbers, array in zip(rows, telemetry.rows, strict=True):
            for shard in array.addressable_shards:
                if shard.device in self._places:
                    batch.take(self._places[shard.device], numbers, shard.data)
        return Sketched(batch.steps(), sites)

    def printouts(self, step: int, telemetry: Telemetry) -> list[Printout]:
        """What of a step is to be printed; waits for its arrays."""
        with self._lock:
            self._settled(telemetry.leaves)
        pairs = zip(telemetry.plan.prints, telemetry.prints, strict=True)
        return [one for pair in pairs for one in printouts(step, *pair, self._ranks)]

    def nothing(self, step: int) -> Sketched:
        """What is told of a step that could not be read."""
        with self._lock:
            self._settled(())
            return Sketched(HostBatch(step, len(self._places), 0).steps(), self._sites())

    def settle(self, arrays: Iterable[jax.Array]) -> None:
        """Say which devices there are, if nobody has asked yet."""
        with self._lock:
            self._settled(arrays)

    def _settled(self, arrays: Iterable[jax.Array]) -> Spreads:
        if self._spreads is None:
            mesh, axes = self._mesh, self._axes
            ranks = Ranks.seen(arrays, axes) if mesh is None else Ranks.of(mesh, axes)
            self._places = {device: place for place, (_, device) in enumerate(ranks.local())}
            self._ranks = {device: rank for rank, device in ranks.local()}
            self._found(ranks)
            self._spreads = Spreads(ranks)
        return self._spreads

    def _expect(self, plan: Plan) -> None:
        """Give sites their place in the order of execution; what a program makes has one plan."""
        if plan is not self._expected:
            self._expected = plan
            for site in plan.running:
                self._book.expect(site.key)

    def _pieces(self, telemetry: Telemetry, spreads: Spreads) -> Iterator[Piece]:
        for site, array in zip(telemetry.plan.arrays, telemetry.arrays, strict=True):
            spread = self._as_said(site, spreads.of(array.sharding, array.shape))
            row = self._row(site, array.dtype.name, array.shape, spread)
            for shard in array.addressable_shards if row != UNMEASURED else ():
                place = self._places.get(shard.device)
                if place is not None:
                    yield Piece(
                        place=place,
                        row=row,
                        array=shard.data,
                        bounds=spread.held[shard.device],
                        regions=spread.regions[shard.device],
                        whole=array.shape if spread.placement else spread.piece,
                        counted=self._book.counted.get(row, ()),
                    )

    def _as_said(self, site: NamedSite, spread: Spread) -> Spread:
        """What is stacked over devices, as by `pmap`, where the user says that each has a whole."""
        known = self._said.get(site.key)
        if known is None or known[0] is not spread:
            said = self._book.says(site_label(site.kind, site.name, site.slot, site.occurrence))
            is_cut = not spread.placement or "shard" in (spread.placement | said).values()
            known = spread, spread if is_cut else wholes_of(spread)
            self._said[site.key] = known
        return known[1]

    def _rows_of(
        self, sites: Sequence[SketchedSite], array: jax.Array, spreads: Spreads
    ) -> list[int]:
        """The rows of sites whose sketches are in `array`."""
        rows = [
            self._row(one.site, one.dtype, one.shape, self._spread_of(one, array, spreads))
            for one in sites
        ]
        self._tell_uncounted(
            [one.site for one, row in zip(sites, rows, strict=True) if row in self._book.counted]
        )
        return rows

    def _tell_uncounted(self, sites: Sequence[NamedSite]) -> None:
        """Of what the program has sketched nothing else is counted; told once of each name."""
        names = {f"{site.kind}:{site.name}" for site in sites} - self._uncounted
        self._uncounted |= names
        if names:
            self._telling.report(
                f"ExactCounts are not counted of what is tapped: {', '.join(sorted(names))}"
            )

    def _spread_of(self, one: SketchedSite, array: jax.Array, spreads: Spreads) -> Spread:
        known = self._placed.get(one.site.key)
        if one.spec is not None and isinstance(array.sharding, NamedSharding):
            return spreads.of(NamedSharding(array.sharding.mesh, one.spec), one.shape)
        # Where `sketch` itself is mapped over devices, as by `pmap`, only its rows say so.
        mapped = set(spreads.of(array.sharding, array.shape).placement)
        mapped -= {self._axes.get(axis, axis) for axis in one.axes}
        names = {self._axes.get(axis, axis) for axis in one.varies} | mapped
        found = spread_of_parts(sorted(names), one.shape)
        return found if known is None or known != found else known

    def _row(self, site: NamedSite, dtype: str, shape: tuple[int, ...], spread: Spread) -> int:
        row, placed = self._book.row(site.key), self._placed.get(site.key)
        if row == UNMEASURED or (row is not None and placed is spread):
            return row
        self._placed[site.key] = spread
        placement, piece, cuts = dict(spread.placement), spread.piece, spread.cuts
        whole = shape if spread.held and placement else ()
        if row is not None:
            self._book.move(row, shape=piece, placement=placement, whole=whole, cuts=cuts)
            return row
        return self._book.add(
            site.key,
            dtype=dtype,
            shape=piece,
            module=site.module,
            placement=placement,
            whole=whole,
            cuts=cuts,
        )

    def _tell_of(self, telemetry: Telemetry) -> None:
        """Count what is passed over; what cannot be seen, or has no room, is told once."""
        for sentence in self._book.shortages():
            self._telling.report(sentence)
        plan, strays = telemetry.plan, self._strays_of(telemetry)
        self._telling.counters["tensors_unsupported"] += plan.unsupported + len(strays)
        if strays and not self._has_told_strays:
            self._has_told_strays = True
            self._telling.report(
                f"Parts of arrays are not read, for they lie on devices that are no ranks of this "
                f"run, as {strays[0]}; pass observe(…, mesh=…) with all devices of the job"
            )
        unseen, self._unseen = set(plan.unseen) - self._unseen, self._unseen | set(plan.unseen)
        if unseen:
            self._telling.report(f"Not seen are {', '.join(sorted(unseen))}")

    def _strays_of(self, telemetry: Telemetry) -> list[Device]:
        """By part of an array: the device, where that is no rank."""
        shardings = [array.sharding for array in (*telemetry.arrays, *telemetry.rows)]
        known = self._places.keys()
        return [device for one in shardings for device in one.addressable_devices - known]

    def _sites(self) -> Sites:
        """The same object while nothing changes."""
        version = len(self._book.sites), self._book.moves
        if version != self._version:
            self._version, self._known = version, Sites(*self._book.known())
        return self._known


def _groups(telemetry: Telemetry) -> Iterator[tuple[Sequence[SketchedSite], jax.Array]]:
    return zip(telemetry.plan.rows, telemetry.rows, strict=True)
