"""Snapshots of a model: copies of its weights, gradients and optimizer state, by name.

What belongs to a parameter is found by the parameter itself, never by the order in which a model or
an optimizer lists things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ....sketch.errors import SettingError
from ...selection import Selection
from ...toolkit.arithmetic import Patterns
from ..identity import mesh_of_tensors
from ..local import gradient_of, parameter_placement
from ..names import Names
from ..optimizers import is_of_all, state_by_parameter
from ..settings import as_list
from ..stages import Observable, stages_of
from .named import NamedTensors
from .places import Piece, pieces_of

Device = torch.device | str | None
"""None: where the tensor is."""
Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
"""One, or several; of those that have something of a parameter the first counts."""
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
        SettingError: a pattern is no regular expression, these are no tensors by name, what is
            chosen is no tensor, or has no elements.
    """
    # Users without a type checker may pass a model; torch's own ParameterDict is no Mapping.
    if not callable(getattr(tensors, "items", None)):
        raise SettingError(
            f"`snapshot` takes torch tensors by name, got {type(tensors).__name__}; of a model "
            "`weights(model)` takes the parameters, and `snapshot(model.state_dict())` all."
        )
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
    optimizer: Optimizers,
    slot: str,
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    device: Device = None,
    dtype: torch.dtype | None = None,
) -> NamedTensors:
    """Copies of one slot of an optimizer's state, under the names of the parameters.

    A state may have another shape than its parameter, as Adafactor's `row_var`. What an optimizer
    keeps of all parameters together, as LBFGS its `d`, belongs to no name, and is refused.

    Args:
        model: as of `weights`.
        optimizer: any, or several; parameters without state are left out, as before its first step.
        slot: what the optimizer calls it, as `exp_avg`, `momentum_buffer`, `step`; numbers that are
            no tensors become float64 tensors without axes.
        include: as of `snapshot`.
        exclude: as of `snapshot`.
        device: as of `snapshot`.
        dtype: as of `snapshot`.

    Raises:
        SettingError: there is no optimizer, it has state but no such slot, or keeps there no tensor
            or number of each parameter; or as of `snapshot`.
    """
    own = state_of(optimizer, slot)
    return _of_parameters(model, own, "optimizer_state", include, exclude, device, dtype)


def learning_rates(model: Observable, optimizer: Optimizers) -> dict[str, float]:
    """By name of a parameter: the learning rate of its group, as a number on the host.

    Parameters that no optimizer has, as frozen ones, are left out.
    """
    rates = {
        parameter: float(group["lr"])
        for one in reversed(as_list(optimizer))
        for group in one.param_groups
        for parameter in group["params"]
    }
    named = Names(stages_of(model)).parameters()
    return {name: rates[one] for one, (name, _) in named.items() if one in rates}


def state_of(optimizer: Optimizers | None, slot: str) -> Own:
    """A function from a parameter to that slot of its state.

    Raises:
        SettingError: there is no optimizer, or it has state but no such slot. The function: what is
            kept there is no tensor or number of that parameter.
    """
    kept = [(one, state_by_parameter(one)) for one in as_list(optimizer)]
    if not kept:
        raise SettingError(
            f"There is no optimizer to look for the state {slot!r} in; pass one as `optimizer`."
        )
    slots = dict.fromkeys(
        str(name) for _, states in kept for own in states.values() for name in own
    )
    if slot not in slots and any(states for _, states in kept):
        who = ", ".join(type(one).__name__ for one, _ in kept)
        raise SettingError(f"{who} has no state {slot!r}; it has {', '.join(slots) or 'none'}.")

    def own(parameter: torch.nn.Parameter) -> torch.Tensor | None:
        for one, states in kept:
            value = states.get(parameter, {}).get(slot)
            if value is not None:
                return _state(value, slot, parameter, one)
        return None

    return own


# `Any`: an optimizer may keep anything.
def _state(
    value: Any, slot: str, parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer
) -> torch.Tensor:
    """What an optimizer keeps of a parameter, as a tensor."""
    if isinstance(value, int | float):
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    is_tensor = isinstance(value, torch.Tensor)
    if is_tensor and not is_of_all(value, parameter, optimizer):
        return value
    what = "one tensor of all parameters together" if is_tensor else f"a {type(value).__name__}"
    raise SettingError(
        f"{type(optimizer).__name__} keeps {what} as {slot!r}, not a tensor or number of each; it "
        "is in `optimizer.state`, and `snapshot` takes any tensors."
    )


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
