"""The planted fault overflows float16 on its rank from its step on, and never before."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankscope.examples.fault import FEWEST_STEPS, STEPS_BEFORE, Fault
from rankscope.examples.job import SIZES
from rankscope.examples.model import GPT, HalfGelu
from rankscope.sketch import SettingError

TINY = SIZES["tiny"]
FAULT = Fault(block=1, rank=0, step=10, lasts=4)


@given(seed=st.integers(), ranks=st.integers(1, 64), steps=st.integers(FEWEST_STEPS, 10_000))
def test_a_fault_has_room_before_and_after_it(seed: int, ranks: int, steps: int) -> None:
    fault = Fault.plan(seed, size=TINY, ranks=ranks, steps=steps)

    assert fault == Fault.plan(seed, size=TINY, ranks=ranks, steps=steps)
    assert 0 <= fault.rank < ranks
    assert fault.step - STEPS_BEFORE > 0
    assert fault.step + fault.lasts < steps


def test_seeds_differ() -> None:
    faults = {Fault.plan(seed, size=TINY, ranks=4, steps=80) for seed in range(20)}

    assert len(faults) > 10


def test_a_run_that_is_too_short_for_a_fault_is_refused() -> None:
    with pytest.raises(SettingError, match=r"at least 12 steps, got 11; take more, or --no-fault"):
        Fault.plan(0, size=TINY, ranks=2, steps=11)


def test_the_fault_names_a_module_of_the_model() -> None:
    for seed in range(5):
        fault = Fault.plan(seed, size=TINY, ranks=2, steps=80)

        assert isinstance(GPT(TINY).get_submodule(fault.module), HalfGelu)
        assert fault.site == f"activation:{fault.module}"


@pytest.mark.parametrize("scale", [1e-3, 0.999, 1.0, 1.5, 30.0])
def test_float16_overflows_from_the_step_of_the_fault_on(scale: float) -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) * scale
    act = HalfGelu()

    bad = [step for step in range(20) if not act(FAULT.spoil(x, step)).isfinite().all()]

    assert bad == [10, 11, 12, 13]


def test_before_it_overflows_the_largest_element_drifts_by_powers_of_two() -> None:
    x = torch.tensor([-1.0, 1.5])

    largest = [float(FAULT.spoil(x, step).max()) for step in range(4, 12)]

    assert largest == [1.5 * 2.0**n for n in (0, 1, 4, 7, 10, 13, 16, 19)]


def test_outside_the_fault_the_tensor_is_handed_on_untouched() -> None:
    x = torch.randn(4)

    assert FAULT.spoil(x, 4) is x
    assert FAULT.spoil(x, 14) is x
