"""How a tensor is to be read: which of its elements, in which order, and by which numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ...sketch.elements import Region
from ..reading import Reading
from ..sitebook import SiteBook
from .local import PLAIN, Cut, cut_of, in_memory_order
from .megatron import Part


class Readings:
    """How the tensors of all sites are to be read.

    Args:
        book: the sites and their rows.
        report: tells an error in the run.
    """

    def __init__(self, book: SiteBook, report: Callable[[str, Exception], None]) -> None:
        self._book, self._report = book, report
        self._cuts: dict[int, tuple[object, Region | None]] = {}
        """By row: sizes and placements, and where the piece lies."""

    def reading(
        self,
        row: int,
        tensor: torch.Tensor,
        piece: torch.Tensor,
        how: Reading,
        part: Part | None,
    ) -> tuple[torch.Tensor, Reading]:
        """Which elements of a local piece are read, in which order, and how."""
        stride = 1 if row in self._book.whole else how.stride
        numbered = stride == 1 and (how.compared or not how.sentinel)
        region = self._region(row, tensor, piece, part) if numbered else None
        elements, copies = (piece, 1) if region is not None else in_memory_order(piece)
        if (copies, stride, region) != (1, how.stride, None):
            how = replace(how, copies=copies, stride=stride, region=region)
        return elements, how

    def cut(
        self, name: str, tensor: torch.Tensor, piece: torch.Tensor, part: Part | None
    ) -> Cut | None:
        """Which part of the whole a piece is; None for a whole, and where nobody knows."""
        try:
            return part.cut(piece.shape) if part is not None else cut_of(tensor, piece)
        except Exception as error:  # its sketch is right all the same
            self._report(f"Elements of the pieces of {name} are numbered from 0", error)
            return None

    def _region(
        self, row: int, tensor: torch.Tensor, piece: torch.Tensor, part: Part | None
    ) -> Region | None:
        """Where a piece lies in the whole tensor, found once while both keep their sizes."""
        placements = part if type(tensor) in PLAIN else getattr(tensor, "placements", part)
        if placements is None or not piece.is_contiguous():
            return None
        sizes = tensor.shape, piece.shape, placements
        known = self._cuts.get(row)
        if known is None or known[0] != sizes:
            cut = self.cut(self._book.sites[row].name, tensor, piece, part)
            known = self._cuts[row] = sizes, cut.region() if cut else None
        return known[1]
