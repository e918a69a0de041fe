"""What taps do not see is told, and what cannot be meant is refused."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rankscope.agent.jax import Taps, collect, tap
from rankscope.agent.jax.walking import IN_A_CONDITION, NOT_OF_SAMPLES, OUT_OF_REACH
from rankscope.sketch import SettingError

from .test_taps import X, mesh_of


def test_a_tap_that_cannot_be_reached_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = tap("within", x[...])

    call = pl.pallas_call(kernel, jax.ShapeDtypeStruct(X.shape, X.dtype), interpret=True)
    out, taps = collect(call)(X)

    assert np.array_equal(out, X)
    assert taps == Taps(unseen=(f"within ({OUT_OF_REACH})",))
    assert f"Not seen are within ({OUT_OF_REACH})." in caplog.text


def test_a_tap_in_the_condition_of_a_loop_is_told() -> None:
    def small(x: jax.Array) -> jax.Array:
        return tap("length", x).sum() < 100

    def doubled(x: jax.Array) -> jax.Array:
        return lax.while_loop(small, lambda x: tap("body", 2 * x), x)

    taps = jax.jit(collect(doubled))(jnp.ones(4))[1]

    assert [site.name for site in taps.sites] == ["body"]
    assert taps.unseen == (f"length ({IN_A_CONDITION})",)


def test_what_has_not_a_row_a_sample_is_told() -> None:
    samples = NamedSharding(mesh_of(AxisType.Auto), P("dp"))

    def model(x: jax.Array) -> jax.Array:
        return tap("x", x) + tap("some", x[:2]).sum() + tap("sum", x.sum())

    taps = jax.jit(collect(model, samples=samples, batch=len(X)))(X)[1]

    assert [(site.name, site.spec) for site in taps.sites] == [("x", P("dp"))]
    not_of_samples = NOT_OF_SAMPLES.format(len(X))
    assert taps.unseen == (f"some ({not_of_samples})", f"sum ({not_of_samples})")


def test_what_cannot_be_sharded_so_is_refused() -> None:
    mesh = mesh_of(AxisType.Auto)
    wrong: Any = P("dp")
    with pytest.raises(
        SettingError, match=r"`samples` must be a NamedSharding, .* got P\('dp',?\)"
    ):
        collect(abs, samples=wrong, batch=4)
    with pytest.raises(SettingError, match=r"`samples` must cut the first axis, as P\('dp'\) does"):
        collect(abs, samples=NamedSharding(mesh, P()), batch=4)
    with pytest.raises(SettingError, match="`samples` needs `batch`: how many"):
        collect(abs, samples=NamedSharding(mesh, P("dp")))
    with pytest.raises(SettingError, match=r"tap 'x' is given the sharding .* its shape \(4, 8\)"):
        tap("x", X, sharding=NamedSharding(mesh, P("dp", None, "tp")))


def test_the_context_is_not_kept_by_caches() -> None:
    class Context:
        def __call__(self) -> nullcontext[None]:
            return nullcontext()

    context = Context()
    jax.jit(collect(lambda x: jnp.sin(tap("x", x)), within=context))(X)
    gone = weakref.ref(context)
    del context
    gc.collect()

    assert gone() is None
