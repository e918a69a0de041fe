"""Sums that were not kept, as the joiner of a record finds them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector import Joiner
from rankscope.store import Alert, SiteInfo
from rankscope.wire import Site

from .conftest import Rank
from .reducing import SITES, Gradients, Job, gradients


@given(
    ranks=st.integers(2, 9),
    seed=st.integers(0, 1000),
    factor=st.floats(1e-6, 1e3),
    scale=st.floats(1e-9, 1e9),
)
def test_what_was_reduced_is_left_alone_by_whatever_factor(
    ranks: int, seed: int, factor: float, scale: float
) -> None:
    local = gradients(ranks, seed) * np.float32(scale)
    assert Job(ranks).train(local, factor) == []


def test_a_tensor_that_was_not_reduced_is_named_and_the_rank_is_not_guessed() -> None:
    job, local = Job(2), gradients(2)

    def keep_own(reduced: Gradients) -> None:
        reduced[1] = local[0, 1]

    [alert] = job.train(local, 0.5, keep_own)
    assert (alert.rule, alert.site) == ("conservation", "weight_gradient:b")
    assert alert.ranks == ()
    assert alert.value > 0.1 > alert.threshold
    assert alert.text.endswith("sums do not tell through which rank.")
    [ended] = job.train(local, 0.5)
    assert (ended.first_step, ended.last_step) == (0, 0)


@pytest.mark.parametrize(("times", "words"), [(-1, "were missing"), (1, "were in it twice")])
def test_a_rank_that_is_missing_or_in_a_sum_twice_is_told(times: int, words: str) -> None:
    job, local = Job(4), gradients(4)

    def lose(reduced: Gradients) -> None:
        reduced[3] += times * local[2, 3] / 4

    [alert] = job.train(local, 0.25, lose)
    assert (alert.site, alert.ranks) == ("weight_gradient:d", (2,))
    assert alert.text.endswith(f"it is as if that of rank 2 {words}.")


def test_one_element_that_is_off_by_a_thousandth_of_the_largest_is_found() -> None:
    job, local = Job(4), gradients(4)

    def corrupt(reduced: Gradients) -> None:
        reduced[0, 7] += np.abs(reduced[0]).max() / 1000

    [alert] = job.train(local, 0.25, corrupt)
    assert alert.site == "weight_gradient:a"


def test_reductions_that_none_made_are_told_as_one() -> None:
    job, local = Job(2), gradients(2)

    def keep_own(reduced: Gradients) -> None:
        reduced[:] = local[0]

    [alert] = job.train(local, 0.5, keep_own)
    assert (alert.rule, alert.site, alert.ranks) == ("conservation", "", ())
    assert "were not reduced" in alert.text


def test_what_rounds_all_gradients_is_no_fault() -> None:
    def compress(reduced: Gradients) -> None:
        reduced[:] = reduced.astype(np.float16)

    assert Job(2).train(gradients(2), 0.5, compress) == []


def test_gradients_of_an_overflow_are_not_judged() -> None:
    job, local = Job(2), gradients(2)
    local[1, 2, 5] = np.inf
    assert job.train(local, 0.5) == []


def test_sites_that_the_user_leaves_unchecked_are_not_judged() -> None:
    infos = [
        SiteInfo(kind=one.kind, name=one.name, dtype="float32", checked=one.name != "b")
        for one in SITES
    ]
    job, local = Job(2, infos), gradients(2)

    def keep_own(reduced: Gradients) -> None:
        reduced[1] = local[0, 1]

    assert job.train(local, 0.5, keep_own) == []


def test_what_is_clipped_by_group_of_parameters_is_no_fault() -> None:
    def clip(reduced: Gradients) -> None:
        reduced[[1, 3]] *= np.float32(0.3)
        reduced[4] *= np.float32(0.012)

    assert Job(3).train(gradients(3), 1 / 3, clip) == []


def test_a_tensor_that_is_summed_where_others_are_averaged_is_found() -> None:
    def add_up(reduced: Gradients) -> None:
        reduced[2] *= 4

    [alert] = Job(4).train(gradients(4), 0.25, add_up)
    assert alert.site == "weight_gradient:c"


def test_steps_whose_own_gradients_are_others_are_not_judged() -> None:
    job, local = Job(2), gradients(2)

    def keep_own(reduced: Gradients) -> None:
        reduced[:] = local[0]

    assert job.train(local, 0.5, keep_own, unmatched=True) == []


@pytest.mark.parametrize("dtype", [",", "(2,3", "O", "no such", ""])
def test_a_dtype_that_nobody_knows_costs_no_record(dtype: str) -> None:
    infos = [SiteInfo(kind=one.kind, name=one.name, dtype=dtype) for one in SITES]
    job, local = Job(2, infos), gradients(2)

    def keep_own(reduced: Gradients) -> None:
        reduced[1] = local[0, 1]

    assert job.train(local, 0.5, keep_own) == []


LAYER = SiteInfo(kind="activation", name="down", dtype="float32", placement={"dp": "shard"})
ADDENDS = SiteInfo(
    kind="local_activation",
    name="down",
    dtype="float32",
    placement={"dp": "shard", "tp": "partial"},
)


class Layer:
    """A row-parallel layer on a mesh of 2 x 2, and the alerts about it.

    Args:
        scattered: whether what it returns is cut along the axis of tensor parallelism.
        kind: of what is added up.
    """

    def __init__(self, *, scattered: bool, kind: str = "activation") -> None:
        placed = {"dp": "shard", "tp": "shard" if scattered else "replicate"}
        whole = replace(LAYER, kind=kind, placement=placed)  # pyright: ignore[reportArgumentType]
        self.infos = [replace(ADDENDS, kind=f"local_{kind}"), whole]  # pyright: ignore[reportArgumentType]
        self.joiner = Joiner(0, 4, site=self.infos.__getitem__)
        self.scattered = scattered
        sites = [
            Site(kind=one.kind, name=one.name, placement=one.placement, dtype="float32")  # pyright: ignore[reportArgumentType]
            for one in self.infos
        ]
        self.ranks = [
            Rank(rank, {"dp": (2, rank // 2), "tp": (2, rank % 2)}, sites) for rank in range(4)
        ]

    def run(self, own: Gradients, whole: Gradients) -> list[Alert]:
        """A step: [dp, tp, elements] of the addends, and [dp, elements] of their sums."""
        for rank in self.ranks:
            data, tensor = divmod(rank.rank, 2)
            made = np.split(whole[data], 2)[tensor] if self.scattered else whole[data]
            frame = rank.frame(0, own[data, tensor], made)
            self.joiner.feed(rank.rank, rank.stream, frame, rank.layout, 0.0)
        return self.joiner.tick(0.1, 0).alerts


@pytest.mark.parametrize("kind", ["activation", "input_gradient"])
@pytest.mark.parametrize("scattered", [False, True])
def test_what_tensor_parallelism_adds_up_is_the_sum_of_its_addends(
    scattered: bool, kind: str
) -> None:
    own = np.random.default_rng(1).normal(size=(2, 2, 64)).astype(np.float32)
    assert Layer(scattered=scattered, kind=kind).run(own, own.sum(axis=1)) == []
    spoilt = own.sum(axis=1)
    spoilt[1, 5] += np.abs(spoilt).max() / 100
    [alert] = Layer(scattered=scattered, kind=kind).run(own, spoilt)
    assert (alert.rule, alert.site, alert.ranks) == ("conservation", f"{kind}:down", ())
    lost = own.sum(axis=1)
    lost[0] -= own[0, 1]
    [alert] = Layer(scattered=scattered, kind=kind).run(own, lost)
    assert alert.ranks == (1,)
    assert alert.text.startswith(
        f"{kind}:down is not the sum of what its ranks had to add up: it is off by"
    )


def test_a_sum_of_other_micro_batches_than_its_addends_is_not_judged() -> None:
    own = np.random.default_rng(1).normal(size=(2, 2, 64)).astype(np.float32)
    assert Layer(scattered=False).run(own, own.sum(axis=1)[:, :32]) == []
