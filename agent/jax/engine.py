"""Who sketches an array in a compiled function: on the CPU the kernels, elsewhere XLA's own code.

All agree with `sketch.reference` bit for bit in counts, extremes, histogram and checksum, and to
rounding in the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .due import nothing_due
from .ingraph import sketch_by_xla
from .numbers import layout_of
from .pieces import Piece


def sketch(x: jax.Array, *, piece: Piece | None = None) -> jax.Array:
    """The sketch of all elements of `x`, without a gradient.

    Under `vmap` each example has a row; in `shard_map` it is of the shard alone. Of an array that
    lies on several devices it is of the whole, which XLA may gather: see `per_device`.

    Args:
        x: of any shape, and any float dtype that the device takes.
        piece: where `x` lies in the whole array; without, it is the whole.

    Returns:
        uint32 [WORDS], see `rows`.

    Raises:
        TypeError: `x` has no float dtype.
    """
    layout_of(x.dtype)
    x = lax.stop_gradient(x)
    by_kernels = kernels_for(x.dtype) if jax.default_backend() == "cpu" else None
    with nothing_due(), jax.enable_x64(True):
        return _in_graph(x, piece) if by_kernels is None else by_kernels(x, piece)


@cache
def kernels_for(dtype: Any) -> Callable[[jax.Array, Piece | None], jax.Array] | None:
    """The function that has the CPU kernels read arrays of a dtype; None if they cannot."""
    try:
        from ..kernel import DTYPES
        from .native import agrees, sketch_by_kernels
    except ImportError:  # numba is in the extra, but not everywhere
        return None
    return sketch_by_kernels if np.dtype(dtype).name in DTYPES and agrees() else None


def _in_graph(x: jax.Array, piece: Piece | None) -> jax.Array:
    """By XLA's own code, which is traced once for all arrays alike."""
    if piece is None:
        return _whole(x)
    return _part(x, tuple(jnp.asarray(offset, jnp.int64) for offset in piece.offsets), piece.whole)


@jax.jit
def _whole(x: jax.Array) -> jax.Array:
    return sketch_by_xla(x, None)


@partial(jax.jit, static_argnums=2)
def _part(x: jax.Array, offsets: tuple[jax.Array, ...], whole: tuple[int, ...]) -> jax.Array:
    return sketch_by_xla(x, Piece(offsets, whole))
