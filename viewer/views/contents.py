"""The pages that there are, in the order of their links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from panel.viewable import Viewable

from ..pages import Compare, Formats, Map, Page, Quantities, Ranks, Tensor, Triage
from ..session import Session
from .compare import compare_view
from .formats import formats_view
from .map import map_view
from .quantities import quantities_view
from .ranks import ranks_view
from .tensor import tensor_view
from .triage import triage_view


class Entry(NamedTuple):
    """A page: what makes its model, and what makes its view of that model."""

    # `Any`: each view takes its own page; the list below is where they are matched.
    model: Callable[[Session], Any]
    view: Callable[[Any], Viewable]
    name: str
    title: str


def entry(model: type[Page], view: Callable[[Any], Viewable]) -> Entry:
    """The entry of a page, whose class knows its name."""
    return Entry(model, view, model.name, model.title)


CONTENTS: tuple[Entry, ...] = (
    entry(Triage, triage_view),
    entry(Map, map_view),
    entry(Tensor, tensor_view),
    entry(Ranks, ranks_view),
    entry(Formats, formats_view),
    entry(Quantities, quantities_view),
    entry(Compare, compare_view),
)
"""A new page is one more line here. One lands on the first."""
