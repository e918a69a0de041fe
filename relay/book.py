"""The sites of all streams of a job, as joined frames count them, and where each stream's are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..merge.joining import Topology, join
from ..merge.placement import CountedAt, Layout, groups_of, lay_out
from ..merge.plan import Contribution, Plans
from ..sketch.errors import ProtocolError
from ..sketch.exact_counts import exact_count_named
from ..wire.codec import PackedFrame, decode, encode, make_schema
from ..wire.joined import JoinedFrame
from ..wire.messages import (
    Hello,
    JoinedHeader,
    JoinedMember,
    Schema,
    Site,
    SiteExactCount,
)
from .member import Member

MAX_SCHEMAS = 4096
"""Of all streams; when there are more the book is begun anew."""
MAX_COUNTED = 256
"""Of exact counts that are merged; what counts more goes up as it is."""

Label = tuple[str, str, str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A frame that is to be merged."""

    members: Sequence[Member]
    """Whose it is; of a joined frame in the order of its members."""
    schema: bytes
    frame: PackedFrame | JoinedFrame


class Book:
    """The sites of one start of a job, growing as streams name them.

    Args:
        hello: of one of its streams: all have the same mesh.
    """

    def __init__(self, hello: Hello) -> None:
        self._mesh = {axis.name: axis.size for axis in hello.mesh}
        self._world_size = hello.world_size
        self._clear()

    def _clear(self) -> None:
        self._sites = list[Site]()
        self._places = dict[Label, int]()
        self._exact_counts = dict[tuple[int, str], int]()
        self._schemas = dict[bytes, Schema | None]()
        self._layouts = dict[tuple[tuple[int, ...], bytes], Layout]()
        self._plans = Plans()
        self._grow()

    def _grow(self) -> None:
        counted = [SiteExactCount(site=site, name=name) for site, name in self._exact_counts]
        schema = make_schema(self._sites, counted)
        self.hash: bytes = schema.hash
        """Of the schema of joined frames."""
        self.body: bytes = encode(schema)
        """That schema."""
        self._topology = Topology.of(self._sites, self._mesh, self._world_size)

    def fits(self, member: Member, schema: bytes) -> bool:
        """Whether frames of a stream over the schema of that hash can be merged with others."""
        if schema not in self._schemas:
            if len(self._schemas) >= MAX_SCHEMAS:
                self._clear()
            body = member.spool.schema(schema)
            if body is None:
                return False
            self._schemas[schema] = self._enter(decode(body, "agent"))
        return self._schemas[schema] is not None

    def schema(self, hash_: bytes) -> Schema | None:
        """The schema of a hash that `fits`."""
        return self._schemas.get(hash_)

    def join(
        self, frames: Sequence[Opened], said: Mapping[int, JoinedMember]
    ) -> tuple[JoinedHeader, bytes]:
        """The joined frame of these.

        Args:
            said: by rank what is not merged.
        """
        parts = dict[int, Contribution]()
        for one in frames:
            ranks = tuple(member.hello.rank for member in one.members)
            several = ranks if isinstance(one.frame, JoinedFrame) else ()
            parts[min(ranks)] = Contribution(one.frame, self._layout(one), several)
        return join(parts, said, self._topology, self.hash, self._plans)

    def _enter(self, schema: Schema) -> Schema | None:
        """Give the sites of a schema their places; None where they are placed otherwise before."""
        new = list[Site]()
        for site in schema.sites:
            place = self._places.get(_label(site))
            if place is None:
                new.append(site)
            elif self._sites[place].placement != site.placement:
                return None
        places = {_label(site): place for place, site in enumerate([*self._sites, *new])}
        exact_counts = {**self._exact_counts}
        for one in schema.exact_counts:
            site = places[_label(schema.sites[one.site])]
            exact_counts.setdefault((site, one.name), len(exact_counts))
        sites = [*self._sites, *new]
        if len(schema.exact_counts) > MAX_COUNTED or not _is_legal(sites, exact_counts):
            return None
        self._sites, self._places, self._exact_counts = sites, places, exact_counts
        self._grow()
        return schema

    def _layout(self, one: Opened) -> Layout:
        key = tuple(member.id for member in one.members), one.schema
        known = self._layouts.get(key)
        if known is None:
            schema, hello = self._schemas[one.schema], one.members[0].hello
            assert schema is not None
            while len(self._layouts) >= MAX_SCHEMAS:
                del self._layouts[next(iter(self._layouts))]
            places = [self._places[_label(site)] for site in schema.sites]
            counted = [
                CountedAt(
                    one.site,
                    self._exact_counts[places[one.site], one.name],
                    exact_count_named(one.name).shape,
                )
                for one in schema.exact_counts
            ]
            groups = [
                name
                for member in one.members
                for name in groups_of(member.hello.mesh, member.hello.host)
            ]
            known = lay_out(schema.sites, places, hello.mesh, counted, groups)
            self._layouts[key] = known
        return known


def _is_legal(sites: Sequence[Site], exact_counts: Mapping[tuple[int, str], int]) -> bool:
    """Whether joined frames may have a schema of these: each that goes into it is legal alone."""
    counted = [SiteExactCount(site=site, name=name) for site, name in exact_counts]
    try:
        decode(encode(make_schema(sites, counted)), "agent")
    except ProtocolError:
        return False
    return True


def _label(site: Site) -> Label:
    return site.kind, site.name, site.slot, site.occurrence
