"""Records in time: who is awaited, what closes, what is patched. The clock is a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.collector import Batch, Joiner, JoinerSettings, Place
from rankscope.collector.joiner import LATE
from rankscope.rules import RuleBook
from rankscope.sketch import derive
from rankscope.store import Record, SiteInfo
from rankscope.wire import Schema, Site

from .conftest import Rank

Ranks = Callable[[int], list[Rank]]

SITES = [SiteInfo(kind="activation", name="fc"), SiteInfo(kind="weight", name="fc")]


def new_joiner(attempt: int, world_size: int, settings: JoinerSettings | None = None) -> Joiner:
    """A joiner of ranks that have the sites of the fixture `ranks`."""
    return Joiner(attempt, world_size, site=SITES.__getitem__, settings=settings)


def feed(
    joiner: Joiner, rank: Rank, step: int, now: float = 0.0, value: float = 1.0, **more: Any
) -> None:
    frame = rank.frame(step, value, 1.0, **more)
    joiner.feed(rank.rank, rank.stream, frame, rank.layout, now)


def steps(batch: Batch) -> list[tuple[int, int, tuple[int, ...], bool]]:
    return [(record.index, record.step, record.ranks, record.complete) for record in batch.records]


def kinds(batch: Batch) -> list[str]:
    return [event.kind for event in batch.events]


def test_a_record_closes_when_all_ranks_are_in(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(3, 2), ranks(2)
    feed(joiner, one, 7, value=5.0, time_ns=20, training={"loss": 2.0}, health={"drops": 1.0})
    assert steps(joiner.tick(0.1, 0)) == []
    feed(joiner, zero, 7, value=3.0, time_ns=30)
    batch = joiner.tick(0.2, 4)

    assert steps(batch) == [(4, 7, (0, 1), True)]
    record = batch.records[0]
    assert (record.attempt, record.time_ns, record.partial, record.final) == (3, 20, False, False)
    assert derive(record.merged, "sum").tolist() == [8.0, 1.0]
    assert record.training == {0: {}, 1: {"loss": 2.0}}
    assert record.health[1] == {"drops": 1.0}
    assert sorted(batch.released) == [("stream-0", 0), ("stream-1", 0)]
    assert joiner.held_bytes == 0


def test_a_record_closes_at_its_deadline_and_a_late_rank_patches_it(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    feed(joiner, zero, 1, 0.0, 3.0)
    assert steps(joiner.tick(9.9, 0)) == []
    assert steps(joiner.tick(10.0, 0)) == [(0, 1, (0,), False)]
    feed(joiner, one, 1, 11.0, 4.0)
    batch = joiner.tick(11.1, 1)

    assert steps(batch) == [(0, 1, (0, 1), True)]
    assert batch.released == [("stream-1", 0)]
    assert derive(batch.records[0].merged, "sum").tolist() == [7.0, 1.0]
    assert steps(joiner.tick(12.0, 1)) == []
    assert joiner.held_bytes == 0


def test_frames_that_were_kept_back_fill_the_steps_before(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    for rank in (zero, one):
        feed(joiner, rank, 0)
        feed(joiner, rank, 10)
    assert steps(joiner.tick(0.1, 0)) == [(0, 0, (0, 1), True), (1, 10, (0, 1), True)]
    feed(joiner, zero, 9, kept=True)
    feed(joiner, zero, 10, value=3.0, kept=True)  # what of it was not sent before
    feed(joiner, zero, 11)
    batch = joiner.tick(0.2, 2)
    assert steps(batch) == [(2, 9, (0,), False), (3, 10, (0,), False)]
    feed(joiner, one, 9, kept=True)
    feed(joiner, one, 11)
    feed(joiner, zero, 12)
    feed(joiner, one, 12)
    batch = joiner.tick(0.3, 4)
    assert steps(batch) == [
        (4, 11, (0, 1), True),
        (5, 12, (0, 1), True),
        (2, 9, (0, 1), True),
    ]
    assert len(batch.released) == 5
    assert batch.events == []
    assert steps(joiner.tick(200.0, 6)) == []
    assert joiner.held_bytes == 0


def test_a_kept_frame_ends_no_alert_and_waits_for_nobody_for_long(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    feed(joiner, zero, 10, value=1.0)
    joiner.feed(1, one.stream, one.frame(10, 1.0, 2.0), one.layout, 0.0)
    assert [alert.rule for alert in joiner.tick(0.1, 0).alerts] == ["replica-divergence"]
    for rank in (zero, one):
        feed(joiner, rank, 9, kept=True)
    batch = joiner.tick(0.2, 1)
    assert steps(batch) == [(1, 9, (0, 1), True)]
    assert batch.alerts == []


def test_what_comes_after_the_retention_is_told_as_a_gap(ranks: Ranks) -> None:
    joiner = new_joiner(0, 2, settings=JoinerSettings(retain_s=5.0, lost_after_s=1e9))
    zero, one = ranks(2)
    feed(joiner, zero, 1)
    feed(joiner, zero, 2)
    joiner.tick(10.0, 0)
    joiner.tick(15.1, 2)
    feed(joiner, one, 1, 16.0)
    feed(joiner, one, 2, 16.0)
    batch = joiner.tick(16.1, 2)

    assert batch.records == []
    [gap] = batch.events
    assert (gap.kind, gap.rank, gap.step, gap.last_step, gap.frames) == ("gap", 1, 1, 2, 2)
    assert gap.text == f"Rank 1 lost 2 frames of steps 1 to 2: {LATE}."
    assert batch.released == [("stream-1", 0), ("stream-1", 1)]


def size_of_a_record(ranks: Ranks) -> int:
    """What an open record with one frame counts for; more than the frame's columns."""
    joiner, zero = new_joiner(0, 2), ranks(2)[0]
    feed(joiner, zero, 0)
    assert joiner.held_bytes > zero.frame(0, 1.0, 1.0).size_bytes
    return joiner.held_bytes


