"""The ways of Track & Visualize: `track(…)`, `tracker.intercept(f, …)`, `tracker.step(…)`.

A thin layer over `observe`, for scripts that were written for that: what is found stays with the
tracker, so that nothing has to be returned from a step.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial, wraps
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import jax
from jax.core import Tracer

from ...sketch.errors import SettingError
from .collecting import Taps
from .linen import outputs
from .observing import observe
from .scope import Scope

logger = logging.getLogger(__name__)

MOST_COMPILED = 8
"""Functions whose compiled form `intercept` keeps."""
FORGETS = (
    "tracker.intercept() was given more than %d functions, and compiles each anew: make the "
    "function, as jax.value_and_grad(loss), once before the loop."
)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def track(
    *,
    run: str | None = None,
    to: str | None = None,
    directory: str | os.PathLike[str] | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    init_step: int = 0,
) -> Tracker:
    """Track a training loop with flax.linen: `with track(run="x") as tracker: …`.

    Args:
        run, to, directory, include, exclude: as of `observe`.
        init_step: number of the first step.

    Raises:
        SettingError: an argument cannot be used; the message says which, and what would do.
    """
    scope = observe(
        run=run, to=to, directory=directory, include=include, exclude=exclude, start=init_step
    )
    return Tracker(scope)


class Tracker:
    """A scope that keeps what its functions find until the step ends; made by `track`."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._found = list[Taps]()
        self._tracing = 0
        """How many functions of `jit` are being traced."""
        self._compiled = OrderedDict[Callable[..., Any], Callable[..., Any]]()
        """By function, the one used last at the end."""
        self._forgets = False

    def __enter__(self) -> Self:
        self._scope.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scope.__exit__(kind, error, trace)

    def intercept(
        self, fn: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """What `fn` returns; the outputs of its modules, and their gradients, are kept.

        Outside of a compiled function it is compiled, once for each function: so make it before
        the loop, and not anew in each step.

        Args:
            fn: a function, as `jax.value_and_grad(loss_of)`; it may be jitted.
            args, kwargs: its arguments: pytrees of arrays.

        Raises:
            SettingError: called in a function that `jax.jit` compiles, and not `Tracker.jit`.
        """
        leaves = jax.tree.leaves((args, kwargs))
        if not any(isinstance(leaf, Tracer) for leaf in leaves):
            return self._compiled_of(fn)(*args, **kwargs)
        if not self._tracing:
            raise SettingError(
                "tracker.intercept() was called in a compiled function, which can keep nothing: "
                "compile that function with tracker.jit in place of jax.jit."
            )
        result, taps = self._scope.collect(fn, within=outputs)(*args, **kwargs)
        self._found.append(taps)
        return result

    def jit(self, fn: Callable[Arguments, Result], **options: Any) -> Callable[Arguments, Result]:
        """`jax.jit`, of a function in which `intercept` is called.

        Args:
            fn: as of `jax.jit`.
            options: as of `jax.jit`.
        """

        def traced(*args: Arguments.args, **kwargs: Arguments.kwargs) -> tuple[Result, list[Taps]]:
            before, self._found = self._found, []
            self._tracing += 1
            try:
                return fn(*args, **kwargs), self._found
            finally:
                self._found = before
                self._tracing -= 1

        compiled = jax.jit(traced, **options)

        @wraps(fn)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            result, found = compiled(*args, **kwargs)
            self._found += found
            return result

        return call

    def step(
        self,
        model_state: Any = None,
        optimizer_state: Any = None,
        gradients: Any = None,
        **numbers: Any,
    ) -> None:
        """Close the step that is open, and begin the next.

        Args:
            model_state, optimizer_state, gradients: as of `Scope.sketch`.
            numbers: of the step, as `loss=loss`.
        """
        found, self._found = self._found, []
        taps = Taps(
            rows=tuple(rows for one in found for rows in one.rows),
            sites=tuple(site for one in found for site in one.sites),
            unseen=tuple(name for one in found for name in one.unseen),
        )
        telemetry = self._scope.sketch(
            weights=model_state,
            optimizer=optimizer_state,
            gradients=gradients,
            taps=taps,
            **numbers,
        )
        self._scope.step(telemetry)

    def _compiled_of(self, fn: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        if fn not in self._compiled:
            self._compiled[fn] = self.jit(partial(self.intercept, _plain(fn)))
        self._compiled.move_to_end(fn)
        if len(self._compiled) > MOST_COMPILED:
            self._compiled.popitem(last=False)
            if not self._forgets:
                self._forgets = True
                logger.warning(FORGETS, MOST_COMPILED)
        return self._compiled[fn]


def _plain(fn: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function that was jitted: what is traced already would not be intercepted."""
    is_jitted = hasattr(fn, "lower") and hasattr(fn, "__wrapped__")
    return getattr(fn, "__wrapped__", fn) if is_jitted else fn
