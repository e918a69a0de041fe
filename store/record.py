"""What a writer hands to the store: sites, attempts and records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..merge.series import Derived
from ..sketch.derive import MAIN, Statistics
from ..sketch.distribution import RANKED, SUMMARY
from ..sketch.exact_counts import ExactCount, exact_count_named
from ..sketch.labels import site_label
from ..sketch.table import Ints, SketchTable
from ..wire.codec import PackedFrame
from ..wire.messages import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteInfo:
    """One observed thing: (kind, name, slot, occurrence), and facts about it."""

    kind: str
    name: str
    slot: str = ""
    occurrence: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    checked: bool = True
    """Whether its copies are compared, and its sums checked."""
    module: str = ""
    """Type of the module, where there is one."""
    order: int = 0
    """Place in the order of first execution within a step."""
    placement: Mapping[str, str] = field(default_factory=dict[str, str])
    """By mesh axis: shard, replicate or partial."""
    aliases: tuple[str, ...] = ()
    whole: tuple[int, ...] = ()
    """Shape of the whole tensor, where ranks hold pieces of it; empty where that is not known."""
    cuts: tuple[tuple[str, int], ...] = ()
    """How it is cut into them, see `sketch.regions`; empty where that is not known."""
    group: int = 0
    """Of a parameter: the number of its group over all optimizers."""
    attempt: int = 0
    """The last in which it was seen with these facts."""

    @property
    def label(self) -> str:
        """The unique name of the site within its run."""
        return site_label(self.kind, self.name, self.slot, self.occurrence)


def addend_pairs(sites: Sequence[SiteInfo], kind: str) -> list[tuple[int, int]]:
    """Of each site of a kind that is a sum over ranks the places of its addends, and its own."""
    sums = {
        (one.name, one.slot, one.occurrence): place
        for place, one in enumerate(sites)
        if one.kind == kind
    }
    return [
        (place, sums[one.name, one.slot, one.occurrence])
        for place, one in enumerate(sites)
        if one.kind == f"local_{kind}" and (one.name, one.slot, one.occurrence) in sums
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactCountInfo:
    """What is counted of a site's tensor beside its sketch."""

    site: int
    """Index into the run's sites."""
    name: str
    """See `sketch.exact_counts`."""
    start: int
    """Where its counts begin on the axis `number`."""

    @property
    def exact_count(self) -> ExactCount:
        """What it counts."""
        return exact_count_named(self.name)

    @property
    def numbers(self) -> slice:
        """Its part of the axis `number`."""
        return slice(self.start, self.start + math.prod(self.exact_count.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityInfo:
    """A quantity that was read off a series of one module or parameter."""

    name: str
    of: str
    """The module or parameter, and `#n` for a later call within one forward."""
    part: str = ""
    """Of which ranks alone it is, as `tp=1`; empty where it is of all."""
    width: int
    """How many numbers it has."""
    is_vector: bool = False
    start: int
    """Where its numbers begin on the axis `value`."""

    @property
    def numbers(self) -> slice:
        """Its part of the axis `value`."""
        return slice(self.start, self.start + self.width)

    @property
    def label(self) -> str:
        """Its unique name within the run."""
        return f"{self.name}:{self.of}" + (f"@{self.part}" if self.part else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """One rank of an attempt, as it introduced itself."""

    rank: int
    host: str = ""
    process: int = 0
    device: str = ""
    coordinates: Mapping[str, int] = field(default_factory=dict[str, int])
    """By mesh axis."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One recorded step of one attempt, merged over ranks; the unit of the store's long axis."""

    index: int
    """Place on the long axis. The next free one appends; an earlier one patches that record."""
    step: int
    attempt: int
    time_ns: int
    """Wall clock when the first rank ended the step, nanoseconds since 1970."""
    ranks: tuple[int, ...]
    """The ranks whose sketches it holds, ascending."""
    complete: bool
    """Whether all ranks of the attempt are in it."""
    partial: bool
    """Whether a rank's step had not ended (a hang, a crash)."""
    final: bool
    """Whether this is the state after the last step."""
    unmatched: bool = False
    """Whether the ranks' own gradients are not what the reduced ones of the step were made of."""
    kept: bool = False
    """Whether ranks had kept it back, and it may come after records of later steps."""
    sites: NDArray[np.intp]
    """intp [rows]: index into the run's sites, strictly increasing."""
    merged: SketchTable
    """One row a site, merged over cells."""
    spread: NDArray[np.float32]
    """float32 [rows, len(MAIN), len(SPREAD)], NaN where no rank has a number."""
    by_rank: Mapping[int, NDArray[np.float32]]
    """float32 [rows, len(MAIN)] for each rank that is kept; NaN where the rank lacks the site."""
    training: Mapping[int, Mapping[str, float]]
    """Training statistics by rank."""
    health: Mapping[int, Mapping[str, float]]
    """The agents' counters by rank."""
    exact_counts: Mapping[int, Ints] = field(default_factory=dict[int, Ints])
    """By index into the run's exact_counts: what was counted, merged over cells."""
    by_group: Mapping[str, NDArray[np.float32]] = field(
        default_factory=dict[str, NDArray[np.float32]]
    )
    """By name of a group of ranks: float32 [rows, len(MAIN)] of what these make up."""
    distribution: NDArray[np.float32] = field(
        default_factory=lambda: np.empty((0, 0, len(RANKED), len(SUMMARY)), np.float32)
    )
    """float32 [peers, rows, len(RANKED), len(SUMMARY)] over the ranks at each coordinate of the
    mesh axis `tp`, see `sketch.distribution`; without peers where there are not several ranks."""
    derived: Derived = field(default_factory=lambda: Derived({}))
    """Series of which quantities are read off, by index into the run's quantities."""
    told: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, len(MAIN)), np.float32))
    """float32 [rows, len(MAIN)]: the main statistics of rows of `merged` that lack moments, as who
    counted told them; NaN where that is not known. Without rows where none lacks them."""
    statistics: Statistics = field(init=False, repr=False, compare=False)
    """Of `merged`: for all who read the record each is derived once, or as it was told."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "statistics", Statistics(self.merged, self.told))

    @property
    def size_bytes(self) -> int:
        """What its arrays take of memory."""
        apart = (*self.by_rank.values(), *self.by_group.values(), *self.exact_counts.values())
        columns = *self.merged.columns(), self.spread, self.distribution, *apart
        return sum(column.nbytes for column in columns) + self.derived.size_bytes


class RankFrame(NamedTuple):
    """What one rank said about one step."""

    frame: PackedFrame
    schema: Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFrames:
    """Frames of single ranks that are kept as they came, beside what all ranks make up."""

    record: int
    """Index of the record that they went into; it must be stored, or be stored with them."""
    frames: Mapping[int, RankFrame]
    """By rank. They replace all that were kept of the record before."""

    @property
    def size_bytes(self) -> int:
        """Bytes of what the frames hold."""
        return sum(one.frame.size_bytes for one in self.frames.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What a rule found wrong; stored when it begins, and again when it has ended.

    Attempt, rule, site and first step say which alert it is: a later entry replaces an earlier.
    """

    rule: str
    """Its name, see `docs/rules.md`."""
    severity: str = "error"
    """`error`, `warning` or `notice`."""
    attempt: int
    site: str
    """Its label; empty where it is of no single site."""
    ranks: tuple[int, ...]
    """Those to blame; where two copies differ both; empty where nobody can know."""
    first_step: int
    last_step: int | None
    """The last in which it was found; None: it goes on, or did so to the end."""
    value: float
    threshold: float
    """What `value` may be at most."""
    text: str
    """One sentence for people."""
    time_ns: int
    """Wall clock of the record with which it was told, nanoseconds since 1970."""
    record: int = -1
    """Index of that record; -1 in runs of before 2026-11-23."""
    evidence: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers behind it, by name."""

    @property
    def undetermined(self) -> bool:
        """Whether some of `ranks` are to blame, and nobody can know which: copies without majority.

        Where one can, fewer than all holders are odd, and their share, the value, is below 1.
        """
        return self.rule == "replica-divergence" and self.value >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to the pipeline and belongs to the run: a gap, a lost rank."""

    kind: str
    """`gap`, `report`, `rank-lost`, `rank-joined`, `retention`, …"""
    attempt: int
    rank: int
    step: int
    text: str
    """One sentence for people."""
    time_ns: int = 0
    last_step: int | None = None
    """Of a gap, which begins at `step`: where it ends."""
    frames: int = 0
    """Of a gap: how many frames, or steps that never became one, are not there."""
    cause: str = ""
    """Of a gap: why."""