def test_the_retention_is_bounded_in_records_and_bytes(ranks: Ranks) -> None:
    zero = ranks(2)[0]
    size = size_of_a_record(ranks)
    for bounds in (
        JoinerSettings(retain_records=3),
        JoinerSettings(retain_bytes=3 * size),
    ):
        joiner = new_joiner(0, 2, settings=bounds)
        for step in range(8):
            feed(joiner, zero, step)
        assert len(joiner.tick(10.0, 0).records) == 8
        assert joiner.held_bytes == 3 * size


def test_memory_for_open_records_is_bounded_by_closing_the_oldest(ranks: Ranks) -> None:
    zero = ranks(2)[0]
    size = size_of_a_record(ranks)
    joiner = new_joiner(0, 2, settings=JoinerSettings(open_bytes=2 * size))
    for step in range(5):
        feed(joiner, zero, step)

    assert [record.step for record in joiner.tick(0.1, 0).records] == [0, 1, 2]


def test_frames_that_are_stored_beside_a_record_count_until_they_are(ranks: Ranks) -> None:
    sizes = list[int]()
    for kept in ("none", "all"):
        joiner, (zero, one) = new_joiner(0, 2, JoinerSettings(per_rank=kept)), ranks(2)
        for rank in (zero, one):
            schema = Schema(hash=bytes(16), columns=[], sites=[*rank.sites])
            rank.layout = replace(rank.layout, schema=schema)
            feed(joiner, rank, 0)
        batch = joiner.tick(0.1, 0)
        sizes.append(batch.size_bytes)

    assert list(batch.rank_frames[0].frames) == [0, 1]
    assert sizes[1] - sizes[0] == 2 * ranks(2)[0].frame(0, 1.0, 1.0).size_bytes


