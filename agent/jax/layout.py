"""What is read of a step's telemetry on which device, and under which site."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

import jax
from jax.sharding import Mesh

from ..sitebook import UNMEASURED, SiteBook
from ..steptable import StepTable
from ..telling import Telling
from .host import HostBatch, Piece
from .meshes import Device, Ranks, Spreads
from .telemetry import NamedSite, Telemetry


class Layout:
    """Of one agent; the devices are found with the first step.

    Args:
        book: the sites and their rows.
        mesh: that of the job; None: it is that which the first step's arrays lie on.
        axes: what mesh axes are called in the run, where that is not their own name.
        telling: told of what is not read.
        found: called once with the ranks of the job.
    """

    def __init__(
        self,
        book: SiteBook,
        mesh: Mesh | None,
        axes: Mapping[str, str],
        telling: Telling,
        found: Callable[[Ranks], None],
    ) -> None:
        self.book = book
        self._axes, self._telling, self._found = axes, telling, found
        self._spreads: Spreads | None = None
        self._places = dict[Device, int]()
        self._lock = threading.Lock()
        self._mesh = mesh

    def read(self, step: int, telemetry: Telemetry) -> list[StepTable]:
        """The sketches of a step, by device of this process; waits for its arrays."""
        with self._lock:
            spreads = self._settled(telemetry.arrays)
            pieces = list(self._pieces(telemetry, spreads))
            self._telling.counters["tensors_unsupported"] += telemetry.plan.unsupported
            batch = HostBatch(step, len(self._places), len(self.book.sites))
        batch.read(pieces)
        return batch.steps()

    def settle(self, arrays: Iterable[jax.Array]) -> None:
        """Say which devices there are, if nobody has asked yet."""
        with self._lock:
            self._settled(arrays)

    def _settled(self, arrays: Iterable[jax.Array]) -> Spreads:
        if self._spreads is None:
            mesh, axes = self._mesh, self._axes
            ranks = Ranks.seen(arrays, axes) if mesh is None else Ranks.of(mesh, axes)
            self._places = {device: place for place, (_, device) in enumerate(ranks.local())}
            self._found(ranks)
            self._spreads = Spreads(ranks)
        return self._spreads

    def _pieces(self, telemetry: Telemetry, spreads: Spreads) -> Iterator[Piece]:
        for site, array in zip(telemetry.plan.arrays, telemetry.arrays, strict=True):
            spread = spreads.of(array.sharding, array.shape)
            row = self._row(site, array, spreads)
            for shard in array.addressable_shards if row != UNMEASURED else ():
                place = self._places.get(shard.device)
                if place is not None:
                    region = spread.regions[shard.device]
                    counted = self.book.counted.get(row, ())
                    yield Piece(
                        place=place, row=row, array=shard.data, region=region, counted=counted
                    )

    def _row(self, site: NamedSite, array: jax.Array, spreads: Spreads) -> int:
        key = site.kind, site.name, site.slot, 0
        row = self.book.row(key)
        if row is None:
            spread = spreads.of(array.sharding, array.shape)
            row = self.book.add(
                key,
                dtype=array.dtype.name,
                shape=array.sharding.shard_shape(array.shape),
                placement=dict(spread.placement),
                whole=array.shape if spread.placement else (),
                cuts=spread.cuts,
            )
        return row
