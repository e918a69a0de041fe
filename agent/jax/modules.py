"""The output of each module of a tree whose classes have `__call__`, as those of nnx and Equinox.

While a function is traced these classes call through here. A module knows nothing of its place in
the model: the one that is called first is gone through, and names all within it. A copy, as
transformations make them, is known by its class if the model has one of it; else it is named after
the module that calls it, and its class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

from .taps import tap

ROOT = "(root)"
"""What the outermost module is called."""

Named = Callable[[Any], Iterable[tuple[str, Any]]]
"""Of a module all modules in it, itself among them, by their dotted names; its own is empty."""


def tap_output(out: Any, name: str, module: object) -> Any:
    """Tap what a module returned."""
    return tap(
        name or ROOT,
        out,
        kind="activation",
        gradient_kind="activation_gradient",
        module=type(module).__name__,
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """The call of a module that is being traced."""

    module: Any
    name: str
    names: dict[int, str]
    """By id of the modules in the outermost one, which lives as long as its call."""


_innermost: ContextVar[_Call | None] = ContextVar("rankscope_innermost", default=None)


@contextmanager
def tapped_outputs(model: Any, named: Named) -> Generator[None]:
    """A context in which calls of the modules in `model`, and of copies of them, are tapped."""
    modules = [(name, module) for name, module in named(model) if callable(module)]
    times = Counter(type(module) for _, module in modules)
    places = {type(module): name for name, module in modules if times[type(module)] == 1}
    changed = [(cls, vars(cls).get("__call__")) for cls in times]
    try:
        for cls in times:
            cls.__call__ = _tapping(cls.__call__, places, named)
        yield
    finally:
        for cls, own in changed:
            if own is None:
                del cls.__call__
            else:
                cls.__call__ = own


def _tapping(call: Callable[..., Any], places: dict[type, str], named: Named) -> Callable[..., Any]:
    @wraps(call)
    def tapping(module: Any, *args: Any, **kwargs: Any) -> Any:
        around = _innermost.get()
        if around is not None and around.module is module:  # from a subclass, by `super()`
            return call(module, *args, **kwargs)
        here = _entered(around, module, places, named)
        token = _innermost.set(here)
        try:
            out = call(module, *args, **kwargs)
        finally:
            _innermost.reset(token)
        return tap_output(out, here.name, module)

    return tapping


def _entered(around: _Call | None, module: Any, places: dict[type, str], named: Named) -> _Call:
    if around is not None and id(module) in around.names:
        return _Call(module, around.names[id(module)], around.names)
    prefix = places.get(type(module))
    if prefix is None:
        prefix = _dotted(["" if around is None else around.name, type(module).__name__])
    names = {id(part): _dotted([prefix, name]) for name, part in named(module)}
    return _Call(module, prefix, names | ({} if around is None else around.names))


def _dotted(parts: Sequence[str]) -> str:
    return ".".join(part for part in parts if part)
