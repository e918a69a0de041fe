"""From the names that PopART gives tensors to sites, and from its hyper-parameters to numbers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...sketch.labels import site_label
from ..sitebook import Key

GRADIENT, UPDATED = "Gradient___", "UpdatedVar___"
TRACED = "model."
"""What the front end before SDK 3.1 puts before the name of a parameter."""
STATE = re.compile(r"(?P<slot>Accl\d*|Accum|Step|AdamUpdater|LambR1Sq|LambR2Sq)___(?P<name>.+)")
MOMENTS = {"Accl1": "exp_avg", "Accl2": "exp_avg_sq"}
"""What torch calls the state of those optimizers that have both moments."""
OF_MOMENTS = frozenset({"Adam", "AdamW", "LAMB"})
NUMBERS = {"lossScaling": "loss_scale", "learningRate": "lr"}
"""Hyper-parameters that the rest of rankscope knows, by what PopART calls them."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A tensor that is asked for, and the site that it is."""

    key: Key
    long_name: str
    """What PopART calls it."""

    @property
    def short_name(self) -> str:
        """By which it is got."""
        return f"rankscope {site_label(*self.key)}"


def anchors_of(
    names: Iterable[str], parameters: Collection[str], optimizer: str
) -> Iterator[Anchor]:
    """Those of the tensors that belong to a parameter, each site once.

    Of a state that is there before and after its update it is the latter.

    Args:
        names: as `getTensorNames` has them.
        parameters: names of the model's.
        optimizer: name of the optimizer's class.
    """
    found = dict[Key, str]()
    for long_name in sorted(names):  # those of `UpdatedVar___` come last
        key = _key_of(long_name, parameters, optimizer in OF_MOMENTS)
        if key is not None:
            found[key] = long_name
    order = {name: place for place, name in enumerate(parameters)}
    for key in sorted(found, key=lambda key: (key[0] == "optimizer_state", order[key[1]], key)):
        yield Anchor(key, found[key])


def _key_of(long_name: str, parameters: Collection[str], has_moments: bool) -> Key | None:
    rest, kind, slot = long_name.removeprefix(UPDATED), "weight", ""
    state = STATE.fullmatch(rest)
    if long_name.startswith(GRADIENT):
        rest, kind = long_name.removeprefix(GRADIENT), "weight_gradient"
    elif state is not None:
        rest, kind, slot = state["name"], "optimizer_state", state["slot"]
        slot = MOMENTS.get(slot, slot) if has_moments else slot
    elif rest == long_name:  # the weight before its update
        return None
    name = parameter_of(rest, parameters)
    return None if name is None else (kind, name, slot, 0)


def parameter_of(name: str, parameters: Collection[str]) -> str | None:
    """The parameter that has this name in PopART; None: there is none."""
    if name in parameters:
        return name
    bare = name.removeprefix(TRACED)
    return bare if bare in parameters else None


def numbers_of(hyperparameters: Mapping[str, Any]) -> dict[str, float]:
    """The `ipu_param` of an optimizer's state as numbers of the step.

    `loss_scale`, `lr` and others as PopART calls them: one number where all parameters have the
    same, else one for each, as `lr.fc1.weight`.

    Args:
        hyperparameters: tensors of one element by PopART's name.
    """
    by_name = dict[str, dict[str, float]]()
    for long_name, value in hyperparameters.items():
        name, _, whose = long_name.partition("___")
        name = re.sub(r"_(FLOAT|FLOAT16)$", "", name)
        whose = whose.removeprefix("specific___")
        by_name.setdefault(NUMBERS.get(name, name), {})[whose] = float(value.reshape(-1)[0])
    numbers = dict[str, float]()
    for name, values in by_name.items():
        if len(set(values.values())) == 1:
            numbers[name] = next(iter(values.values()))
        else:
            numbers |= {f"{name}.{whose}": value for whose, value in values.items()}
    return numbers
