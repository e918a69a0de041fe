"""The names of quantities: those that are built in, Taiyi's names of them, and the user's own."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

import torch

from ....sketch.errors import SettingError
from ....sketch.matrices import Form, Merge
from ....sketch.quantities import COMBINED, SKETCHED
from ....sketch.spectra import Statistic
from .quantity import Quantity, checked
from .sketched import TAIYI

_quantities: dict[str, Quantity] = {}
_aliases: dict[str, str] = {}
_CALL = re.compile(r"\s*(\w+)\s*(\(.*\))?\s*", re.DOTALL)

Function = Callable[..., torch.Tensor]


def quantity(
    name: str,
    *,
    needs: Iterable[str],
    merge: Merge = "mean",
    form: Form = "values",
    statistic: Statistic = "values",
    gathers: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Callable[[Function], Function]:
    """Register a plain function as a quantity; its docstring tells users what it is.

        @quantity("input_spread", needs=["input"], merge="mean")
        def input_spread(x):
            "The range of the inputs."
            return x.amax() - x.amin()

    It takes what it needs as plain local tensors on their device, without a graph, and returns a
    tensor: one number, or a vector of the same length each time. It must not wait for a device (no
    `item()`, no boolean indexing), nor change what it takes, which is training's own. What it
    raises is told once in the run, and it is not called again. Its keyword-only arguments are
    options: `"input_spread(share=0.9)"`; of what has its channels last, `channels` is one besides.

    Args:
        name: in lower-case words; not one that is there.
        needs: of the module or parameter, in the order of the arguments: input, output,
            input_gradient, output_gradient, weight, weight_gradient, update, optimizer:SLOT,
            buffer:NAME; the first tensors that there are. `input_by_channel` and the like have the
            channels last. previous:weight and the like are those of the step before: copies are
            held for them, and nothing else is.
        merge: how values of different samples, as of ranks and micro-batches, become one; a mean
            goes by the number of samples.
        form: values; or a covariance or a Gram matrix of the rows that the function returns.
        statistic: what is read off a matrix, or off the merged values.
        gathers: see `Quantity.gathers`.

    Raises:
        SettingError: the name is taken, or something that it needs does not exist, or there is no
            such `merge`, `form` or `statistic`.
    """
    if isinstance(needs, str):
        raise SettingError(f"`needs` of {name} must be a list, as [{needs!r}], got {needs!r}.")

    def register(function: Function) -> Function:
        made = Quantity(
            name=name,
            needs=tuple(needs),
            compute=function,
            form=form,
            merge=merge,
            statistic=statistic,
            gathers=gathers,
            describe=(function.__doc__ or "").strip(),
        )
        add(made)
        return function

    return register


def add(made: Quantity, *aliases: str) -> None:
    """Register a quantity, and other names of it, which may have options.

    Raises:
        SettingError: a name is taken, or something that it needs does not exist.
    """
    for name in (made.name, *aliases):
        if name in SKETCHED or name in COMBINED or name in TAIYI:
            raise SettingError(
                f"There is a quantity {name!r} already, which sketches tell; take another name."
            )
        if name in _quantities or name in _aliases:
            raise SettingError(
                f"There is a quantity {name!r} already; take another name, or call "
                f"remove({name!r}) first, as in a cell that runs again."
            )
    _quantities[made.name] = checked(made)
    _aliases.update(dict.fromkeys(aliases, made.name))


def add_alias(name: str, text: str) -> None:
    """Another name for a quantity with options, as `dead_neurons(threshold=-2)`."""
    named(text)
    _aliases[name] = text


def remove(name: str) -> None:
    """Take a quantity out of the registry, as that of a notebook's cell that runs again."""
    _quantities.pop(name, None)


def known() -> dict[str, Quantity]:
    """All quantities by name."""
    return dict(_quantities)


def known_aliases() -> dict[str, str]:
    """Other names, and what they stand for."""
    return dict(_aliases)


def named(text: str) -> Quantity:
    """The quantity of a name, with options where there are some: `dead_neurons(threshold=-2)`.

    Raises:
        SettingError: there is none, or none with such options.
    """
    found = _CALL.fullmatch(text)
    name, arguments = (found[1], found[2]) if found else (text, None)
    if name in _aliases:
        made = named(_aliases[name])
    elif name in _quantities:
        made = _quantities[name]
    else:
        near = get_close_matches(name, near_names(), n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "`known_quantities()` has all."
        raise SettingError(f"There is no quantity {name!r}; {hint}")
    return made.having(_arguments(text, f"{name}{arguments}")) if arguments else made


def near_names() -> list[str]:
    """All that can be asked for by name."""
    return [*_quantities, *_aliases, *SKETCHED, *COMBINED]


def _arguments(text: str, call: str) -> dict[str, Any]:
    try:
        tree = ast.parse(call, mode="eval").body
        if isinstance(tree, ast.Call) and not tree.args:
            return {word.arg or "": ast.literal_eval(word.value) for word in tree.keywords}
    except (SyntaxError, ValueError):
        pass
    raise SettingError(
        f"{text!r} is no quantity with options; write as dead_neurons(threshold=-2)."
    )
