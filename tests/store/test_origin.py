"""Where what is wrong began, and when that is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rankscope.sketch import SettingError
from rankscope.store import RankInfo, Record, RunWriter, SiteInfo, open_run

ORDER = [
    ("weight", "0.weight"),
    ("weight", "1.weight"),
    ("unsharded_weight", "0.weight"),
    ("input", "0"),
    ("activation", "0"),
    ("input", "1"),
    ("activation", "1"),
    ("activation_gradient", "1"),
    ("local_weight_gradient", "1.weight"),
    ("activation_gradient", "0"),
    ("local_weight_gradient", "0.weight"),
    ("weight_gradient", "0.weight"),
    ("weight_gradient", "1.weight"),
    ("optimizer_state", "0.weight"),
    ("update", "0.weight"),
]
LABELS = [f"{kind}:{name}" for kind, name in ORDER]
SITES = [SiteInfo(kind=kind, name=name, order=at) for at, (kind, name) in enumerate(ORDER)]
UPDATE = frozenset({LABELS[-1]})
ALL = frozenset(LABELS) - UPDATE
GOOD, BAD = np.ones(1, np.float32), np.full(1, np.nan, np.float32)


class Told:
    """A run that is written step by step: on two ranks, bad or good."""

    def __init__(self, path: Path, record: Callable[..., Record]) -> None:
        self.writer = RunWriter.open(path, run="r")
        self.writer.catalog.attempt_of("launch")
        ranks = [RankInfo(rank=rank, coordinates={"pp": rank}) for rank in range(2)]
        self.writer.catalog.set_attempt(0, 2, {"pp": 2}, ranks)
        self.writer.catalog.add_sites(SITES)
        self.record, self.index = record, 0

    def step(
        self,
        step: int,
        bad: tuple[set[str], set[str]] = (set(), set()),
        seen: frozenset[str] = ALL,
        value: NDArray[np.float32] = BAD,
        **facts: Any,
    ) -> None:
        """A step in which these sites were seen, some of them bad on a rank."""
        tensors = {
            rank: {
                place: value if label in wrong else GOOD
                for place, label in enumerate(LABELS)
                if label in seen
            }
            for rank, wrong in enumerate(bad)
        }
        self.writer.commit([self.record(self.index, tensors, step=step, **facts)], streams={})
        self.index += 1

    def first_bad(self, *arguments: Any, **more: Any) -> tuple[Any, ...] | None:
        found = open_run(self.writer.path).first_bad(*arguments, **more)
        if found is None:
            return None
        return found.site, found.ranks, found.cause, found.first_step, found.last_step


@pytest.fixture
def told(tmp_path: Path, record: Callable[..., Record]) -> Iterator[Told]:
    """A run that is written step by step."""
    run = Told(tmp_path / "r", record)
    yield run
    run.writer.close()


def poisoned(first: str, *, rank: int = 0, reduced: bool = True) -> tuple[set[str], set[str]]:
    """What is bad on each rank once a site is, on one of them: all after it, and what is shared."""
    after = set(LABELS[LABELS.index(first) :])
    shared = {label for label in after if label.startswith(("weight_gradient", "optimizer_state"))}
    other = shared if reduced else set[str]()
    return (after, other) if rank == 0 else (other, after)


@pytest.mark.parametrize(
    ("site", "cause"),
    [
        ("activation:1", "module"),
        ("input:0", "input"),
        ("activation_gradient:0", "backward"),
        ("local_weight_gradient:1.weight", "backward"),
        ("weight_gradient:0.weight", "reduction"),
        ("optimizer_state:0.weight", "update"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_on_the_rank_where_it_began_is_found(
    told: Told, site: str, cause: str, rank: int
) -> None:
    told.step(0)
    told.step(1, poisoned(site, rank=rank))
    told.step(2, (set(LABELS), set(LABELS)))
    ranks = (0, 1) if site.startswith(("weight_gradient", "optimizer_state")) else (rank,)
    assert told.first_bad() == (site, ranks, cause, 1, 1)


def test_a_module_is_blamed_where_its_inputs_and_weights_were_good(told: Told) -> None:
    told.step(3, poisoned("activation:1"))
    found = open_run(told.writer.path).first_bad()
    assert found is not None
    assert found.after == "input:1"
    assert found.spread == {0: "activation:1", 1: "weight_gradient:0.weight"}
    assert found.text == (
        "First non-finite values: activation:1 on rank 0, step 3. "
        "Its weights and inputs were finite: it made it."
    )


def test_what_the_first_module_gave_may_have_come_in(told: Told) -> None:
    told.step(3, poisoned("activation:0"), seen=ALL - {"input:0", "input:1"})
    found = open_run(told.writer.path).first_bad()
    assert found is not None
    assert found.cause == "forward"
    assert found.text.endswith(
        "it made it, or it came in with the model's input, of which "
        '`kinds=` with "input" would tell, or a tap of it under JAX.'
    )


def test_a_sum_of_the_backward_is_blamed_where_its_addends_were_good(told: Told) -> None:
    at = LABELS.index("activation_gradient:0")
    sites = [
        SiteInfo(kind=kind, name="1", order=at)  # pyright: ignore[reportArgumentType]
        for kind in ("local_input_gradient", "input_gradient")
    ]
    own, whole = told.writer.catalog.add_sites(sites)
    for index, (addend, expected) in enumerate(
        [(GOOD, ("input_gradient:1", "reduction")), (BAD, ("local_input_gradient:1", "backward"))]
    ):
        every = dict.fromkeys(range(at), GOOD) | {own: addend, whole: BAD}
        told.writer.commit([told.record(index, dict.fromkeys(range(2), every))], streams={})
        found = open_run(told.writer.path).first_bad(steps=index)
        assert found is not None
        assert (found.site, found.cause) == expected


def test_a_sum_over_ranks_is_blamed_where_its_addends_were_good(told: Told) -> None:
    own = SiteInfo(kind="local_activation", name="1", order=LABELS.index("input:1"))
    [place] = told.writer.catalog.add_sites([own])  # between the input and the activation
    bad, _ = poisoned("activation:1")
    for index, (addend, expected) in enumerate(
        [(GOOD, ("activation:1", "reduction")), (BAD, ("local_activation:1", "module"))]
    ):
        every = {at: BAD if label in bad else GOOD for at, label in enumerate(LABELS)}
        tensors = {rank: {**every, place: addend} for rank in range(2)}
        told.writer.commit([told.record(index, tensors)], streams={})
        found = open_run(told.writer.path).first_bad(steps=index)
        assert found is not None
        assert (found.site, found.cause) == expected


def test_weights_that_were_poisoned_in_an_unobserved_step_blame_no_module(told: Told) -> None:
    told.step(0)
    told.step(10, (set(LABELS), set(LABELS)))
    assert told.first_bad() == ("weight:0.weight", (0, 1), "weights", 0, 9)


def test_the_update_is_blamed_where_gradients_were_good(told: Told) -> None:
    told.step(4)
    told.step(5, (set(LABELS), set(LABELS)))
    assert told.first_bad() == ("weight:0.weight", (0, 1), "update", 4, 4)
    found = open_run(told.writer.path).first_bad()
    assert found is not None
    assert found.text.endswith(
        "The update of step 4 made it, of good gradients, or something else wrote to it."
    )


def test_an_update_that_was_observed_and_good_is_not_blamed(told: Told) -> None:
    told.step(4, seen=ALL | UPDATE)
    told.step(5, (set(LABELS), set(LABELS)), seen=ALL | UPDATE)

    assert told.first_bad() == ("weight:0.weight", (0, 1), "weights", 4, 4)
    found = open_run(told.writer.path).first_bad()
    assert found is not None
    assert found.text.endswith(
        "The gradient and the update of step 4 were finite: adding them up overflowed, "
        "or something else wrote to it."
    )


def test_where_gradients_were_not_observed_the_step_before_may_be_it(told: Told) -> None:
    told.step(4, seen=frozenset(label for label in LABELS if "gradient" not in label))
    told.step(8, (set(LABELS), set(LABELS)))
    assert told.first_bad() == ("weight:0.weight", (0, 1), "weights", 4, 7)


def test_what_was_bad_when_observing_began_has_no_first_step(told: Told) -> None:
    told.step(7, (set(LABELS), set(LABELS)))
    assert told.first_bad() == ("weight:0.weight", (0, 1), "weights", None, 7)


def test_where_weights_were_not_observed_nobody_is_blamed(told: Told) -> None:
    seen = frozenset(label for label in LABELS if not label.startswith("weight:"))
    told.step(2, seen=seen)
    told.step(6, poisoned("activation:0"), seen=seen)
    assert told.first_bad() == ("activation:0", (0,), "unknown", 2, 6)


def test_a_record_that_lacks_a_rank_blames_nobody(told: Told) -> None:
    told.step(0)
    told.step(1, poisoned("weight_gradient:0.weight"), complete=False)
    found = told.first_bad()
    assert found is not None
    assert found[2:] == ("unknown", 0, 1)


def test_weights_that_an_attempt_began_with_were_not_made_by_the_one_before(told: Told) -> None:
    told.step(4)
    told.writer.catalog.attempt_of("second launch")
    told.writer.catalog.set_attempt(1, 2, {"pp": 2}, [])
    told.step(5, (set(LABELS), set(LABELS)), attempt=1)
    assert told.first_bad() == ("weight:0.weight", (0, 1), "weights", None, 5)
    assert told.first_bad(attempt=0) is None


def test_a_site_that_runs_for_the_first_time_is_not_ordered(told: Told) -> None:
    told.step(0, seen=ALL - {"input:0"})
    told.step(1, poisoned("input:0"))
    found = told.first_bad()
    assert found is not None
    assert found[2] == "unknown"


def test_one_number_beyond_a_format_is_enough(told: Told) -> None:
    told.step(0, poisoned("activation:0"), value=np.array([1, 500], np.float32))
    assert told.first_bad("float8_e4m3fn") == ("activation:0", (0,), "module", 0, 0)
    assert told.first_bad("float8_e4m3fn", steps=(1, None)) is None


def test_what_was_wrong_with_a_gather_is_told_from_the_weight(told: Told) -> None:
    told.step(0)
    told.step(1, ({"unsharded_weight:0.weight", "activation:0"}, set()))
    assert told.first_bad() == ("unsharded_weight:0.weight", (0,), "gather", 1, 1)


def test_a_later_pipeline_stage_reads_what_an_earlier_one_made(told: Told) -> None:
    told.step(0, ({"activation:1"}, {"input:0", "activation:0"}))
    assert told.first_bad() == ("activation:1", (0,), "module", 0, 0)


def test_in_the_backward_it_is_the_other_way_round(told: Told) -> None:
    told.step(0, ({"activation_gradient:1"}, {"activation_gradient:0"}))
    assert told.first_bad() == ("activation_gradient:0", (1,), "backward", 0, 0)


def test_numbers_beyond_a_format_are_found_like_those_that_are_not_finite(told: Told) -> None:
    told.step(0)
    told.step(1, poisoned("activation:1"), value=np.array([1, 1000], np.float32))
    assert told.first_bad() is None
    assert told.first_bad("float8_e5m2") is None
    assert told.first_bad("float8_e4m3fn") == ("activation:1", (0,), "module", 1, 1)
    assert told.first_bad("float8_e4m3fn", above=0.3) == ("activation:1", (0,), "module", 1, 1)
    assert told.first_bad("float8_e4m3fn", above=0.9) is None
    with pytest.raises(SettingError, match="number format"):
        told.first_bad("float9")


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    first=st.sampled_from(LABELS),
    rank=st.integers(0, 1),
    unseen=st.sets(st.sampled_from(LABELS)),
    gap=st.integers(1, 4),
)
def test_the_answer_is_never_a_site_that_came_later_or_a_step_without_it(
    tmp_path_factory: pytest.TempPathFactory,
    record: Callable[..., Record],
    first: str,
    rank: int,
    unseen: set[str],
    gap: int,
) -> None:
    """Something is made in step 3, of which some sites are never seen; from then on all is bad."""
    told = Told(tmp_path_factory.mktemp("runs") / "r", record)
    seen = frozenset(LABELS) - unseen
    if first.startswith("weight:"):  # made by the update of the step before
        first_step, bad = 2, (set(LABELS), set(LABELS))
    else:
        first_step, bad = 3, poisoned(first, rank=rank)
    told.step(3 - gap, seen=seen)
    told.step(3, bad, seen=seen)
    told.step(4, (set(LABELS), set(LABELS)), seen=seen)
    found = told.first_bad()
    told.writer.close()
    if found is None:
        assert not seen
        return
    site, _, cause, low, high = found
    assert low is None or low <= first_step, found
    assert first_step <= high, found
    if first in seen and not first.startswith("weight:") and cause != "unknown":
        assert site == first, found
