"""Eight devices on the CPU, and runs that are watched there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

from rankscope.agent.jax import Scope, observe

from ..conftest import Observed

jax.config.update("jax_num_cpu_devices", 8)
# XLA's programs are the same to the letter; it is LLVM that works less on them. The exactness of
# what is compiled with all its passes is tested in test_sketch.py.
jax.config.update("jax_disable_most_optimizations", True)

Watch = Callable[..., Scope]


@pytest.fixture(autouse=True, scope="module")
def no_more_programs_than_needed() -> Iterator[None]:
    """Other tests in this process need its memory: some hundred programs take a gigabyte."""
    yield
    jax.clear_caches()


@pytest.fixture
def watch(observed: Observed) -> Watch:
    """`observe` with the run and the collector of `observed`."""

    def watched(**options: Any) -> Scope:
        return observe(run=observed.path.name, to=observed.address, **options)

    return watched
