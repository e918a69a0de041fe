"""Compiling a model with anchors: once for the names of its tensors, and once to train."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ...sketch.errors import SettingError
from ...sketch.labels import site_label
from ..modes import FINAL, Mode
from ..selection import RankscopeWarning
from .names import GRADIENT, UPDATED, Anchor, anchors_of, parameter_of
from .returned import Returned
from .settings import Settings

LASTING = frozenset({"weight", "optimizer_state"})
"""Kinds that all replicas hold alike, and of which the last is meant."""


@dataclass(frozen=True, slots=True)
class Taken:
    """An anchor, and what is taken of what comes back for it."""

    anchor: Anchor
    groups: Sequence[int]
    """As of `Returned.chosen`."""
    is_summed: bool
    """Whether these are to be added up on the host."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A model that is ready to train."""

    executor: Any
    """`poptorch.PoplarExecutor`"""
    returned: Returned
    taken: Sequence[Taken]


def poptorch_of(options: Any) -> Any:
    """The module that `options` are of, which the user has imported; None: there is none."""
    modules = (sys.modules.get(base.__module__.partition(".")[0]) for base in type(options).__mro__)
    return next((module for module in modules if hasattr(module, "trainingModel")), None)


def compiled(
    settings: Settings,
    model: Any,
    options: Any,
    optimizer: Any,
    inputs: Sequence[Any],
    named: Mapping[str, Any],
) -> Compiled:
    """Choose tensors, anchor them, and compile the model for these inputs.

    Raises:
        SettingError: what is to be observed is not there; the message says what would do.
        Exception: PopTorch cannot compile the model.
    """
    poptorch, shapes = poptorch_of(options), dict(model.named_parameters())
    names = settings.names
    if names is None:
        names = _names_of(poptorch, model, options, optimizer, inputs, named)
    anchors = _chosen(settings, names, list(shapes), type(optimizer).__name__)
    own = copy.deepcopy(options)  # a copy is not frozen, as those of a DataLoader are
    for anchor in anchors:
        own.anchorTensor(anchor.short_name, anchor.long_name)
    executor = poptorch.trainingModel(model, options=own, optimizer=optimizer)
    try:
        executor.compile(*inputs, **named)
    except Exception as error:
        if settings.names is not None and "not in tensors" in str(error):
            raise SettingError(
                f"`names` has what is not in the graph ({str(error).strip()}): leave it out, and "
                "they are found by compiling once more."
            ) from error
        raise
    returned = Returned.of(executor.options)
    return Compiled(executor, returned, list(_taken(settings, anchors, returned)))


def _names_of(
    poptorch: Any,
    model: Any,
    options: Any,
    optimizer: Any,
    inputs: Sequence[Any],
    named: Mapping[str, Any],
) -> list[str]:
    """Of all tensors of the graph; the model and its optimizer stay as they are.

    An executable from a cache does not know those of the backward, so that none is used here.
    """
    try:
        model, optimizer = copy.deepcopy((model, optimizer))
    except Exception as error:
        raise SettingError(
            f"The model cannot be copied ({error}), which is compiled for the names of its "
            "tensors: pass them, observe(…, names=…), as getTensorNames() of a compiled model has "
            "them."
        ) from error
    options = copy.deepcopy(options)
    options.enableExecutableCaching(None)
    executor = poptorch.trainingModel(model, options=options, optimizer=optimizer)
    executor.compile(*inputs, **named)
    names = executor.getTensorNames()
    executor.destroy()
    return list(names)


def _chosen(
    settings: Settings, names: Sequence[str], parameters: Sequence[str], optimizer: str
) -> list[Anchor]:
    if not any(name.startswith((GRADIENT, UPDATED)) for name in names):
        raise SettingError(
            f"No gradients are among the names of the {len(names)} tensors: the model is not "
            "trained, or `names` are those of an executable from a cache or a file, which does not "
            "know them. Leave `names` out, and they are found by compiling once more."
        )
    found = [*anchors_of(names, parameters, optimizer), *_taps(settings, names, parameters)]
    return [
        one
        for one in found
        if one.key[0] in settings.schedules and settings.selection.chooses(one.key[1])
    ]


def _taps(settings: Settings, names: Sequence[str], parameters: Sequence[str]) -> Iterator[Anchor]:
    others = sorted(name for name in names if parameter_of(name, parameters) is None)
    for pattern in settings.taps.include:
        if not any(pattern.search(name) for name in others):
            near = get_close_matches(pattern.pattern, others, n=3, cutoff=0.3) or others[:3]
            raise SettingError(
                f"taps={pattern.pattern!r} matches none of the {len(others)} tensors that are no "
                f"parameters; near names are {', '.join(near) or 'none'}."
            )
    of_parameters = {one.long_name for one in anchors_of(names, parameters, "")}
    for name in others if settings.taps.include else ():
        if settings.taps.chooses(name) and name not in of_parameters:
            yield Anchor(("tap", name, "", 0), name)


def _taken(settings: Settings, anchors: Sequence[Anchor], returned: Returned) -> Iterator[Taken]:
    """What is taken of each; of what cannot be had as it is asked for a warning tells."""
    unlike = dict[Mode, list[str]]()
    left_out = list[str]()
    for anchor in anchors:
        label = site_label(*anchor.key)
        is_lasting = anchor.key[0] in LASTING
        asked = FINAL if is_lasting else settings.mode_of(label) or returned.mode
        groups = returned.chosen(asked)
        if groups is None and is_lasting:
            left_out.append(label)
            continue
        if groups is None:
            unlike.setdefault(asked, []).append(label)
            groups = list(range(returned.groups))
            asked = returned.mode
        is_summed = asked.name == "sum" and len(groups) > 1
        yield Taken(anchor, groups, is_summed)
    for asked, labels in unlike.items():
        _warn(
            f"{asked} was asked for {_some(labels)}. PopTorch applies no mode of a single tensor, "
            f"and the model's own is {returned.mode}: that is what is recorded. With "
            "options.outputMode(poptorch.OutputMode.All) it could be had."
        )
    if left_out:
        _warn(
            f"Not recorded are {_some(left_out)}: with the output mode {returned.mode} they come "
            "added up over micro-batches. Choose another by options.outputMode."
        )


def _some(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    return ", ".join(labels[:3]) + more


def _warn(sentence: str) -> None:
    warnings.warn(sentence, RankscopeWarning, stacklevel=6)
