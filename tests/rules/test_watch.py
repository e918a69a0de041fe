"""Each rule on tensors that it is about, and how alerts begin and end."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rankscope.merge import Derived
from rankscope.rules import (
    BUILT_IN,
    Memory,
    Rule,
    RuleBook,
    Seen,
    Told,
    Verdict,
    of_rows,
    rule_book,
)
from rankscope.store import QuantityInfo, SiteInfo

from .conftest import Job

Draw = Callable[..., np.ndarray]

FC = SiteInfo(kind="activation", name="fc", module="Linear")
WEIGHT = SiteInfo(kind="weight", name="fc.weight", shape=(32, 32))
BIAS = SiteInfo(kind="weight", name="fc.bias", shape=(1024,))
GRADIENT = SiteInfo(kind="weight_gradient", name="fc.weight")
UPDATE = SiteInfo(kind="update", name="fc.weight")
HALF = SiteInfo(kind="activation_gradient", name="fc", dtype="float16")
SQUARES = SiteInfo(kind="optimizer_state", name="fc.weight", slot="exp_avg_sq", dtype="float16")
FIRST = SiteInfo(kind="optimizer_state", name="fc.weight", slot="exp_avg", dtype="float16")


def rules_of(alerts: list) -> list[str]:
    return [one.rule for one in alerts]


def test_a_nan_is_told_at_once_with_its_rank_and_ends_when_it_has_gone(normal: Draw) -> None:
    job, bad = Job([FC], ranks=2), normal()
    bad[3:5] = np.nan

    assert job.record(normal()) == []
    [begun] = job.record([normal(), bad])
    assert (begun.rule, begun.severity, begun.site) == ("nonfinite", "error", "activation:fc")
    assert (begun.first_step, begun.last_step, begun.ranks) == (1, None, (1,))
    assert begun.text == "activation:fc holds 2 NaN of 2,048 elements."
    assert job.record([normal(), bad]) == []
    [ended] = job.record(normal())
    assert ended == replace(begun, last_step=2)


def test_a_mask_of_infinities_is_meant_where_it_was_from_the_start(normal: Draw) -> None:
    masked = normal()
    masked[::2] = -np.inf

    assert Job([FC]).records(3, masked) == []
    assert rules_of(Job([FC]).records(1, normal()) + Job([FC]).records(1, np.array([np.inf]))) == [
        "nonfinite"
    ]


def test_gradients_that_overflow_while_a_scaler_seeks_its_scale_are_no_trouble(
    normal: Draw,
) -> None:
    job, bad = Job([HALF]), normal()
    bad[0] = np.inf

    assert job.records(8, bad, training={"loss_scale": 65536.0}) == []
    assert job.record(normal(), training={"loss_scale": 256.0}) == []
    assert rules_of(job.records(20, bad, training={"loss_scale": 1.0})) == ["nonfinite"]
    assert rules_of(Job([HALF]).record(bad)) == ["nonfinite"]


def test_a_loss_that_is_nan_is_told_though_a_scaler_skips_its_update(normal: Draw) -> None:
    job, scale = Job([replace(HALF, name="(root)"), HALF], ranks=2), {"loss_scale": 65536.0}
    good, lost, overflown = normal(), np.full(1024, np.nan), normal()
    overflown[:2] = np.inf, np.nan

    assert job.record([good, overflown], [good, lost], training=scale) == []
    [told, _] = job.record([good, lost], [good, lost], training=scale) + job.record(good, good)

    assert (told.site, told.first_step, told.ranks) == ("activation_gradient:(root)", 1, (1,))
    assert told.text == "activation_gradient:(root) holds 1,024 NaN of 2,048 elements."


def test_of_a_pipeline_the_last_stage_says_that_the_loss_is_nan(normal: Draw) -> None:
    first, last = (replace(HALF, name=f"(stage {number})") for number in (0, 10))
    job, scale = Job([first, replace(HALF, name="(stage 9)"), last]), {"loss_scale": 65536.0}
    lost, overflown = np.full(1024, np.nan), normal()
    overflown[:2] = np.inf, np.nan

    assert job.record(lost, lost, overflown, training=scale) == []
    told = job.record(lost, lost, lost, training=scale)

    assert [(one.site, one.first_step) for one in told] == [("activation_gradient:(stage 10)", 1)]


def test_gradients_below_the_range_of_their_format_are_underflow(normal: Draw) -> None:
    job = Job([HALF, replace(HALF, name="other", dtype="float32")])

    [alert] = job.records(3, normal(1e-5), normal(1e-5))

    assert (alert.rule, alert.site, alert.first_step) == ("underflow", "activation_gradient:fc", 0)
    assert alert.evidence["subnormal_share"] > 0.9
    assert rules_of(Job([HALF]).records(8, normal(1e-2))) == []


def test_underflow_in_spite_of_a_scaler_is_told_with_its_scale(normal: Draw) -> None:
    [alert] = Job([HALF]).records(3, normal(1e-5), training={"loss_scale": 65536.0})

    assert " are subnormal in float16 with a loss scale of 65,536, and " in alert.text


def test_an_activation_near_the_end_of_its_format_is_told_before_it_overflows(normal: Draw) -> None:
    half = replace(FC, dtype="float16")

    [alert] = Job([half]).record(np.array([40_000.0, 1.0]))

    assert (alert.rule, alert.value > 0.5) == ("overflow", True)
    assert alert.text.endswith("is 4e+04: 61% of the largest number of float16.")
    assert Job([FC]).record(np.array([40_000.0, 1.0])) == []


def test_a_layer_that_gives_zeros_alone_is_dead_after_two_records(normal: Draw) -> None:
    job = Job([FC])

    assert job.records(3, np.maximum(normal(), 0)) == []
    assert job.record(np.zeros(64)) == []
    [alert] = job.record(np.zeros(64))
    assert (alert.rule, alert.first_step) == ("dead-activation", 3)


@pytest.mark.parametrize("site", [FC, GRADIENT])
def test_zeros_beside_nan_are_not_told_as_nothing_but_zeros(site: SiteInfo) -> None:
    some = np.zeros(64)
    some[:8] = np.nan

    assert rules_of(Job([site]).records(10, some)) == ["nonfinite"]


def test_zeros_of_a_nested_output_are_told_where_it_gets_a_gradient(normal: Draw) -> None:
    first, bias = replace(FC, slot="0"), replace(FC, slot="1")
    graded = replace(first, kind="activation_gradient")

    assert Job([first, bias, graded]).records(4, normal(), np.zeros(64), normal()) == []
    [alert] = Job([first, bias, graded]).records(2, np.zeros(64), np.zeros(64), np.zeros(64))
    assert alert.site == "activation:fc[0]"
    told = Job([first, bias]).records(2, normal(), np.zeros(64))  # nobody knows
    assert [one.site for one in told] == ["activation:fc[1]"]


def test_a_gradient_that_vanishes_is_told_but_not_of_a_bias_that_has_no_effect(
    normal: Draw,
) -> None:
    others = [replace(GRADIENT, name=f"layers.{i}.weight", shape=(32, 32)) for i in range(8)]
    key = [
        replace(GRADIENT, name="key.weight", shape=(32, 32)),
        replace(GRADIENT, name="key.bias", shape=(1024,)),
    ]
    job = partial(Job, [*others, *key])
    usual, nothing = [normal(1e-3)] * 8, normal(1e-11)

    assert job().records(8, *usual, normal(1e-3), nothing) == []
    assert [one.site for one in job().records(8, *usual, nothing, normal(1e-3))] == [
        "weight_gradient:key.weight"
    ]
    assert [one.site for one in job().records(8, *usual, nothing, nothing)] == [
        "weight_gradient:key.weight",
        "weight_gradient:key.bias",
    ]


def test_a_gradient_of_zeros_is_told_but_not_of_a_bias_that_has_no_effect(normal: Draw) -> None:
    sites = [
        replace(GRADIENT, name="head.weight", shape=(32, 32)),
        replace(GRADIENT, name="head.bias", shape=(32,)),
    ]
    usual, nothing = normal(1e-3), np.zeros(1024)

    assert Job(sites).records(12, usual, nothing[:32]) == []
    assert [one.site for one in Job(sites).records(12, nothing, usual[:32])] == [
        "weight_gradient:head.weight"
    ]
    assert [one.site for one in Job(sites).records(12, nothing, nothing[:32])] == [
        "weight_gradient:head.weight",
        "weight_gradient:head.bias",
    ]
    experts = [
        replace(GRADIENT, name="mlp.experts", shape=(4, 16, 16)),
        replace(GRADIENT, name="mlp.router", shape=(4, 16)),
    ]
    assert [one.site for one in Job(experts).records(12, usual, nothing[:64])] == [
        "weight_gradient:mlp.router"
    ]


def test_of_a_log_without_shapes_a_bias_is_what_has_fewer_elements(normal: Draw) -> None:
    names = [f"{module}.{part}" for module in "abcdefgh" for part in ("weight", "bias")]
    usual, nothing = [normal(1e-3), normal(1e-3)[:32]], normal(1e-11)
    job = partial(Job, [replace(GRADIENT, name=name) for name in names])

    assert job().records(8, *usual * 7, usual[0], nothing[:32]) == []
    assert [one.site for one in job().records(8, *usual * 7, nothing, usual[1])] == [
        "weight_gradient:h.weight"
    ]


def test_a_gradient_that_explodes_is_told_with_its_first_step(normal: Draw) -> None:
    job = Job([GRADIENT])

    assert job.records(30, lambda _: normal(1e-3)) == []
    [alert] = job.records(3, lambda _: normal(1e-1))
    assert (alert.rule, alert.first_step) == ("exploding-gradient", 30)
    assert alert.evidence["rms"] == pytest.approx(0.1, rel=0.2)


def test_slow_growth_is_told_and_traced_to_its_begin(normal: Draw) -> None:
    job = Job([FC])

    told = job.records(80, lambda step: normal(1.2 ** max(step - 30, 0)))

    [growth] = [one for one in told if one.rule == "exploding-activation"]
    assert abs(growth.first_step - 31) <= 2


def test_growth_that_is_recorded_less_often_is_traced_back_as_many_records(normal: Draw) -> None:
    tensor, begins = normal(), list[int]()
    for every in (1, 10):
        job = Job([FC])
        told = [
            alert
            for record in range(80)
            for alert in job.record(tensor * 1.2 ** max(record - 30, 0), step=record * every)
        ]
        begins += [one.first_step for one in told if one.rule == "exploding-activation"]

    once, rarely = begins
    assert abs(once - 31) <= 2
    assert rarely == 10 * once


def test_a_weight_with_a_gradient_that_stays_as_it_is_is_told(normal: Draw) -> None:
    job, still = Job([WEIGHT, BIAS, GRADIENT]), normal(0.02)

    told = job.records(12, still, lambda _: normal(), lambda _: normal(1e-3))

    assert [(one.rule, one.site, one.first_step) for one in told] == [
        ("weights-not-updating", "weight:fc.weight", 1)
    ]


def test_a_weight_that_seldom_has_a_gradient_need_not_change_in_between(normal: Draw) -> None:
    job, weight = Job([WEIGHT, BIAS, GRADIENT]), normal(0.02)

    told = job.records(
        28,
        lambda step: (
            weight * 1.001 ** ((step + 6) // 7)
        ),  # as of an expert that gets tokens in steps 0, 7, …
        lambda _: normal(),
        lambda step: np.zeros(1024) if step % 7 else normal(1e-3),
    )

    assert told == []


def test_where_no_weight_changes_the_optimizer_makes_no_steps(normal: Draw) -> None:
    weight, bias = normal(0.02), normal(0.02)

    assert Job([WEIGHT, BIAS, GRADIENT]).records(30, weight, bias, normal(1e-3)) == []


def test_that_no_weight_changes_for_long_is_told_of_the_run(normal: Draw) -> None:
    job, weight, bias = Job([WEIGHT, BIAS, GRADIENT]), normal(0.02), normal(0.02)

    [told] = job.records(60, weight, bias, normal(1e-3))
    [over] = job.records(1, normal(0.02), normal(0.02), normal(1e-3))

    assert (told.rule, told.site, told.first_step) == ("weights-not-updating", "", 1)
    assert (told.value, told.threshold) == (50.0, 49.0)
    assert told.text == "No weight has changed for 50 records, though gradients are not zero."
    assert (over.rule, over.last_step) == ("weights-not-updating", 59)


def test_a_scaler_that_skips_every_update_is_told_of_the_run(normal: Draw) -> None:
    job, weight, still = Job([BIAS]), lambda _: normal(0.02), normal(0.02)
    job.records(4, weight, training={"loss_scale": 1024.0})
    job.record(still, training={"loss_scale": 1024.0})

    quiet = [
        one for n in range(7) for one in job.record(still, training={"loss_scale": 512 / 2**n})
    ]
    [told] = job.record(still, training={"loss_scale": 4.0})
    [over] = job.record(normal(0.02), training={"loss_scale": 4.0})

    assert quiet == []
    assert (told.rule, told.severity, told.site) == ("skipped-updates", "error", "")
    assert (told.first_step, told.value, told.threshold) == (4, 8.0, 7.0)
    assert told.text == (
        "From step 4 on the gradient scaler skipped updates in 8 records in a row: the loss scale "
        "fell from 1,024 to 4 in them, and no weight changed."
    )
    assert (over.rule, over.last_step) == ("skipped-updates", 12)


def test_a_scale_that_is_being_found_or_lowered_by_hand_is_no_trouble(normal: Draw) -> None:
    start, lowered, still = Job([BIAS]), Job([BIAS]), normal(0.02)
    lowered.records(3, lambda _: normal(0.02), training={"loss_scale": 2.0**20})

    for fall in range(20):
        scale = {"loss_scale": 2.0 ** (32 - fall)}
        assert start.record(still, training=scale) == []
        assert lowered.record(normal(0.02), training={"loss_scale": 2.0 ** (20 - fall)}) == []


def test_a_spike_of_one_record_is_told_where_it_is_hundreds_of_times_as_large(
    normal: Draw,
) -> None:
    for factor, expected in ((20.0, []), (1000.0, ["exploding-gradient"])):
        job = Job([GRADIENT])
        told = job.records(60, lambda step, f=factor: normal(f if step == 40 else 1.0))
        assert [one.rule for one in told if one.last_step is None] == expected
        assert {one.first_step for one in told} <= {40}


def test_a_frozen_weight_has_no_gradient_and_is_meant(normal: Draw) -> None:
    frozen = normal(0.02)

    assert Job([WEIGHT, BIAS]).records(30, frozen, lambda _: normal(0.02)) == []


def test_updates_as_large_as_a_weight_are_told(normal: Draw) -> None:
    job, weight = Job([WEIGHT]), normal()

    def walk(_: int, size: float) -> np.ndarray:
        weight[:] += normal(size)
        return weight

    assert job.records(20, lambda step: walk(step, 1e-3)) == []
    assert rules_of(job.records(10, lambda step: walk(step, 1.0))) == ["update-ratio"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("factor", "expected"), [(200.0, True), (1 / 200, True), (1.5, False)])
def test_a_weight_whose_size_leaps_in_one_step_is_told(
    seed: int, factor: float, expected: bool
) -> None:
    """Whatever the signs by which its elements are added up."""
    rng, job = np.random.default_rng(seed), Job([WEIGHT])
    weight = rng.standard_normal(1024).astype(np.float32)

    def scaled(step: int) -> np.ndarray:
        weight[:] *= factor if step == 20 else 1
        weight[:] *= 1 + 1e-4 * rng.standard_normal(1024).astype(np.float32)
        return weight

    told = [one for one in job.records(30, scaled) if one.rule == "update-ratio"]
    assert bool(told) == expected
    if expected:
        assert told[0].first_step == 20
        assert "The size (l2) of weight:fc.weight went from 3" in told[0].text
        assert "between steps 19 and 20: most runs change" in told[0].text


def test_a_weight_in_which_nan_spreads_is_not_changed_by_that(normal: Draw) -> None:
    job, weight = Job([WEIGHT]), normal()

    def spoilt(step: int) -> np.ndarray:
        weight[:] += normal(1e-3)
        weight[: max(0, 60 * (step - 9))] = np.nan
        return weight

    assert rules_of(job.records(24, spoilt)) == ["nonfinite"]


def test_a_weight_that_begins_at_zero_is_judged_once_it_has_grown(normal: Draw) -> None:
    _, way, job = normal(), normal(1e-3), Job([WEIGHT])

    def warmed_up(step: int) -> np.ndarray:  # steps of about one size, in one direction
        return min(step, 20) ** 2 * way if step < 20 else (400 + 40 * (step - 20)) * way

    assert job.records(60, lambda step: warmed_up(step).astype(np.float32)) == []

    def thrown_about(step: int) -> np.ndarray:
        return 2000 * normal(1e-3)

    assert rules_of(job.records(12, thrown_about)) == ["update-ratio"]


@pytest.mark.parametrize(
    ("lost", "untouched", "expected"),
    [(0.9, 0.1, ["lost-updates"]), (0.4, 0.0, []), (0.9, 0.9, []), (1.0, 0.0, [])],
)
def test_updates_that_rounding_swallows_are_told(
    normal: Draw, lost: float, untouched: float, expected: list[str]
) -> None:
    def with_zeros(share: float) -> np.ndarray:
        drawn = normal(1e-4)
        drawn[: int(share * drawn.size)] = 0
        return drawn

    told = Job([UPDATE, GRADIENT]).records(4, with_zeros(lost), with_zeros(untouched))

    assert rules_of(told) == expected
    assert all("leave 90% of fc.weight as it is" in one.text for one in told)


def test_updates_that_are_zero_throughout_are_not_told_as_rounded_away(normal: Draw) -> None:
    frozen, other = replace(UPDATE, name="frozen.weight"), replace(GRADIENT, name="frozen.weight")
    job = Job([UPDATE, frozen, GRADIENT, other])

    [told] = job.records(4, normal(1e-4), np.zeros(1024), normal(1e-3), normal(1e-3))

    assert told.rule == "lost-updates"
    assert told.text.startswith(
        "Updates of frozen.weight are zero throughout: the optimizer leaves"
    )


def test_second_moments_that_underflowed_poison_the_optimizer(normal: Draw) -> None:
    gradient = normal(1e-4)

    told = Job([FIRST, SQUARES]).record(gradient, gradient**2)
    assert rules_of(told) == ["optimizer-poisoned"]
    assert Job([FIRST, SQUARES]).record(100 * gradient, (100 * gradient) ** 2) == []


def test_second_moments_that_are_infinite_have_not_underflowed(normal: Draw) -> None:
    gradient = 100 * normal(1e-4)
    gradient[:128] = 0.0
    squares = gradient**2
    squares[256:] = np.inf

    assert rules_of(Job([FIRST, SQUARES]).record(gradient, squares)) == ["nonfinite"]


@pytest.mark.parametrize("slots", [("mu", "nu"), ("trace", "sum_of_squares"), ("mu", "1.nu")])
def test_those_of_optax_are_known_by_its_names(normal: Draw, slots: tuple[str, str]) -> None:
    first, second = (replace(SQUARES, slot=slot) for slot in slots)
    gradient = normal(1e-4)

    told = Job([first, second]).record(gradient, gradient**2)
    assert rules_of(told) == ["optimizer-poisoned"]


def test_one_rank_that_is_unlike_its_peers_record_after_record_is_named(normal: Draw) -> None:
    job = Job([FC], ranks=8)

    def odd_one(_: int) -> list[np.ndarray]:
        return [normal(5.0 if rank == 6 else 1.0) for rank in range(8)]

    assert job.records(5, lambda _: [normal() for _ in range(8)]) == []
    [alert] = job.records(4, odd_one)
    assert (alert.rule, alert.ranks, alert.site) == ("rank-outlier", (6,), "activation:fc")
    assert "on rank 6 is 5" in alert.text


def test_a_rank_that_gives_zeros_alone_is_told_as_that(normal: Draw) -> None:
    job = Job([FC], ranks=4)

    [alert] = job.records(4, lambda _: [np.zeros(1024), normal(), normal(), normal()])

    assert (alert.rule, alert.ranks) == ("rank-outlier", (0,))
    assert alert.text.startswith("All of activation:fc on rank 0 is zero, and not on half of")


def test_an_outlier_that_is_another_rank_each_time_is_chance(normal: Draw) -> None:
    def some_one(step: int) -> list[np.ndarray]:
        return [normal(5.0 if rank == step % 8 else 1.0) for rank in range(8)]

    assert Job([FC], ranks=8).records(20, some_one) == []


def test_ranks_are_not_compared_by_a_few_elements(normal: Draw) -> None:
    one, some = (
        SiteInfo(kind="local_weight_gradient", name="head.bias", shape=shape)
        for shape in ((1,), (16,))
    )

    def odd_one(_: int) -> list[np.ndarray]:
        return [np.full(16, 50.0 if rank == 6 else 1.0) for rank in range(8)]

    assert Job([one], ranks=8).records(6, odd_one) == []
    assert rules_of(Job([some], ranks=8).records(6, odd_one)) == ["rank-outlier"]


def test_a_rank_that_is_missing_in_two_records_is_named(normal: Draw) -> None:
    job = Job([FC], ranks=3)

    assert job.record(normal(), ranks=(0, 2), complete=False) == []
    [alert] = job.record(normal(), ranks=(0, 2), complete=False)
    assert (alert.rule, alert.ranks) == ("missing-rank", (1,))
    assert alert.text == "Rank 1 of 3 sent nothing in time, record after record."
    [ended] = job.record(normal())
    assert ended.last_step == 1


def test_a_loss_that_leaves_its_range_is_told_and_nan_at_once(normal: Draw) -> None:
    job, rng = Job([FC]), np.random.default_rng(1)
    for step in range(40):
        assert job.record(normal(), training={"loss": 3 - step / 40 + rng.normal(0, 0.1)}) == []

    told = job.records(2, normal(), training={"loss": 9.0})
    assert [(one.rule, one.site, one.first_step) for one in told] == [("loss-spike", "", 40)]
    assert rules_of(job.record(normal(), training={"loss": float("nan")})) == ["loss-nonfinite"]


def test_layers_that_begin_too_large_or_all_alike_are_told_once(normal: Draw) -> None:
    assert rules_of(Job([WEIGHT, FC]).records(3, normal(0.18), normal())) == []
    assert rules_of(Job([WEIGHT, FC]).records(3, normal(5.0), normal())) == ["poor-initialisation"]
    assert rules_of(Job([WEIGHT, FC]).records(3, np.full(1024, 0.02), normal())) == [
        "poor-initialisation"
    ]
    from_zero = Job([WEIGHT, FC]).records(4, lambda step: normal(1e-4 * step), normal())
    assert from_zero == []
    embedding = replace(FC, module="Embedding")
    assert Job([WEIGHT, embedding]).records(3, normal(5.0), normal()) == []


def test_of_weights_that_begin_too_large_on_some_ranks_alone_these_are_named(normal: Draw) -> None:
    pieces = [normal(5.0 if rank in (1, 2) else 0.1) for rank in range(4)]

    [alert] = Job([WEIGHT, FC], ranks=4).record(pieces, normal())
    assert (alert.rule, alert.ranks) == ("poor-initialisation", (1, 2))
    of_ranks = r"an rms of 3\.\d+ \(up to [45]\.\d+ on ranks 1, 2, from 0\.\d+ on others\):"
    assert re.search(of_ranks, alert.text)
    [alert] = Job([WEIGHT, FC], ranks=4).record([normal(5.0) for _ in range(4)], normal())
    assert alert.ranks == ()


def test_of_many_sites_at_once_those_are_told_that_are_executed_first() -> None:
    sites = [replace(FC, name=f"layers.{place}", order=200 - place) for place in range(200)]

    told = Job(sites).record(*[np.array([np.nan])] * 200)

    assert {one.site for one in told} == {f"activation:layers.{place}" for place in range(136, 200)}


def test_what_is_muted_is_not_told() -> None:
    book = RuleBook(mute=[re.compile("nonfinite activation:fc")])

    assert Job([FC], book=book).record(np.array([np.nan])) == []


def test_a_rule_that_fails_is_asked_no_more_and_the_others_go_on(normal: Draw) -> None:
    def broken(seen: Seen, memory: Memory) -> Verdict:
        raise ZeroDivisionError("oh")

    own = Rule(
        name="own", severity="notice", meaning="", advice="", threshold=0, clear=0, measure=broken
    )
    job = Job([FC], book=RuleBook(rules=(own, *BUILT_IN)))

    assert rules_of(job.records(2, np.array([np.nan]))) == ["nonfinite"]
    assert job.watch.broken == {"own": "ZeroDivisionError: oh"}


def test_a_users_rule_is_a_plain_function(normal: Draw) -> None:
    def negative(seen: Seen, memory: Memory) -> Verdict:
        share = seen.statistic("negative_share")
        return of_rows(seen, seen.rows("activation"), share, lambda row: Told(text="Too negative."))

    own = Rule(
        name="negative",
        severity="notice",
        meaning="",
        advice="",
        threshold=0.9,
        clear=0.5,
        records=2,
        measure=negative,
    )
    job = Job([FC], book=RuleBook(rules=(own,)))

    assert job.record(-np.abs(normal())) == []
    [alert] = job.record(-np.abs(normal()))
    assert (alert.rule, alert.severity, alert.value) == ("negative", "notice", 1.0)


@pytest.mark.parametrize("rule", BUILT_IN, ids=lambda rule: rule.name)
def test_every_rule_says_what_it_means_and_what_to_try(rule: Rule) -> None:
    assert rule.meaning.endswith(".")
    assert rule.advice.endswith(".")
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
    assert f"### {rule.name} ({rule.severity})\n\n{rule.meaning} {rule.advice}\n" in page
    assert f"Told above {rule.threshold:g}" in page
    assert rule.clear <= rule.threshold


def test_a_record_that_a_late_rank_has_patched_is_no_second_record_of_a_bound(
    normal: Draw,
) -> None:
    job, dead = Job([FC]), QuantityInfo(name="dead_neurons", of="fc", width=1, start=0)
    job.records(2, lambda _: normal())
    first, second = (replace(one, derived=Derived.known({0: np.array([0.95])})) for one in job.kept)
    for _ in range(2):
        assert job.watch.judge_quantities(first, [dead], [FC]) == []
    [alert] = job.watch.judge_quantities(second, [dead], [FC])
    assert (alert.rule, alert.first_step) == ("dead_neurons above", 0)


def test_every_bound_that_is_built_in_says_what_it_means_and_what_to_try() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
    for bound in rule_book().bounds:
        rule = bound.rule
        assert f"### {rule.name} ({rule.severity})\n\n{rule.meaning} {rule.advice}\n" in page
        told = f"Told {bound.side} {bound.value:g}, in {bound.records} records in a row"
        assert told in page
