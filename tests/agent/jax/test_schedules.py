"""A step in which nothing is due is the program of a job that nobody observes."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest

from rankscope.agent import RankscopeWarning
from rankscope.agent.jax import Schedule, Telemetry, observe, tap
from rankscope.sketch import SettingError
from rankscope.store import open_run

from ..conftest import Observed
from .conftest import Watch
from .test_what_is_recorded import batch_of, loss_of, parameters


def test_only_what_is_due_is_stored(watch: Watch, observed: Observed) -> None:
    by_kind = {"weight": 2, "weight_gradient": Schedule(every=3, offset=1)}
    weights, batch = parameters(), batch_of(0)
    with watch(every=4, schedules=by_kind) as scope:
        step = jax.jit(
            lambda w, x: scope.sketch(weights=w, gradients=w, optimizer={"mu": w}, loss=x.sum())
        )
        for _ in range(6):
            scope.step(step(weights, batch))
    kinds = {
        number: {label.partition(":")[0] for label in observed.sketches(number)}
        for number in observed.steps()
    }
    assert kinds == {
        0: {"weight", "optimizer_state"},
        1: {"weight_gradient"},
        2: {"weight"},
        4: {"weight", "weight_gradient", "optimizer_state"},
    }


def test_a_step_is_traced_once_with_and_once_without(watch: Watch) -> None:
    traced, weights = list[bool](), parameters()
    with watch(every=3) as scope:

        @jax.jit
        def step(weights: Any) -> Telemetry:
            telemetry = scope.sketch(weights=weights)
            traced.append(not telemetry.is_empty)
            return telemetry

        for _ in range(9):
            scope.step(step(weights))
    assert traced == [True, False]


def tapped_loss_of(weights: Any, batch: jax.Array) -> Any:
    """What is trained, with a tap."""
    return loss_of(weights, tap("batch", batch))


def test_the_program_of_other_steps_is_that_of_a_job_without_us(watch: Watch) -> None:
    def text(scope: Any) -> str:
        def step(weights: Any, batch: jax.Array) -> Any:
            graded, taps = jax.value_and_grad(tapped_loss_of, has_aux=True), None
            if scope is None:
                (loss, aux), gradients = graded(weights, batch)
                return gradients, ()
            ((loss, aux), gradients), taps = scope.collect(graded)(weights, batch)
            told = scope.sketch(
                weights=weights,
                gradients=gradients,
                optimizer=weights,
                taps=taps,
                aux=aux,
                loss=loss,
            )
            return gradients, told

        return jax.jit(step).lower(weights, batch).as_text()

    weights, batch = parameters(), batch_of(0)

    with watch(every=2) as scope:
        due = text(scope)
        assert "rankscope_sketch" in due
        scope.step(scope.sketch(loss=0.0))
        assert text(scope) == text(None) != due


def test_outside_of_the_block_nothing_is_due(watch: Watch) -> None:
    scope = watch()
    assert scope.sketch(weights=parameters()).is_empty
    with scope:
        assert not scope.sketch(weights=parameters()).is_empty
    assert scope.sketch(weights=parameters()).is_empty


def test_scopes_inside_each_other_have_schedules_of_their_own(
    watch: Watch, new_observed: Any
) -> None:
    other: Observed = new_observed()
    with watch(every=2) as outer, observe(run=other.path.name, to=other.address) as inner:
        step = jax.jit(lambda w: (outer.sketch(weights=w), inner.sketch(weights=w)))
        for _ in range(3):
            first, second = step({"w": jnp.ones(3)})
            outer.step(first)
            inner.step(second)
    assert open_run(other.path).records()["step"].tolist() == [0, 1, 2]


def test_a_loop_that_never_tells_anything_is_warned_of(watch: Watch) -> None:
    scope = watch(every=2).__enter__()
    for telemetry in (None, None, {"w": jnp.ones(3)}, None):
        scope.step(cast(Any, telemetry), loss=1.0)
    with pytest.warns(
        RankscopeWarning, match="2 steps were due, and none brought telemetry"
    ) as told:
        scope.__exit__(None, None, None)
    assert told[0].filename == __file__


def test_a_resumed_job_goes_on_counting(watch: Watch, observed: Observed) -> None:
    with watch(start=10, every=4) as scope:
        step = jax.jit(lambda w: scope.sketch(weights=w))
        for _ in range(4):
            scope.step(step({"w": jnp.ones(3)}))
    assert observed.steps() == [12]


WRONG = {
    r"`every` must be a positive number of steps, got 0": {"every": 0},
    r"`every` must be a positive number of steps, got 2.5": {"every": 2.5},
    r"There is no kind 'input'; did you mean activation, .* tap\?": {"kinds": "input"},
    r"`mesh` must be a jax.sharding.Mesh, .* got {'dp': 2}": {"mesh": {"dp": 2}},
    r"There is no kind 'weights'; did you mean weight": {"kinds": ["weights"]},
    r"`start` must not be negative, got -1": {"start": -1},
    r"The schedule of 'weight' is `staggered`": {
        "schedules": {"weight": Schedule(every=2, staggered=True)}
    },
    r"`axes` calls several mesh axes 'dp'": {"axes": {"a": "dp", "b": "dp"}},
    r"include='\(' is not a regular expression": {"include": "("},
}


@pytest.mark.parametrize("message", list(WRONG))
def test_what_cannot_be_used_is_refused(watch: Watch, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        watch(**WRONG[message])


def test_a_run_needs_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKSCOPE_RUN", raising=False)
    with pytest.raises(SettingError, match="A run needs a name"):
        observe()


def test_a_scope_is_entered_once(watch: Watch) -> None:
    with watch() as scope:
        pass
    with pytest.raises(SettingError, match="A scope can be entered once"):
        scope.__enter__()
    with pytest.raises(SettingError, match=r"scope\.step\(\) was called after its block"):
        scope.step()
