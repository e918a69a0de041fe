"""Sketches of tensors in the host's memory: one batch for the kernels, by address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...sketch.table import SketchTable
from ..kernel import DTYPES, absorb, cut_into, sketch_items
from ..steptable import StepTable

CODES = {f"torch.{name}": code for code, name in enumerate(DTYPES)}
"""What the kernels call dtypes, by what torch does."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some elements of a tensor, one behind the other."""

    row: int
    """Of its site."""
    tensor: Any
    """Contiguous, on the host; it is kept, so that the memory stays."""
    start: int
    """The first of the elements."""
    elements: int
    replica: int = 0
    """Of what all replicas hold alike: beyond the first they are compared only."""


def sketch(step: int, parts: Sequence[Part], rows: int) -> tuple[StepTable, set[int]]:
    """The sketches of parts, merged by row; and the rows whose replicas differ.

    Args:
        rows: how many sites there are.
    """
    copies = [part for part in parts if part.replica]
    places = {id(part): rows + place for place, part in enumerate(copies)}
    items, into = list[tuple[int, ...]](), list[int]()
    for part in parts:
        address = part.tensor.data_ptr() + part.start * part.tensor.element_size()
        code = CODES[str(part.tensor.dtype)]
        work = cut_into(address, part.elements, code, regions=[None])
        items += work
        into += [places.get(id(part), part.row)] * len(work)
    table = StepTable(step, SketchTable.empty(0), np.zeros(0, np.bool_))
    table.reserve(rows + len(copies))
    if items:
        leaf = sketch_items(np.array(items, np.int64))
        table.absorb(np.array(into, np.int64), leaf, np.ones(len(into), np.bool_), absorb)
    sums = table.table.checksum
    differ = {part.row for part in copies if sums[part.row] != sums[places[id(part)]]}
    table.table, table.present = table.table.take(slice(rows)), table.present[:rows]
    return table, differ
