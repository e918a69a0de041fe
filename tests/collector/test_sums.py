"""How exact sums must be, and whose share of them is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.collector.blame import Share, whose
from rankscope.store import Alert, SiteInfo

from .conftest import Rank
from .reducing import INFOS, MIXED, SITES, Gradients, Job, gradients

HALF: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
FEWER = [replace(one, checked=one.name in ("a", "b")) for one in INFOS]
IN_FP8 = [replace(one, dtype="float8_e5m2") for one in INFOS]
LEARNING = 8
"""Records after which a sum that was exact is held to it."""


def halved(ranks: int, seed: int) -> Gradients:
    """Gradients in bfloat16."""
    return np.asarray(np.asarray(gradients(ranks, seed), HALF), np.float32)


def rounds_to(dtype: object) -> Callable[[Gradients], None]:
    def compress(reduced: Gradients) -> None:
        reduced[:] = reduced.astype(dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]

    return compress


def learnt(ranks: int) -> Job:
    """A job whose gradients are in bfloat16, and are added up in float32, exactly so far."""
    job = Job(ranks, MIXED)
    for step in range(LEARNING):
        assert job.train(halved(ranks, step), 1 / ranks) == []
    return job


def nudge(reduced: Gradients) -> None:
    """A thousandth of the largest, in one element."""
    reduced[1, 7] += np.abs(reduced[1]).max() / 1000


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@given(ranks=st.integers(2, 8), seed=st.integers(0, 1 << 20))
@settings(max_examples=3, deadline=None)
def test_what_compresses_all_gradients_is_no_fault_in_any_of_many_steps(
    dtype: object, ranks: int, seed: int
) -> None:
    job, compress = Job(ranks), rounds_to(dtype)
    alerts = [job.train(gradients(ranks, seed + step), 1 / ranks, compress) for step in range(40)]
    assert not any(alerts)


@given(ranks=st.integers(2, 8), seed=st.integers(0, 1 << 20))
@settings(max_examples=3, deadline=None)
def test_what_is_added_up_in_bfloat16_is_no_fault_in_any_of_many_steps(
    ranks: int, seed: int
) -> None:
    job, compress = Job(ranks, MIXED), rounds_to(ml_dtypes.bfloat16)
    alerts = [job.train(halved(ranks, seed + step), 1 / ranks, compress) for step in range(40)]
    assert not any(alerts)


def test_sums_in_float32_of_gradients_in_bfloat16_are_held_to_it_once_they_were_exact() -> None:
    assert Job(4, MIXED).train(halved(4, 99), 0.25, nudge) == []
    [alert] = learnt(4).train(halved(4, 99), 0.25, nudge)
    assert alert.site == "weight_gradient:b"
    assert alert.ranks == ()


def test_a_fault_that_goes_on_does_not_excuse_itself() -> None:
    job = learnt(4)
    assert [alert.last_step for alert in job.train(halved(4, 99), 0.25, nudge)] == [None]
    for step in range(2 * LEARNING):
        assert job.train(halved(4, 100 + step), 0.25, nudge) == []
    [ended] = job.train(halved(4, 500), 0.25)
    assert ended.last_step == 3 * LEARNING


def test_gradients_that_are_all_added_up_otherwise_than_before_are_no_fault() -> None:
    job, compress = learnt(4), rounds_to(ml_dtypes.bfloat16)
    for step in range(20):
        assert job.train(halved(4, 100 + step), 0.25, compress) == []


def test_a_parameter_that_is_thawed_is_not_held_to_what_zeros_came_to() -> None:
    job = Job(4, MIXED)

    def frozen(step: int) -> Gradients:
        local = halved(4, step)
        local[:, 2] = 0
        return local

    def compress(reduced: Gradients) -> None:
        reduced[2] = reduced[2].astype(ml_dtypes.bfloat16)

    for step in range(2 * LEARNING):
        assert job.train(frozen(step), 0.25) == []
    for step in range(2 * LEARNING):
        assert job.train(halved(4, 100 + step), 0.25, compress) == []


def test_gradients_that_are_one_ranks_alone_say_nothing_of_the_arithmetic() -> None:
    job = Job(4, MIXED)
    for step in range(2 * LEARNING):
        local = halved(4, step)
        local[1:] = 0
        assert job.train(local, 0.25) == []
    for step in range(2 * LEARNING):
        assert job.train(halved(4, 100 + step), 0.25, rounds_to(ml_dtypes.bfloat16)) == []


def test_clipping_a_little_by_group_of_parameters_is_no_fault_where_sums_are_exact() -> None:
    def clip(reduced: Gradients) -> None:
        reduced[[1, 3]] *= np.float32(0.95)

    assert learnt(4).train(halved(4, 99), 0.25, clip) == []


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("most", [16 * 2**-7, 8e-3, 16 * 2**-10, 1e-3, 16 * 2**-23])
@pytest.mark.parametrize("numbers", [1, 2])
def test_faults_that_have_nothing_to_do_with_a_rank_name_none(
    ranks: int, most: float, numbers: int
) -> None:
    draw = np.random.default_rng(0)
    named = 0
    for _ in range(500):
        size = draw.choice([0.05, 0.2, 1.0, 4.0])
        shares = [
            Share(own=dict(enumerate(own)), rest=float(rest), most=most * ranks)
            for own, rest in zip(
                draw.normal(size=(numbers, ranks)).tolist(),
                draw.normal(size=numbers) * size,
                strict=True,
            )
        ]
        named += bool(whose(shares)[0])
    assert named <= 5


@given(
    ranks=st.integers(2, 16),
    place=st.integers(0, 15),
    times=st.sampled_from([1, -1]),
    seed=st.integers(0, 1000),
)
def test_where_sums_are_exact_the_rank_is_named(
    ranks: int, place: int, times: int, seed: int
) -> None:
    drawn = np.random.default_rng(seed).normal(size=(2, ranks)).tolist()
    rank = place % ranks
    shares = [Share(own=dict(enumerate(own)), rest=times * own[rank], most=1e-9) for own in drawn]
    found, how = whose(shares)
    assert found == (rank,)
    assert (
        how == f"it is as if that of rank {rank} were {'missing' if times > 0 else 'in it twice'}"
    )


def test_two_ranks_that_explain_it_alike_are_not_told_apart() -> None:
    share = Share(own={0: 1.0, 1: 1.0 + 1e-12}, rest=1.0, most=1e-9)
    assert whose([share]) == ((), "sums do not tell through which rank")


def told(job: Job, local: Gradients, copies: Callable[[int, Gradients], None]) -> Alert:
    alerts = job.train(local, 1 / len(local), None, copies)
    return next(alert for alert in alerts if alert.rule == "conservation")


def test_a_missing_share_is_named_before_it_was_learnt_how_exact_sums_are() -> None:
    local = halved(4, 5)

    def lose(reduced: Gradients) -> None:
        reduced[1] -= local[2, 1] / 4

    [alert] = Job(4, MIXED).train(local, 0.25, lose)
    assert alert.ranks == (2,)


@pytest.mark.parametrize("divided", [False, True])
def test_where_each_rank_holds_its_own_alone_all_of_them_are_named(divided: bool) -> None:
    local = gradients(2)

    def keep(rank: int, reduced: Gradients) -> None:
        reduced[1] = local[rank, 1] / (2 if divided else 1)

    alert = told(Job(2), local, keep)
    assert alert.ranks == (0, 1)
    assert alert.text.endswith("ranks 0, 1 hold their own alone: none of them reduced it.")


def test_a_share_that_only_one_ranks_copy_lacks_is_not_blamed_on_whose_it_is() -> None:
    local = gradients(4)

    def lose(rank: int, reduced: Gradients) -> None:
        if rank == 0:
            reduced[1] -= local[3, 1] / 4

    assert told(Job(4), local, lose).ranks == ()


def test_a_share_that_all_copies_lack_is_named_though_they_differ_in_a_bit() -> None:
    local = gradients(4)

    def lose(rank: int, reduced: Gradients) -> None:
        reduced[1] -= local[3, 1] / 4
        reduced[1, 0] = np.nextafter(reduced[1, 0], np.float32(rank))

    assert told(Job(4), local, lose).ranks == (3,)


def test_a_sum_is_not_judged_by_addends_whose_copies_differ() -> None:
    job, local = Job(4), gradients(2)[[0, 0, 1, 1]]
    job.ranks = [
        Rank(rank, {"dp": (2, rank // 2), "tp": (2, rank % 2)}, SITES) for rank in range(4)
    ]
    assert job.train(local, 1 / 4) == []
    local[3, 1] *= 1.5  # of the copies that of rank 2 is counted

    alerts = job.train(local, 1 / 4)
    assert [(one.rule, one.site, one.ranks) for one in alerts] == [
        ("replica-divergence", "local_weight_gradient:b", (2, 3))
    ]


def test_gradients_that_were_averaged_and_are_added_up_once_are_told() -> None:
    job = Job(4)
    for step in range(LEARNING):
        assert job.train(gradients(4, step), 1 / 4) == []
    assert job.train(gradients(4, 50), 0.1) == []  # clipped
    [begins] = job.train(gradients(4, 51), 1.0)
    [ends] = job.train(gradients(4, 52), 1 / 4)

    assert (begins.rule, begins.site, begins.ranks) == ("conservation", "", ())
    assert begins.value == pytest.approx(4)
    assert begins.text.startswith("All reduced gradients are 4 times the average of the ranks' own")
    assert (ends.text, ends.last_step) == (begins.text, begins.first_step)


@pytest.mark.parametrize("factor", [1.0, 2.0, 1 / 64])
def test_a_job_that_does_not_average_may_change_its_factor(factor: float) -> None:
    job = Job(4)
    for step in range(2 * LEARNING):
        assert job.train(gradients(4, step), factor * 2 ** (step // 4)) == []


def test_a_loss_scale_that_is_told_is_taken_out() -> None:
    job = Job(2)
    for step in range(2 * LEARNING):
        scale = 2.0 ** (16 - step // 4)
        told = {"loss_scale": scale}
        assert job.train(gradients(2, step), 0.5 / scale, training=told) == []
    [alert] = job.train(gradients(2, 99), 1.0, training={"loss_scale": 1.0})
    assert alert.value == pytest.approx(2)


@pytest.mark.parametrize(
    ("infos", "more", "reason"),
    [
        (MIXED, {}, None),
        (INFOS, {"unmatched": True}, "Whether gradients were reduced rightly is not judged"),
        (FEWER, {}, "Sums of gradients are not judged: fewer than 3 have the ranks' own"),
        (IN_FP8, {}, "The sum of weight_gradient:a (and 4 more) is not judged: what rounding does"),
    ],
)
def test_what_is_not_judged_is_told_once_with_its_reason(
    infos: Sequence[SiteInfo], more: dict[str, Any], reason: str | None
) -> None:
    job = Job(2, infos)
    for step in range(3):
        job.train(gradients(2, step), 1 / 2, **more)
    told = job.told
    assert [kind for kind, _ in told] == ["not-judged"] * (reason is not None)
    assert all(text.startswith(reason or "") for _, text in told)


def test_a_sum_of_which_only_a_sample_is_read_is_told_as_not_judged() -> None:
    job = Job(2)
    for _ in range(2):
        job.train(gradients(2), 1 / 2, sampled=(1, 6))
    [(kind, text)] = job.told
    assert kind == "not-judged"
    assert text.startswith("The sum of weight_gradient:b is not judged: only a sample")
