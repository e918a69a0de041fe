"""Joins what the ranks of one attempt say about each step into records. No I/O, no clock.

Rules of this file: a rank's frames come in order, so a rank that has sent a later step will not
send an earlier one, but for those that it had kept back. Records close in order. A record is open
until every rank that is awaited is in it or past it, or until its deadline; then late ranks patch
it for a while; what comes after that is dropped, and told as a gap.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..merge.joining import KEPT_RANKS
from ..merge.merging import Merged, merge_contributions
from ..merge.placement import Layout
from ..merge.plan import Contribution, Plans
from ..merge.series import Derived
from ..rules.book import RuleBook
from ..rules.watch import Watch
from ..store.record import Alert, Event, QuantityInfo, RankFrames, Record, SiteInfo
from ..wire.codec import PackedFrame
from ..wire.joined import JoinedFrame
from ..wire.messages import Gap
from .exact import Exact
from .held import Held, Key
from .keeper import Keeper, PerRank, keeps
from .ranks import Rank, Ranks
from .telling import Telling

RECORD_BYTES, RANK_BYTES = 1024, 64
"""What an open record takes of memory, and each rank that it waits for."""
LATE = "it came after the record had been closed for good"
UNREADABLE = "its frame could not be read"
UNMERGED = "the record could not be merged"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinerSettings:
    """How long and how much a joiner waits."""

    deadline_s: float = 10.0
    """An open record is closed this long after its first frame."""
    lost_after_s: float = 30.0
    """A rank that was silent for so long is no longer waited for."""
    stalled_after_s: float = 30.0
    """When no rank has come to another step or site for so long, it is told where each is."""
    begins_within_s: float = 300.0
    """The same in the first step: training may be compiled, and rankscope's own kernels."""
    retain_s: float = 120.0
    """How long after its closing a record can be patched."""
    retain_records: int = 256
    """How many closed records can be patched at a time."""
    retain_bytes: int = 64 << 20
    open_bytes: int = 128 << 20
    """Above this the oldest open records are closed before their deadline."""
    keep_ranks: int = KEPT_RANKS
    """Main statistics are kept for each rank of an attempt of at most this many ranks …"""
    per_rank: PerRank = "alert"
    """… and whole frames of these ranks, whose main statistics are kept in any attempt."""
    rules: RuleBook = field(default_factory=RuleBook)
    """What records are judged by, beside copies and sums."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """What one commit makes durable."""

    records: list[Record] = field(default_factory=list[Record])
    events: list[Event] = field(default_factory=list[Event])
    alerts: list[Alert] = field(default_factory=list[Alert])
    rank_frames: list[RankFrames] = field(default_factory=list[RankFrames])
    released: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Stream and sequence number of the frames that are durable once this is."""
    left: list[str] = field(default_factory=list[str])
    """Streams whose goodbye is durable once this is."""
    judged: Counter[str] = field(default_factory=Counter[str])
    """By rule, of how many of the records it could judge something."""
    learnt: dict[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])
    """By attempt what was learnt of all records up to these, see `Exact`."""
    size_bytes: int = 0
    """What its records, and the frames of single ranks, take of memory."""

    def add(self, other: Batch) -> None:
        """Make that durable, too."""
        self.records += other.records
        self.events += other.events
        self.alerts += other.alerts
        self.rank_frames += other.rank_frames
        self.released += other.released
        self.judged += other.judged
        self.learnt |= other.learnt
        self.size_bytes += other.size_bytes


@dataclass(slots=True)
class _Late:
    """Frames of one rank that came too late."""

    steps: list[int] = field(default_factory=list[int])
    released: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    told: list[Event] = field(default_factory=list[Event])


