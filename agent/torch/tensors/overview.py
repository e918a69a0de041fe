"""The statistics of a model as it is now, in one table: nothing is copied for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...selection import Selection
from ...toolkit.arithmetic import Patterns
from ...toolkit.columns import Wanted
from ...toolkit.named import Group
from ...toolkit.overview import of_kinds
from ...toolkit.sketches import By
from ..local import gradient_of
from ..stages import Observable
from .named import NamedTensors
from .snapshots import Optimizers, Own, Parameters, state_of

if TYPE_CHECKING:
    import pandas as pd


def compute_stats(
    model: Observable,
    optimizer: Optimizers | None = None,
    slots: str | Sequence[str] = (),
    *,
    groups: Wanted = "all",
    by: By = "whole",
    include: Patterns = None,
    exclude: Patterns = None,
    across: Group | None = None,
) -> pd.DataFrame:
    """A table of statistics of weights, their gradients, and slots of an optimizer's state.

    Indexed by `kind` and `tensor`: kinds are `weight`, `weight_gradient` and, of a slot,
    `optimizer_state[exp_avg]`; of all tensors of a kind together the second is the kind again. What
    there is nothing of, as gradients before a backward, has no row.

    Args:
        model: as of `weights`.
        optimizer: whose state is looked at; one, or several.
        slots: what it calls them, as of `optimizer_state`; none by default.
        groups: of columns, as of `NamedTensors.describe`.
        by: rows of each kind, as of `NamedTensors.sketches`.
        include: regular expressions, of which one must be found in a parameter's name.
        exclude: and of which none may be.
        across: as of `NamedTensors.sketches`.

    Raises:
        SettingError: there is no such column or slot, no optimizer for a slot, or a pattern is no
            regular expression.
        ImportError: pandas is not installed.
    """
    selection, parameters = Selection.of(include, exclude), Parameters(model)
    selection.warn_of_strays(parameters.names())
    owned: dict[str, Own] = {"weight": lambda parameter: parameter, "weight_gradient": gradient_of}
    for slot in [slots] if isinstance(slots, str) else slots:
        owned[f"optimizer_state[{slot}]"] = state_of(optimizer, slot)
    pieces = [
        (f"{kind}:{name}", tensor, place)
        for kind, own in owned.items()
        for name, tensor, place in parameters.pieces(own, selection)
    ]
    return of_kinds(NamedTensors.of(pieces, ""), groups, by, across)
