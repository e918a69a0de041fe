"""The schemas of a run's streams, and the room that it has for what they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

from ..merge.placement import (
    CountedAt,
    DerivedAt,
    Layout,
    ReadingAt,
    cell_of,
    lay_out,
    part_of,
)
from ..sketch.errors import StoreError
from ..sketch.exact_counts import MAX_NUMBERS, exact_count_named
from ..sketch.spectra import width_of
from ..store.catalog import Catalog
from ..store.record import QuantityInfo, SiteInfo
from ..wire.messages import MAX_READ, Schema, Site
from .attempt import Attempt
from .settings import CollectorSettings
from .stream import Known, Stream

LAYOUT_BYTES = 64
"""What a site takes of each stream's memory, beside the schema."""


class Schemas:
    """Those that the streams of a run have now.

    Args:
        run: name of the run.
        catalog: what its store knows of sites, exact counts and quantities.
    """

    def __init__(self, run: str, catalog: Catalog, settings: CollectorSettings) -> None:
        self._run, self._catalog, self._settings = run, catalog, settings
        self._shared: WeakValueDictionary[bytes, Schema] = WeakValueDictionary()
        """By hash: ranks that have the same one share it."""
        self._schema_bytes = self._site_bytes = 0

    def learn(self, stream: Stream, attempt: Attempt, schema: Schema, size_bytes: int) -> str:
        """Keep a schema of `stream`; why it is refused, or nothing.

        Args:
            size_bytes: what it takes on the wire.

        Raises:
            StoreError: there is no room for it, or for its sites.
        """
        infos = [_info(site, stream.attempt) for site in schema.sites]
        if len({info.label for info in infos}) < len(infos):
            return "A schema names a site twice."
        self._drop(stream.schemas.pop(schema.hash, None))
        shared = self._shared.get(schema.hash)
        charge = LAYOUT_BYTES * len(infos) + (size_bytes if shared is None else 0)
        self._check_room(infos, size_bytes, charge)
        indices = self._catalog.add_sites(infos)
        schema = self._shared.setdefault(schema.hash, schema)
        layout = self._lay_out(stream, attempt, schema, indices)
        stream.schemas[schema.hash] = Known(schema, layout, charge)
        self._schema_bytes += charge
        stream.needs_schema = False
        while len(stream.schemas) > self._settings.max_schemas:
            self._drop(stream.schemas.popitem(last=False)[1])
        return ""

    def forget(self, stream: Stream) -> None:
        """The stream has ended: its schemas take no room any more."""
        for known in stream.schemas.values():
            self._drop(known)

    def _drop(self, known: Known | None) -> None:
        if known is not None:
            self._schema_bytes -= known.size_bytes

    def _check_room(self, infos: Sequence[SiteInfo], size_bytes: int, charge: int) -> None:
        """Refuse a schema that takes the run's memory, or makes what it stores of sites endless."""
        if self._schema_bytes + charge > self._settings.schema_bytes:
            raise StoreError(
                f"The schemas of run {self._run!r} would take more than "
                f"{self._settings.schema_bytes >> 20} MiB."
            )
        if not self._catalog.knows(infos):
            if self._site_bytes + size_bytes > self._settings.site_bytes:
                raise StoreError(f"Run {self._run!r} was told of new sites too often.")
            self._site_bytes += size_bytes

    def _lay_out(
        self, stream: Stream, attempt: Attempt, schema: Schema, indices: Sequence[int]
    ) -> Layout:
        """Where what the stream's frames hold goes."""
        counted = self._count_at(attempt, stream.rank, schema, indices)
        derived = self._derive_at(stream, attempt, schema)
        layout = lay_out(schema.sites, indices, stream.mesh, counted, stream.groups, derived)
        return replace(layout, schema=schema)

    def _count_at(
        self, attempt: Attempt, rank: int, schema: Schema, indices: Sequence[int]
    ) -> list[CountedAt]:
        """Where the run keeps a schema's exact counts; what it has no room for is told."""
        asked = [(indices[one.site], one.name) for one in schema.exact_counts]
        places = self._catalog.add_exact_counts(asked)
        refused = {one for one, place in zip(asked, places, strict=True) if place is None}
        new = sorted(refused - attempt.refused)
        if new:
            attempt.refused.update(new)
            site, name = new[0]
            label = self._catalog.meta.sites[site].label
            text = (
                f"{len(new)} exact counts are not stored, {name} of {label} the first: "
                f"a run has room for {MAX_NUMBERS} counts."
            )
            attempt.joiner.telling.tell("no-room", rank, -1, text)
        return [
            CountedAt(one.site, place, exact_count_named(one.name).shape)
            for one, place in zip(schema.exact_counts, places, strict=True)
        ]

    def _derive_at(self, stream: Stream, attempt: Attempt, schema: Schema) -> list[DerivedAt]:
        """Where the run keeps what is read off a schema's series; what has no room is told."""
        infos = [
            QuantityInfo(
                name=reading.quantity,
                of=one.of,
                part=part_of(one.axes, stream.mesh),
                width=width_of(reading.statistic, one.size),
                is_vector=reading.statistic in ("values", "spectrum") and one.size > 1,
                start=0,
            )
            for one in schema.series
            for reading in one.readings
        ]
        places = iter(pairs := list(zip(infos, self._catalog.add_quantities(infos), strict=True)))
        refused = [info.label for info, place in pairs if place is None]
        if refused and not attempt.is_cramped:
            attempt.is_cramped = True
            text = (
                f"{len(refused)} quantities are not stored, {refused[0]} the first: "
                f"a run has room for {MAX_READ} numbers of them."
            )
            attempt.joiner.telling.tell("no-room", stream.rank, -1, text)
        return [
            DerivedAt(
                one.form,
                one.size,
                one.merge,
                cell_of(one.axes, stream.mesh),
                tuple(
                    ReadingAt(reading.statistic, reading.bound, place)
                    for reading, (_, place) in zip(one.readings, places, strict=False)
                    if place is not None
                ),
            )
            for one in schema.series
        ]


def _info(site: Site, attempt: int) -> SiteInfo:
    return SiteInfo(
        kind=site.kind,
        name=site.name,
        slot=site.slot,
        occurrence=site.occurrence,
        dtype=site.dtype,
        shape=tuple(site.shape),
        module=site.module,
        order=site.order,
        placement=dict(site.placement),
        aliases=tuple(site.aliases),
        checked=site.checked,
        whole=tuple(site.whole),
        cuts=tuple(site.cuts),
        group=site.group,
        attempt=attempt,
    )