class Joiner:
    """The records of one attempt in the making.

    Args:
        attempt: number of the attempt within its run.
        world_size: how many ranks it has.
        site: what is known of a site of the run.
    """

    def __init__(
        self,
        attempt: int,
        world_size: int,
        *,
        site: Callable[[int], SiteInfo],
        settings: JoinerSettings | None = None,
    ) -> None:
        self.attempt = attempt
        self.world_size = world_size
        self.settings = settings = settings or JoinerSettings()
        self.telling = Telling(attempt)
        """What the next batch tells beside records."""
        self.ranks = Ranks(
            world_size,
            self.telling,
            lost_after_s=settings.lost_after_s,
            stalled_after_s=settings.stalled_after_s,
            begins_within_s=settings.begins_within_s,
        )
        self._order: list[Key] = []
        self._open: dict[Key, Held] = {}
        self._closed: OrderedDict[Key, Held] = OrderedDict()
        self._forgotten: OrderedDict[Key, None] = OrderedDict()
        self._late: dict[int, _Late] = {}
        self._skipped: list[tuple[str, int]] = []
        self._plans = Plans()
        self._keeper = Keeper(settings.per_rank, world_size)
        self.watch = Watch(attempt, site, settings.rules)
        """What its records are judged by."""
        self._exact = Exact(site)
        self._open_bytes = 0
        self._closed_bytes = 0
        self._changed = 0

    @property
    def open_records(self) -> int:
        """How many records still wait for ranks."""
        return len(self._order)

    @property
    def held_bytes(self) -> int:
        """Bytes of frames in open and in retained records."""
        return self._open_bytes + self._closed_bytes

    def ready(self, most: int) -> int:
        """How many records could be closed now because nothing is awaited, counted up to `most`."""
        count = 0
        while count < min(most, len(self._order)) and not self._open[self._order[count]].waiting:
            count += 1
        return count

    @property
    def is_awaiting(self) -> bool:
        """Whether an open record waits for a rank."""
        return any(held.waiting for held in self._open.values())

    def begins(self, rank: int, step: int, *, final: bool, kept: bool) -> bool:
        """Whether a frame of `rank` would begin a record."""
        state = self.ranks.known.get(rank)
        key = self._key(state, step, final, kept=kept) if state else None
        return key not in self._open and key not in self._closed

    def pass_over(self, rank: int) -> None:
        """Nothing of `rank` will come into the open records any more."""
        for held in self._open.values():
            held.waiting.discard(rank)

    def lose_absent(self, why: str) -> None:
        """Who is still there will not be heard of again: each is told as lost.

        Args:
            why: the middle of a sentence, from the verb on.
        """
        for rank in self.ranks.present():
            self._lose(rank, why)

    def leave(self, rank: int, reason: str = "") -> None:
        """The rank ended its stream: nothing waits for it any more."""
        if self.ranks.leave(rank, reason):
            self.pass_over(rank)

    def feed(
        self,
        rank: int,
        stream: str,
        frame: PackedFrame,
        layout: Layout,
        now: float,
        lost: Sequence[Gap] = (),
    ) -> None:
        """Take in a frame of `rank`; what follows from it is in the next `tick`.

        Args:
            lost: what was lost since the frame before, told with the record that this goes to.
        """
        header = frame.header
        state = self.ranks.arrive(rank, header.step, now, kept=header.kept)
        told = [
            *(
                self.telling.event("report", rank, header.step, said, header.time_ns)
                for said in header.reports
            ),
            *(self.telling.gap(rank, gap) for gap in lost),
        ]
        key = self._key(state, header.step, header.final, kept=header.kept)
        if state.position is None or key > state.position or not header.kept:
            self._move(rank, state, key)
            state.unfinished = header.partial
        part, frames = Contribution(frame, layout), {rank: (stream, header.sequence)}
        self._file(key, frames, part, now, told, kept=header.kept)

    def feed_joined(
        self,
        ranks: Sequence[int],
        frame: JoinedFrame,
        layout: Layout,
        now: float,
        lost: Mapping[int, Sequence[Gap]],
    ) -> None:
        """Take in what a relay has joined of frames of these ranks, in the order of its members.

        Args:
            lost: by rank what was lost since the frame before.
        """
        header = frame.header
        states = [self.ranks.arrive(rank, header.step, now, kept=False) for rank in ranks]
        # They may have been rewound, all or some; one record has them all.
        key = max(self._key(state, header.step, header.final, kept=False) for state in states)
        for rank, state in zip(ranks, states, strict=True):
            self._move(rank, state, key)
            state.unfinished = False
        sent = [(member.stream, member.sequence) for member in header.members]
        told = [self.telling.gap(rank, gap) for rank, gaps in lost.items() for gap in gaps]
        part, frames = (
            Contribution(frame, layout, tuple(ranks)),
            dict(zip(ranks, sent, strict=True)),
        )
        self._file(key, frames, part, now, told, kept=False)

    def lose(self, rank: int, stream: str, sequence: int, lost: Sequence[Gap]) -> None:
        """All of a stream up to `sequence` that did not come never will: see `lost`.

        It counts as dealt with once these gaps are durable.
        """
        self._skipped.append((stream, sequence))
        self.telling.add(*(self.telling.gap(rank, gap) for gap in lost))

    def tick(
        self, now: float, next_index: int, *, most: int | None = None, everything: bool = False
    ) -> Batch:
        """What is ready to be committed.

        Args:
            now: seconds, on the clock of `feed`.
            next_index: number of the next new record of the run.
            most: records of those that nothing is awaited for, the earliest; the others wait for
                the next call.
            everything: close what is open, too: the collector ends.
        """
        for rank in self.ranks.silent(now):
            self._lose(rank, f"was silent for {self.settings.lost_after_s:g} s")
        self.ranks.find_stall(now)
        batch = Batch()
        due = len(self._order) if everything else self._due(now, most)
        for key in self._order[:due]:
            next_index += self._close(key, now, next_index, batch)
        del self._order[:due]
        self._patch(batch)
        self._forget(now)
        self._tell_late(batch)
        batch.events = self.telling.take(batch.events)
        batch.released += self._skipped
        self._skipped = []
        batch.judged, self.watch.judged = self.watch.judged, Counter[str]()
        batch.learnt[self.attempt] = self._exact.learnt()
        return batch

    def recall(self, learnt: Mapping[str, Any]) -> None:
        """What an earlier collector of the attempt has stored as `Batch.learnt`."""
        self._exact.recall(learnt)

    # Ranks ---------------------------------------------------------------------------------------

    def _key(self, state: Rank, step: int, final: bool, *, kept: bool) -> Key:
        position = state.position
        if position is None:
            return self._meet(0, step, final) or (self._lowest_epoch(), step, final)
        again = (step, final) == position[1:] and state.unfinished
        if (step, final) > position[1:] or again or kept:
            return (position[0], step, final)
        epoch = position[0] + 1
        return self._meet(epoch, step, final) or (epoch, step, final)

    def _meet(self, epoch: int, step: int, final: bool) -> Key | None:
        """The first open record of that step from `epoch` on."""
        known = (key for key in self._order if key[0] >= epoch and key[1:] == (step, final))
        return next(known, None)

    def _lowest_epoch(self) -> int:
        places = [state.position for state in self.ranks.known.values() if not state.gone]
        return min((place[0] for place in places if place is not None), default=0)

    def _move(self, rank: int, state: Rank, key: Key) -> None:
        """The rank has come to `key`: no record before it waits for the rank."""
        begin = 0 if state.position is None else bisect_left(self._order, state.position)
        for earlier in self._order[begin : bisect_left(self._order, key)]:
            self._open[earlier].waiting.discard(rank)
        state.position = key

    def _lose(self, rank: int, why: str) -> None:
        self.ranks.lose(rank, why)
        self.pass_over(rank)

    # Records -------------------------------------------------------------------------------------

    def _begin(self, key: Key, now: float, kept: bool) -> Held | None:
        if key in self._forgotten:
            return None
        awaited = self._awaited(key, kept)
        size_bytes = RECORD_BYTES + RANK_BYTES * len(awaited)
        held = self._open[key] = Held(key, now, awaited, size_bytes=size_bytes, kept=kept)
        self._open_bytes += size_bytes
        insort(self._order, key)
        return held

    def _awaited(self, key: Key, kept: bool) -> set[int]:
        """Ranks that have not come to a record yet; what they have kept back comes, or does not."""
        awaited = set(range(self.world_size)) - self.ranks.left_before
        for rank, state in self.ranks.known.items():
            at = state.position
            if state.gone or (at is not None and (at > key or (kept and at == key))):
                awaited.discard(rank)
        return awaited

    def _file(
        self,
        key: Key,
        frames: Mapping[int, tuple[str, int]],
        part: Contribution,
        now: float,
        told: Sequence[Event],
        *,
        kept: bool,
    ) -> None:
        """Put what these ranks hold into its record; `frames` are their streams and sequences."""
        held = self._open.get(key) or self._closed.get(key) or self._begin(key, now, kept)
        if held is None or not held.has_room(frames.keys()):
            for rank, frame in frames.items():
                late = self._late.setdefault(rank, _Late())
                late.steps.append(key[1])
                late.released.append(frame)
                late.told += [event for event in told if event.rank == rank]
            return
        growth = held.put(part, frames, told)
        if held.index < 0:
            self._open_bytes += growth
            return
        self._closed_bytes += growth
        self._changed += not held.changed
        held.changed = True

    def _due(self, now: float, most: int | None) -> int:
        """How many of the open records, in order, are to be closed."""
        due, oldest = 0, now - self.settings.deadline_s
        surplus = self._open_bytes - self.settings.open_bytes
        clear = True
        for place, key in enumerate(self._order):
            held = self._open[key]
            clear = clear and not held.waiting and (most is None or place < most)
            if clear or held.opened <= oldest or surplus > 0:
                due = place + 1
            surplus -= held.size_bytes
        return due

    def _close(self, key: Key, now: float, index: int, batch: Batch) -> bool:
        """Close a record; whether there is one now."""
        held = self._open.pop(key)
        held.index, held.closed = index, now
        self._open_bytes -= held.size_bytes
        if not self._emit(held, batch):
            self._remember(key)
            return False
        if self._may_change(held):
            self._closed[key] = held
            self._closed_bytes += held.size_bytes
        elif len(held.ranks) < self.world_size:
            self._remember(key)
        return True

    def _emit(self, held: Held, batch: Batch, *, patched: bool = False) -> bool:
        """Put the record as it is now into the batch."""
        _, step, final = held.key
        frames = len(held.released)
        batch.released += held.released
        batch.events += held.told
        held.released, held.told, held.changed = [], [], False
        try:
            merged = merge_contributions(held.parts, self._plans)
        except Exception as error:  # what peers have sent never ends what serves all
            cause = f"{UNMERGED}: {error!r}"
            gap = Gap(first_step=step, last_step=step, frames=frames, cause=cause)
            batch.events.append(self.telling.gap(-1, gap))
            return False
        said = held.said()
        is_small, kept = self.world_size <= self.settings.keep_ranks, self.settings.per_rank
        record = Record(
            index=held.index,
            step=step,
            attempt=self.attempt,
            time_ns=min(one.time_ns for one in said.values()),
            ranks=tuple(said),
            complete=len(said) == self.world_size,
            partial=any(held.is_unfinished(rank) for rank in held.parts),
            final=final,
            unmatched=merged.unmatched,
            kept=held.kept,
            sites=merged.sites,
            merged=merged.table,
            spread=merged.spread,
            by_rank={
                rank: own for rank, own in merged.by_rank.items() if is_small or keeps(kept, rank)
            },
            training={rank: one.training for rank, one in said.items()},
            health={rank: one.health for rank, one in said.items()},
            exact_counts=merged.exact_counts,
            derived=Derived.of([held.parts[rank] for rank in sorted(held.parts)]),
            by_group=merged.by_group,
            distribution=merged.distribution,
        )
        batch.records.append(record)
        batch.size_bytes += record.size_bytes
        alerts = self._judge(record, merged, patched=patched or held.kept)
        batch.alerts += alerts
        frames_kept = self._keeper.keep(held.index, held.parts, alerts)
        batch.rank_frames += frames_kept
        batch.size_bytes += sum(one.size_bytes for one in frames_kept)
        return True

    def _judge(self, record: Record, merged: Merged, *, patched: bool) -> list[Alert]:
        """What begins and what ends with a record."""
        watch, broken = self.watch, len(self.watch.broken)
        whole = record.complete and not record.partial
        try:
            given = self._exact.judge(merged, watch.firing, record.training, whole=whole)
            alerts = watch.judge(record, given, world_size=self.world_size, patched=patched)
        except Exception as error:  # what peers have sent never costs the record
            text = f"A record was not judged: {error!r}."
            self.telling.tell("rule-failed", -1, record.step, text)
            return []
        for text in self._exact.unjudged.take():
            self.telling.tell("not-judged", -1, record.step, text)
        for name, why in list(watch.broken.items())[broken:]:
            text = f"Rule {name} has failed, and judges no more: {why.rstrip('.')}."
            self.telling.tell("rule-failed", -1, record.step, text)
        return alerts

    def judge_quantities(
        self, record: Record, quantities: Sequence[QuantityInfo], sites: Sequence[SiteInfo]
    ) -> list[Alert]:
        """What begins and what ends with the quantities of a record that is stored."""
        try:
            return self.watch.judge_quantities(record, quantities, sites)
        except Exception as error:  # what peers have sent never costs the record
            text = f"The quantities of a record were not judged: {error!r}."
            self.telling.tell("rule-failed", -1, record.step, text)
            return []

    def _may_change(self, held: Held) -> bool:
        """Whether a rank may still add to a closed record, or replace what it sent."""
        if held.kept:
            return len(held.ranks) < self.world_size
        for rank in range(self.world_size):
            state = self.ranks.known.get(rank)
            if rank not in held.ranks:
                if state is None or state.position is None or state.position < held.key:
                    return True
            elif self._is_amid(rank, held):
                return True
        return False

    def _is_amid(self, rank: int, held: Held) -> bool:
        """Whether a rank is still in the step of a record that has what it had seen of it."""
        state = self.ranks.known.get(rank)
        return held.is_unfinished(rank) and state is not None and state.position == held.key

    def _patch(self, batch: Batch) -> None:
        """Emit the closed records that changed; in order, so that no earlier frame is overtaken."""
        if not self._changed:
            return
        first_open = self._order[0] if self._order else None
        for key, held in list(self._closed.items()):
            if held.changed and (first_open is None or key < first_open):
                self._emit(held, batch, patched=True)
                self._changed -= 1
                if not self._may_change(held):
                    self._drop(key)

    def _forget(self, now: float) -> None:
        """Let go of closed records beyond the retention window, oldest first.

        A step may take as long as it likes, as one in which a model is compiled.
        """
        settings = self.settings
        while self._closed:
            key, held = next(iter(self._closed.items()))
            within = (
                len(self._closed) <= settings.retain_records
                and self._closed_bytes <= settings.retain_bytes
                and (
                    now - held.closed <= settings.retain_s
                    or any(self._is_amid(rank, held) for rank in self.ranks.present())
                )
            )
            if within or held.changed:
                return
            self._drop(key)
            self._remember(key)

    def _drop(self, key: Key) -> None:
        self._closed_bytes -= self._closed.pop(key).size_bytes

    def _remember(self, key: Key) -> None:
        self._forgotten[key] = None
        while len(self._forgotten) > 16 * self.settings.retain_records:
            self._forgotten.popitem(last=False)

    def _tell_late(self, batch: Batch) -> None:
        for rank, late in self._late.items():
            gap = Gap(
                first_step=min(late.steps),
                last_step=max(late.steps),
                frames=len(late.steps),
                cause=LATE,
            )
            batch.events.append(self.telling.gap(rank, gap))
            batch.released += late.released
            batch.events += late.told
        self._late = {}
