"""Which part of a whole tensor a rank holds: it follows from sizes and places on the mesh alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Cuts = Sequence[tuple[str, int]]
"""(mesh axis, axis of the tensor), in the order in which a tensor is cut: each cuts what the ones
before leave."""


def piece_of(
    whole: Sequence[int], cuts: Cuts, at: Mapping[str, tuple[int, int]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offset and shape of a piece, an entry an axis each, as torch cuts a DTensor.

    Along a mesh axis of n ranks all but the last get 1/n of the length, rounded up; the last ones
    get what is left, which may be nothing.

    Args:
        whole: shape of the whole.
        at: by mesh axis the coordinate on it, and its size.
    """
    offset, shape = [0] * len(whole), list(whole)
    for axis, along in cuts:
        coordinate, size = at[axis]
        length = shape[along]
        chunk = -(-length // size)
        start = min(coordinate * chunk, length)
        offset[along] += start
        shape[along] = min(chunk, length - start)
    return tuple(offset), tuple(shape)
