"""The statistics of parameters and what belongs to them, in one table: nothing is copied for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh

from ...selection import Selection
from ...toolkit.arithmetic import Patterns
from ...toolkit.columns import Wanted
from ...toolkit.overview import of_kinds
from ...toolkit.sketches import By
from .named import NamedArrays
from .snapshots import named_arrays, slot_of

if TYPE_CHECKING:
    import pandas as pd


def compute_stats(
    parameters: Any,
    gradients: Any = None,
    state: Any = None,
    slots: str | Sequence[str] = (),
    *,
    groups: Wanted = "all",
    by: By = "whole",
    include: Patterns = None,
    exclude: Patterns = None,
    across: Mesh | None = None,
) -> pd.DataFrame:
    """A table of statistics of parameters, their gradients, and slots of an optimizer's state.

    Indexed by `kind` and `tensor`: kinds are `weight`, `weight_gradient` and, of a slot,
    `optimizer_state[mu]`; of all arrays of a kind together the second is the kind again.

    Args:
        parameters: a pytree, as of `snapshot`.
        gradients: in a tree of the same shape; without it there are no rows of them.
        state: that of the optimizer.
        slots: what it calls them; none by default.
        groups: of columns, as of `NamedArrays.describe`.
        by: rows of each kind, as of `NamedArrays.sketches`.
        include: regular expressions, of which one must be found in a parameter's name.
        exclude: and of which none may be.
        across: as of `NamedArrays.sketches`.

    Raises:
        SettingError: there is no such column or slot, or a pattern is no regular expression.
        ImportError: pandas is not installed.
    """
    kinds = {"weight": named_arrays(parameters), "weight_gradient": named_arrays(gradients)}
    for slot in [slots] if isinstance(slots, str) else slots:
        kinds[f"optimizer_state[{slot}]"] = slot_of(parameters, state, slot)
    selection = Selection.of(include, exclude)
    selection.warn_of_strays(kinds["weight"])
    arrays = {
        f"{kind}:{name}": array
        for kind, own in kinds.items()
        for name, array in own.items()
        if selection.chooses(name)
    }
    return of_kinds(NamedArrays(arrays), groups, by, across)
