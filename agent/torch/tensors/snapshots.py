"""Snapshots of a model: copies of its weights, gradients and optimizer state, by name.

What belongs to a parameter is found by the parameter itself, never by the order in which a model or
an optimizer lists things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ....sketch.errors import SettingError
from ...selection import Selection
from ...toolkit.arithmetic import Patterns
from ..identity import mesh_of_tensors
from ..local import gradient_of, parameter_placement
from ..names import Names, Observable, stages_of
from .named import NamedTensors
from .places import Piece, pieces_of

Device = torch.device | str | None
"""None: where the tensor is."""
Own = Callable[[torch.nn.Parameter], torch.Tensor | None]
"""What is looked for of a parameter, where there is such a thing."""


def snapshot(
    tensors: Mapping[str, torch.Tensor],
    *,
    kind: str = "",
    include: Patterns = None,
    exclude: Patterns = None,
    device: Device = None,
    dtype: torch.dtype | None = None,
) -> NamedTensors:
    """Copies of any tensors, as of a state dictionary.

    Args:
        tensors: by name. Of DTensors the local pieces are copied.
        kind: what they are.
        include: regular expressions, of which one must be found in a name (`re.search`).
        exclude: and of which none may be.
        device: to copy to.
        dtype: to convert to.

    Raises:
        SettingError: a pattern is no regular expression, what is chosen is no tensor, or has no
            elements.
    """
    selection = Selection.of(include, exclude)
    selection.warn_of_strays(tensors)
    pieces = [
        piece
        for name, tensor in tensors.items()
        if selection.chooses(name)
        for piece in pieces_of(name, _tensor(name, tensor), ())
    ]
    return copied(pieces, kind, device, dtype)


def weights(
    model: Observable,
    *,
    requires_grad: bool | None = None,
    include: Patterns = None,
    exclude: Patterns = None,
    device: Device = None,
    dtype: torch.dtype | None = None,
) -> NamedTensors:
    """Copies of a model's parameters, under their names without wrappers; tied ones once.

    Args:
        model: a module, however it is wrapped, or stages of a pipeline.
        requires_grad: only those that are trained (True), or are not (False).
        include: as of `snapshot`.
        exclude: as of `snapshot`.
        device: as of `snapshot`.
        dtype: as of `snapshot`.

    Raises:
        SettingError: as of `snapshot`.
    """

    def own(parameter: torch.nn.Parameter) -> torch.Tensor | None:
        return parameter if requires_grad in (None, parameter.requires_grad) else None

    return _of_parameters(model, own, "weight", include, exclude, device, dtype)


def gradients(
    model: Observable,
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    device: Device = None,
    dtype: torch.dtype | None = None,
) -> NamedTensors:
    """Copies of the gradients that a model's parameters have now; those without one are left out.

    Args:
        model: as of `weights`.
        include: as of `snapshot`.
        exclude: as of `snapshot`.
        device: as of `snapshot`.
        dtype: as of `snapshot`.

    Raises:
        SettingError: as of `snapshot`.
    """
    return _of_parameters(model, gradient_of, "weight_gradient", include, exclude, device, dtype)


def optimizer_state(
    model: Observable,
    optimizer: torch.optim.Optimizer,
    slot: str,
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    device: Device = None,
    dtype: torch.dtype | None = None,
) -> NamedTensors:
    """Copies of one slot of an optimizer's state, under the names of the parameters.

    Args:
        model: as of `weights`.
        optimizer: any; parameters without state are left out, as before its first step.
        slot: what the optimizer calls it, as `exp_avg`, `momentum_buffer`, `step`; numbers that are
            no tensors become float64 tensors without axes.
        include: as of `snapshot`.
        exclude: as of `snapshot`.
        device: as of `snapshot`.
        dtype: as of `snapshot`.

    Raises:
        SettingError: the optimizer has state, but no such slot; or as of `snapshot`.
    """
    own = state_of(optimizer, slot)
    return _of_parameters(model, own, "optimizer_state", include, exclude, device, dtype)


def learning_rates(model: Observable, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """By name of a parameter: the learning rate of its group, as a number on the host."""
    rates = {
        parameter: float(group["lr"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    named = Names(stages_of(model)).parameters()
    return {name: rates[one] for one, (name, _) in named.items() if one in rates}


def state_of(optimizer: torch.optim.Optimizer, slot: str) -> Own:
    """A function from a parameter to that slot of its state.

    Raises:
        SettingError: the optimizer has state, but no such slot.
    """
    state: Mapping[torch.Tensor, Mapping[str, Any]] = optimizer.state
    slots = dict.fromkeys(str(name) for own in state.values() for name in own)
    if state and slot not in slots:
        raise SettingError(
            f"{type(optimizer).__name__} has no state {slot!r}; it has {', '.join(slots)}."
        )

    def own(parameter: torch.nn.Parameter) -> torch.Tensor | None:
        value = state.get(parameter, {}).get(slot)
        if isinstance(value, int | float):
            return torch.tensor(value, dtype=torch.float64, device="cpu")
        return value if isinstance(value, torch.Tensor) else None

    return own


class Parameters:
    """The parameters of a model: what is found for each, under its name.

    Args:
        model: as of `weights`.
    """

    def __init__(self, model: Observable) -> None:
        names = Names(stages_of(model))
        self._named = [(name, one) for one, (name, _) in names.parameters().items()]
        self._mesh = mesh_of_tensors(names.whole)

    def names(self) -> list[str]:
        """Of all, in the order of the model."""
        return [name for name, _ in self._named]

    def pieces(self, own: Own, selection: Selection) -> list[Piece]:
        """The pieces of what a function finds for the chosen ones, where it finds something.

        Raises:
            SettingError: a tensor has no elements.
        """
        return [
            piece
            for name, parameter in self._named
            if selection.chooses(name) and (tensor := own(parameter)) is not None
            for piece in pieces_of(name, tensor, self._mesh, parameter_placement(parameter))
        ]


def copied(
    pieces: Iterable[Piece], kind: str, device: Device, dtype: torch.dtype | None
) -> NamedTensors:
    """Copies of pieces."""
    copies = (
        (name, tensor.to(device=device, dtype=dtype, copy=True), place)
        for name, tensor, place in pieces
    )
    return NamedTensors.of(copies, kind)


def _tensor(name: str, given: object) -> torch.Tensor:
    """What was given by name, which should be a tensor.

    Raises:
        SettingError: it is none.
    """
    if not isinstance(given, torch.Tensor):
        raise SettingError(
            f"`snapshot` takes torch tensors by name, got {type(given).__name__} as {name!r}: "
            "leave it out by `exclude`, or make a tensor of it by torch.as_tensor."
        )
    return given


def _of_parameters(
    model: Observable,
    own: Own,
    kind: str,
    include: Patterns,
    exclude: Patterns,
    device: Device,
    dtype: torch.dtype | None,
) -> NamedTensors:
    selection, parameters = Selection.of(include, exclude), Parameters(model)
    selection.warn_of_strays(parameters.names())
    return copied(parameters.pieces(own, selection), kind, device, dtype)