def test_a_record_counts_for_the_ranks_that_it_waits_for_and_for_what_headers_say(
    ranks: Ranks,
) -> None:
    small, large = new_joiner(0, 2), new_joiner(0, 20_000)
    for joiner in (small, large):
        feed(joiner, ranks(2)[0], 0)
    assert large.held_bytes - small.held_bytes > 19_000 * 32
    before = small.held_bytes
    rank = ranks(2)[0]
    small.feed(0, "s", rank.frame(1, 1.0, 1.0, reports=["x" * 1000] * 50), rank.layout, 0.0)
    assert small.held_bytes - before > 50_000


def test_events_of_one_batch_are_bounded_and_the_rest_is_counted(ranks: Ranks) -> None:
    joiner, rank = new_joiner(0, 1), ranks(1)[0]
    joiner.feed(0, "s", rank.frame(0, 1.0, 1.0, reports=["again"] * 4096), rank.layout, 0.0)
    joiner.feed(0, "s", rank.frame(1, 1.0, 1.0, reports=["again"] * 100), rank.layout, 0.0)
    events = joiner.tick(0.1, 0).events

    assert len(events) == 4097
    assert events[-1].text == "100 more events came at once, and were left out."


def test_a_rank_that_has_passed_a_step_is_not_awaited(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    feed(joiner, zero, 1)
    feed(joiner, zero, 2)
    feed(joiner, one, 2)

    assert steps(joiner.tick(0.1, 0)) == [(0, 1, (0,), False), (1, 2, (0, 1), True)]


def test_records_close_in_order_of_steps(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    feed(joiner, one, 5, 0.0)
    feed(joiner, zero, 4, 6.0)
    assert steps(joiner.tick(7.0, 0)) == [(0, 4, (0,), False)]
    feed(joiner, zero, 5, 8.0)

    assert steps(joiner.tick(8.0, 1)) == [(1, 5, (0, 1), True)]


def test_a_deadline_closes_what_comes_before_it(ranks: Ranks) -> None:
    joiner, (zero, one, two) = new_joiner(0, 3), ranks(3)
    feed(joiner, one, 5, 0.0)
    feed(joiner, zero, 4, 6.0)

    assert [record.step for record in joiner.tick(10.0, 0).records] == [4, 5]
    feed(joiner, two, 4, 11.0)
    assert steps(joiner.tick(11.0, 2)) == [(0, 4, (0, 2), False)]


def test_a_lost_rank_is_named_and_no_longer_awaited(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2, settings=JoinerSettings(lost_after_s=3.0)), ranks(2)
    joiner.ranks.hear(1, 0.0, Place(6, 3, "layers.2"))
    feed(joiner, zero, 6, 1.0)
    batch = joiner.tick(3.5, 0)

    assert steps(batch) == [(0, 6, (0,), False)]
    assert kinds(batch) == ["rank-lost"]
    assert batch.events[0].rank == 1
    assert batch.events[0].text == (
        "Rank 1 was silent for 3 s; it was last seen in step 6, last at layers.2, its tensor 3."
    )
    feed(joiner, zero, 7, 3.6)
    assert steps(joiner.tick(3.6, 1)) == [(1, 7, (0,), False)]
    feed(joiner, one, 7, 3.7)
    batch = joiner.tick(3.8, 2)
    assert steps(batch) == [(1, 7, (0, 1), True)]
    assert kinds(batch) == ["rank-joined"]


def test_who_has_not_left_when_the_collector_makes_way_is_lost_and_told_once(
    ranks: Ranks,
) -> None:
    joiner, (zero, one) = new_joiner(0, 3), ranks(2)
    feed(joiner, zero, 6)
    feed(joiner, one, 6)
    joiner.leave(0)
    joiner.ranks.hear(1, 0.1, Place(7, 2, "layers.0"))
    for _ in range(2):
        joiner.lose_absent("had not said goodbye")
    batch = joiner.tick(60.0, 0, everything=True)

    assert [(event.kind, event.rank, event.step) for event in batch.events] == [("rank-lost", 1, 7)]
    assert batch.events[0].text == (
        "Rank 1 had not said goodbye; it was last seen in step 7, last at layers.0, its tensor 2."
    )


def test_a_rank_that_an_earlier_collector_told_as_lost_is_back(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    joiner.ranks.recall(lost={1: 5}, left=(), step=5)
    feed(joiner, zero, 6)
    assert kinds(joiner.tick(0.1, 0)) == []
    feed(joiner, one, 6)
    feed(joiner, one, 7)
    assert kinds(joiner.tick(0.2, 0)) == ["rank-joined"]
    assert joiner.ranks.present() == [0, 1]


def test_a_rank_that_is_announced_for_what_is_stored_is_told_neither_as_back_nor_as_lost_again(
    ranks: Ranks,
) -> None:
    joiner, zero = new_joiner(0, 3), ranks(3)[0]
    joiner.ranks.recall(lost={1: 178}, left=(), step=180)
    feed(joiner, zero, 181)
    for rank in (1, 2):
        joiner.ranks.hear(rank, 0.1)  # a hello, which a relay may send for frames of before
    joiner.lose_absent("had not said goodbye")
    events = joiner.tick(60.0, 0, everything=True).events

    assert [(event.kind, event.rank, event.step) for event in events] == [
        ("rank-lost", 0, 181),
        ("rank-lost", 2, 180),
    ]


def test_a_rank_that_left_is_not_awaited(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    feed(joiner, one, 1)
    feed(joiner, zero, 1)
    feed(joiner, zero, 2)
    joiner.leave(1)

    assert steps(joiner.tick(0.1, 0)) == [(0, 1, (0, 1), True), (1, 2, (0,), False)]
    assert not joiner.ranks.everyone_is_gone(0.1, 0.0)
    joiner.leave(0, "KeyboardInterrupt")
    assert joiner.ranks.everyone_is_gone(0.1, 0.0)
    assert kinds(joiner.tick(0.2, 2)) == ["rank-left"]


def test_a_rank_that_never_came_is_expected_for_a_while(ranks: Ranks) -> None:
    joiner, (zero, _) = new_joiner(0, 2, settings=JoinerSettings(lost_after_s=3.0)), ranks(2)
    feed(joiner, zero, 1)
    joiner.leave(0)

    assert not joiner.ranks.everyone_is_gone(2.0, 0.0)
    assert joiner.ranks.everyone_is_gone(3.1, 0.0)


def test_a_run_that_was_rewound_gets_new_records(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    for step in (1, 2, 3):
        feed(joiner, zero, step)
        feed(joiner, one, step)
    for rank in (zero, one):
        feed(joiner, rank, 2)
        feed(joiner, rank, 3)

    assert [record.step for record in joiner.tick(0.1, 0).records] == [1, 2, 3, 2, 3]
    assert all(record.complete for record in joiner.tick(0.2, 5).records)


def test_a_rank_that_rewinds_alone_does_not_disturb_the_others(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    feed(joiner, zero, 1)
    feed(joiner, zero, 1)
    feed(joiner, one, 1)

    assert steps(joiner.tick(0.1, 0)) == [(0, 1, (0, 1), True)]
    assert steps(joiner.tick(10.1, 1)) == [(1, 1, (0,), False)]


def test_a_full_frame_replaces_a_partial_one(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    feed(joiner, zero, 4, value=1.0)
    feed(joiner, one, 4, value=2.0, partial=True)
    batch = joiner.tick(0.1, 0)
    assert steps(batch) == [(0, 4, (0, 1), True)]
    assert batch.records[0].partial
    feed(joiner, one, 4, 60.0, value=5.0)
    batch = joiner.tick(60.1, 1)

    assert steps(batch) == [(0, 4, (0, 1), True)]
    assert not batch.records[0].partial
    assert derive(batch.records[0].merged, "sum").tolist() == [6.0, 1.0]
    feed(joiner, one, 5, 61.0)
    feed(joiner, zero, 5, 61.0)
    assert steps(joiner.tick(61.1, 1)) == [(1, 5, (0, 1), True)]


def test_a_step_that_takes_longer_than_a_late_frame_may_is_whole_in_the_end(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    for rank in (zero, one):
        feed(joiner, rank, 0, partial=True)  # as when a model is compiled in its first forward
    assert joiner.tick(0.1, 0).records[0].partial
    for now in range(10, 1000, 10):
        for rank in (0, 1):
            joiner.ranks.hear(rank, now)
        joiner.tick(now, 1)
    feed(joiner, zero, 0, 1000.0, value=3.0)
    feed(joiner, one, 0, 1000.0, value=5.0)
    batch = joiner.tick(1000.1, 1)

    assert steps(batch) == [(0, 0, (0, 1), True)]
    assert not batch.records[0].partial
    assert "gap" not in kinds(batch)


def test_a_step_that_a_lost_rank_has_not_ended_is_let_go(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    feed(joiner, zero, 0)
    feed(joiner, one, 0, partial=True)
    joiner.tick(0.1, 0)
    joiner.ranks.hear(0, 200.0)
    joiner.tick(200.0, 1)
    feed(joiner, one, 0, 201.0)

    assert kinds(joiner.tick(201.1, 1)) == ["gap", "rank-joined"]


def test_a_partial_frame_in_an_open_record_is_replaced_before_it_closes(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    feed(joiner, one, 4, value=2.0, partial=True)
    feed(joiner, one, 4, value=5.0)
    feed(joiner, zero, 4, value=1.0)
    batch = joiner.tick(0.1, 0)

    assert steps(batch) == [(0, 4, (0, 1), True)]
    assert not batch.records[0].partial
    assert sorted(batch.released) == [("stream-0", 0), ("stream-1", 0), ("stream-1", 1)]


def test_final_frames_join_among_themselves(ranks: Ranks) -> None:
    joiner, (zero, one) = new_joiner(0, 2), ranks(2)
    feed(joiner, zero, 9)
    feed(joiner, zero, 9, final=True)
    feed(joiner, one, 9)
    feed(joiner, one, 9, final=True)
    records = joiner.tick(0.1, 0).records

    assert [(record.step, record.final, record.complete) for record in records] == [
        (9, False, True),
        (9, True, True),
    ]


def test_copies_that_differ_are_one_alert_until_they_are_equal(ranks: Ranks) -> None:
    exact = JoinerSettings(rules=RuleBook(rules=()))
    joiner, (zero, one) = new_joiner(0, 2, exact), ranks(2)
    for step, second in ((1, 2.0), (2, 2.0), (3, 1.0), (4, 3.0)):
        for rank, weight in ((zero, 1.0), (one, second)):
            frame = rank.frame(step, 1.0, weight)
            joiner.feed(rank.rank, rank.stream, frame, rank.layout, 0.0)
    begun, ended, again = joiner.tick(0.1, 0).alerts

    assert (begun.rule, begun.site, begun.ranks) == ("replica-divergence", "weight:fc", (0, 1))
    assert (begun.first_step, begun.last_step) == (1, None)
    assert (ended.first_step, ended.last_step) == (1, 2)
    assert (again.first_step, again.last_step) == (4, None)
    assert begun.text == (
        "Copies of weight:fc differ between ranks: ranks 0, 1 hold them, and none has a majority."
    )


def test_of_two_copies_the_one_that_is_not_finite_is_the_odd_one(ranks: Ranks) -> None:
    joiner = new_joiner(0, 2, JoinerSettings(rules=RuleBook(rules=())))
    for rank, last in zip(ranks(2), (1.0, np.nan), strict=True):
        frame = rank.frame(1, 1.0, np.array([1.0, last]))
        joiner.feed(rank.rank, rank.stream, frame, rank.layout, 0.0)
    [alert] = joiner.tick(0.1, 0).alerts

    assert (alert.ranks, alert.undetermined) == ((1,), False)
    assert alert.text == (
        "Copies of weight:fc differ between ranks: of ranks 0, 1 the odd one is 1."
    )


@pytest.mark.parametrize(
    ("last", "odd", "undetermined", "text"),
    [
        (
            (1.0, np.nan, 1.0, np.inf),
            (1, 3),
            False,
            "of ranks 0, 1 the odd one is 1; of ranks 2, 3 the odd one is 3",
        ),
        (
            (1.0, 2.0, 1.0, np.inf),
            (3,),
            False,
            "of ranks 2, 3 the odd one is 3; ranks 0, 1 hold them, and none has a majority",
        ),
        (
            (1.0, 2.0, 1.0, 3.0),
            (0, 1, 2, 3),
            True,
            "ranks 0, 1 hold them, and none has a majority; "
            "ranks 2, 3 hold them, and none has a majority",
        ),
    ],
)
def test_of_a_tensor_in_pieces_all_pieces_whose_copies_differ_are_told(
    last: tuple[float, ...], odd: tuple[int, ...], undetermined: bool, text: str
) -> None:
    joiner = new_joiner(0, 4, JoinerSettings(rules=RuleBook(rules=())))
    site = Site(kind="activation", name="fc", placement={"dp": "shard", "tp": "replicate"})
    for number, value in enumerate(last):
        rank = Rank(number, {"dp": (2, number // 2), "tp": (2, number % 2)}, [site])
        frame = rank.frame(1, np.array([1.0, value]))
        joiner.feed(number, rank.stream, frame, rank.layout, 0.0)
    [alert] = joiner.tick(0.1, 0).alerts

    assert (alert.ranks, alert.undetermined) == (odd, undetermined)
    assert alert.text == f"Copies of activation:fc differ between ranks: {text}."


def test_of_a_job_that_hangs_it_is_told_where_each_rank_stands(ranks: Ranks) -> None:
    joiner = new_joiner(0, 3, settings=JoinerSettings(stalled_after_s=5.0))
    zero, one, two = ranks(3)
    for rank in (zero, one, two):
        feed(joiner, rank, 1)
        joiner.ranks.hear(rank.rank, 1.0, Place(2, 7, "activation:fc"))
    joiner.ranks.hear(1, 2.0, Place(2, 6, "activation:up"))
    assert joiner.tick(6.5, 0).events == []
    for now in (3.0, 8.0):
        for rank, site in enumerate(("activation:fc", "activation:up", "activation:fc")):
            joiner.ranks.hear(rank, now, Place(2, 6 if rank == 1 else 7, site))
    [event] = joiner.tick(8.0, 1).events
    assert (event.kind, event.rank, event.step) == ("stalled", 1, 2)
    assert event.text == (
        "No rank has moved for 5 s: rank 1 in step 2, last at activation:up, its tensor 6; "
        "ranks 0, 2 in step 2, last at activation:fc, its tensor 7."
    )
    assert joiner.tick(9.0, 1).events == []
    joiner.ranks.hear(1, 10.0, Place(3, 1, "activation:up"))
    assert joiner.tick(11.0, 1).events == []
    assert [event.kind for event in joiner.tick(15.5, 1).events] == ["stalled"]


def test_in_the_first_step_a_job_may_take_its_time(ranks: Ranks) -> None:
    settings = JoinerSettings(stalled_after_s=5.0, begins_within_s=60.0, lost_after_s=1e3)
    joiner, (zero,) = new_joiner(0, 1, settings=settings), ranks(1)
    joiner.ranks.hear(0, 0.0, Place(500, 0, ""))
    joiner.ranks.hear(0, 1.0, Place(500, 7, "activation:fc"))
    feed(joiner, zero, 500, partial=True)
    assert joiner.tick(50.0, 0).events == []
    feed(joiner, zero, 500, now=50.0)
    joiner.ranks.hear(0, 51.0, Place(501, 7, "activation:fc"))
    [event] = joiner.tick(57.0, 0).events
    assert event.text.startswith("No rank has moved for 5 s: rank 0 in step 501, last at ")


def test_before_the_first_tensor_a_job_may_take_its_time() -> None:
    settings = JoinerSettings(stalled_after_s=5.0, begins_within_s=60.0, lost_after_s=1e3)
    joiner = new_joiner(0, 2, settings=settings)
    for rank in range(2):
        joiner.ranks.hear(rank, 0.0)
    assert joiner.tick(50.0, 0).events == []
    [event] = joiner.tick(61.0, 0).events
    assert event.text == "No rank has moved for 60 s: ranks 0, 1 in step 0."


def test_reports_become_events(ranks: Ranks) -> None:
    joiner, (zero,) = new_joiner(0, 1), ranks(1)
    feed(joiner, zero, 1, reports=["The hook of fc failed."], time_ns=5)
    event = joiner.tick(0.1, 0).events[0]

    assert (event.kind, event.rank, event.step, event.time_ns) == ("report", 0, 1, 5)
    assert event.text == "The hook of fc failed."


@pytest.mark.parametrize(("most", "kept"), [(2, 2), (1, 0)])
def test_ranks_are_kept_up_to_a_number(ranks: Ranks, most: int, kept: int) -> None:
    joiner = new_joiner(0, 2, settings=JoinerSettings(keep_ranks=most))
    for rank in ranks(2):
        feed(joiner, rank, 1)

    assert len(joiner.tick(0.1, 0).records[0].by_rank) == kept


def test_everything_can_be_closed_at_once(ranks: Ranks) -> None:
    joiner, (zero, _) = new_joiner(0, 2), ranks(2)
    feed(joiner, zero, 1)

    assert steps(joiner.tick(0.1, 0, everything=True)) == [(0, 1, (0,), False)]


def bits(record: Record) -> tuple[object, ...]:
    whole = replace(record, by_rank={}, merged=record.merged, index=0)
    return (
        whole.step,
        whole.ranks,
        whole.complete,
        whole.time_ns,
        *(column.tobytes() for column in record.merged.columns()),
        record.spread.tobytes(),
        *(record.by_rank[rank].tobytes() for rank in sorted(record.by_rank)),
    )


@settings(max_examples=50)
@given(st.data())
def test_any_arrival_order_gives_the_same_records_bit_for_bit(data: st.DataObject) -> None:
    sites = [
        Site(kind="activation", name="a", placement={"dp": "shard"}),
        Site(kind="weight", name="w"),
    ]
    count, length = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    pending = {}
    for rank in range(count):
        who = Rank(rank, {"dp": (count, rank)}, sites)
        pending[rank] = [
            (who, who.frame(step, 0.1 + rank * 1.7 + step, 1.0, time_ns=rank + 10 * step))
            for step in range(length)
        ]
    orders = [sorted(rank for rank in pending for _ in range(length))]
    orders.append(data.draw(st.permutations(orders[0])))
    ticks = data.draw(st.booleans())
    results = []
    for order in orders:
        joiner, records, at = new_joiner(0, count), list[Record](), dict.fromkeys(pending, 0)
        for rank in order:
            who, frame = pending[rank][at[rank]]
            at[rank] += 1
            joiner.feed(rank, who.stream, frame, who.layout, 0.0)
            if ticks:
                records += joiner.tick(0.0, len(records)).records
        records += joiner.tick(0.0, len(records)).records
        results.append([bits(record) for record in records])

    assert len(results[0]) == length
    assert results[0] == results[1]
