"""The law of relays: what follows from joined frames is what follows from the ranks' own."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.merge import Contribution, CountedAt, Merged, Topology, groups_of, join, lay_out
from rankscope.merge import merge_contributions as merge
from rankscope.sketch import MOMENTS, FineExponents, SketchTable, sketch_array
from rankscope.sketch.errors import ProtocolError
from rankscope.wire import (
    JoinedMember,
    MeshAxis,
    Schema,
    Site,
    SiteExactCount,
    decode,
    encode,
    encode_frame,
    make_schema,
    open_frame,
    open_joined,
)
from rankscope.wire.codec import Frame

PLACED = ("replicate", "shard", "partial")
EXACT_COUNT = FineExponents(bits=1)


class Job:
    """Ranks on a mesh, their sites placed in any way, and what each holds of one step."""

    def __init__(self, seed: int, sizes: dict[str, int], placed: list[tuple[str, ...]]) -> None:
        self.sizes = sizes
        self.sites = [
            Site(
                kind="tap",
                name=f"site{number}",
                placement=dict(zip(sizes, how, strict=True)),  # pyright: ignore[reportArgumentType]
            )
            for number, how in enumerate(placed)
        ]
        counted = [SiteExactCount(site=0, name=EXACT_COUNT.name)]
        self.schema: Schema = make_schema(self.sites, counted)
        self.ranks = range(int(np.prod(list(sizes.values()))))
        self.topology = Topology.of(self.sites, sizes, len(self.ranks))
        self.meshes = [
            [
                MeshAxis(name=axis, size=size, coordinate=at)
                for (axis, size), at in zip(sizes.items(), place, strict=True)
            ]
            for place in product(*map(range, sizes.values()))
        ]
        self.seed = seed

    def contribution(self, rank: int, *, odd: bool = False, lost: bool = False) -> Contribution:
        """What a rank holds; where `odd` its last site has one bit flipped.

        Where it is `lost` its elements are zero but for one that is not finite.
        """
        tables = []
        for number, site in enumerate(self.sites):
            cell = [
                axis.coordinate
                for axis in self.meshes[rank]
                if site.placement[axis.name] != "replicate"
            ]
            random = np.random.default_rng([self.seed, number, *cell])
            data = random.standard_normal(5).astype(np.float32)
            if lost:
                data[:] = 0, 0, np.nan, 0, 0
            if odd and number == len(self.sites) - 1:
                data.view(np.uint32)[0] ^= 1
            tables.append(sketch_array(data, start=5 * sum(cell)))
        frame = Frame(
            sequence=rank,
            step=3,
            time_ns=rank + 1,
            sites=np.arange(len(self.sites), dtype=np.uint32),
            table=SketchTable.concatenate(tables),
            exact_counts={0: np.arange(np.prod(EXACT_COUNT.shape)).reshape(EXACT_COUNT.shape) % 3},
            training={"loss": float(rank)},
        )
        header, blob = encode_frame(frame, self.schema.hash)
        return Contribution(
            open_frame(decode(header, "agent"), blob, self.schema), self.layout([rank])
        )

    def layout(self, ranks: list[int]):
        """Of a rank; or of several, whose rows say themselves where they are."""
        groups = [name for rank in ranks for name in groups_of(self.meshes[rank], f"h{rank // 8}")]
        counted = [CountedAt(0, 0, EXACT_COUNT.shape)]
        return lay_out(self.sites, range(len(self.sites)), self.meshes[ranks[0]], counted, groups)

    def joined(self, parts: dict[int, Contribution]) -> Contribution:
        """These as a relay sends them, over the wire."""
        ranks = [rank for first in sorted(parts) for rank in parts[first].members or (first,)]
        said = {
            rank: JoinedMember(stream=f"s{rank}", sequence=rank, time_ns=rank + 1) for rank in ranks
        }
        header, blob = join(parts, said, self.topology, self.schema.hash)
        frame = open_joined(decode(encode(header), "agent"), blob, self.schema)
        return Contribution(frame, self.layout(ranks), tuple(ranks))


def assert_same(relayed: Merged, flat: Merged) -> None:
    """Bit for bit, but for the rounding of sums."""
    assert relayed.sites.tolist() == flat.sites.tolist()
    # Of copies that differ another may be kept than without relays.
    agree = np.flatnonzero(~np.isin(flat.sites, [one.site for one in flat.divergences]))
    mine, right = relayed.table.take(agree), flat.table.take(agree)
    assert (mine.counts == right.counts).all()
    assert (mine.checksum == right.checksum).all()
    assert (mine.histogram == right.histogram).all()
    np.testing.assert_allclose(mine.moments, right.moments, rtol=1e-12, atol=1e-12)
    assert relayed.spread.tobytes() == flat.spread.tobytes()
    assert relayed.distribution.tobytes() == flat.distribution.tobytes()
    assert relayed.divergences == flat.divergences
    assert relayed.by_rank.keys() == flat.by_rank.keys()
    for rank, numbers in flat.by_rank.items():
        assert relayed.by_rank[rank].tobytes() == numbers.tobytes()
    assert relayed.by_group.keys() <= flat.by_group.keys()
    for name, numbers in relayed.by_group.items():
        np.testing.assert_allclose(numbers, flat.by_group[name], rtol=1e-6)
    places = np.arange(len(flat.sites))
    assert relayed.addends(places).tolist() == flat.addends(places).tolist()
    column = MOMENTS.index("projection")
    for place in places[agree].tolist():
        assert relayed.addends_of(place, column) == flat.addends_of(place, column)
    assert relayed.exact_counts.keys() == flat.exact_counts.keys()
    for index, counts in flat.exact_counts.items():
        assert (relayed.exact_counts[index] == counts).all()


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Job, dict[int, Contribution], list[int]]:
    """A job, what its ranks hold (some lack), and the relay that each is behind; -1: none."""
    sizes = {axis: draw(st.integers(1, 3)) for axis in ("dp", "fsdp", "tp")}
    how = st.lists(st.tuples(*[st.sampled_from(PLACED)] * 3), min_size=1, max_size=4)
    job = Job(draw(st.integers(0, 99)), sizes, draw(how))
    there = draw(st.sets(st.sampled_from(list(job.ranks)), min_size=1))
    odd = draw(st.sets(st.sampled_from(sorted(there)), max_size=2))
    lost = draw(st.sets(st.sampled_from(sorted(there)), max_size=2))
    parts = {
        rank: job.contribution(rank, odd=rank in odd, lost=rank in lost) for rank in sorted(there)
    }
    return job, parts, [draw(st.integers(-1, 3)) for _ in parts]


@settings(max_examples=300)
@given(jobs(), st.data())
def test_behind_relays_ranks_make_up_the_same_record(
    case: tuple[Job, dict[int, Contribution], list[int]], data: st.DataObject
) -> None:
    job, parts, relays = case
    level = list(zip(parts.items(), relays, strict=True))
    for depth in range(data.draw(st.integers(1, 3))):
        below: dict[int, dict[int, Contribution]] = {}
        for (first, part), relay in level:
            below.setdefault(relay, {})[first] = part
        above = below.pop(-1, {})
        above |= {min(own): job.joined(own) for own in below.values()}
        # On each level some come as they are, past the relays of that.
        most = 1 - depth
        level = [((rank, above[rank]), data.draw(st.integers(-1, most))) for rank in sorted(above)]

    assert_same(merge({rank: part for (rank, part), _ in level}), merge(parts))


def test_what_one_relay_holds_alone_is_one_row_a_site() -> None:
    job = Job(
        1, {"dp": 4, "tp": 2}, [("shard", "replicate"), ("shard", "shard"), ("replicate",) * 2]
    )
    parts = {rank: job.contribution(rank) for rank in job.ranks}
    left = {rank: part for rank, part in parts.items() if rank < 4}

    assert len(job.joined(parts).frame.sites) == 3
    assert len(job.joined(left).frame.sites) == 3


def test_what_others_may_hold_a_part_of_stays_in_cells() -> None:
    # Each of the four cells is held by two ranks; these three ranks are one of two of each.
    job = Job(1, {"dp": 2, "fsdp": 4}, [("replicate", "shard")])
    some = {rank: job.contribution(rank) for rank in (0, 1, 2)}
    whole = {rank: job.contribution(rank) for rank in (0, 1, 2, 3)}

    assert len(job.joined(some).frame.sites) == 3
    assert len(job.joined(whole).frame.sites) == 1


def test_a_joined_frame_is_smaller_than_its_frames() -> None:
    job = Job(1, {"dp": 80}, [("shard",)] * 50 + [("replicate",)] * 50)
    parts = {rank: job.contribution(rank) for rank in job.ranks}
    frame = job.joined(parts).frame

    assert frame.size_bytes * 5 < sum(part.frame.size_bytes for part in parts.values())


@settings(max_examples=200)
@given(st.data())
def test_damaged_bytes_are_refused_in_words(data: st.DataObject) -> None:
    job = Job(2, {"dp": 2, "tp": 2}, [("shard", "replicate"), ("partial", "shard")])
    parts = {rank: job.contribution(rank) for rank in job.ranks}
    said = {rank: JoinedMember(stream=f"s{rank}", sequence=1, time_ns=1) for rank in parts}
    header, blob = join(parts, said, job.topology, job.schema.hash)
    place = data.draw(st.integers(0, len(blob) - 1))
    broken = bytearray(blob)
    broken[place] ^= data.draw(st.integers(1, 255))

    with pytest.raises(ProtocolError, match="damaged on the way"):
        open_joined(header, bytes(broken), job.schema)
    with pytest.raises(ProtocolError, match="bytes"):
        open_joined(header, blob[:place], job.schema)
