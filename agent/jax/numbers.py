"""Floating-point numbers as integers: what is exact must not pass through arithmetic.

XLA's CPU code takes subnormal numbers for zero, and other devices may do so, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...sketch.formats import smallest_normal


class Layout(NamedTuple):
    """How the bits of a wide format are laid out, and which integers hold them."""

    mantissa: int
    """Stored bits of the significand."""
    bias: int
    """The exponent field of 1."""
    signed: Any
    """Signed integers of that width."""

    @property
    def width(self) -> int:
        """Bits of a number."""
        return np.iinfo(self.signed).bits

    @property
    def all_but_sign(self) -> int:
        """The largest signed integer: the bits of a magnitude."""
        return int(np.iinfo(self.signed).max)

    @property
    def infinity(self) -> int:
        """The bits of infinity; those of NaN's magnitude are more."""
        return (2 * self.bias + 1) << self.mantissa


FLOAT32 = Layout(23, 127, jnp.int32)
FLOAT64 = Layout(52, 1023, jnp.int64)

_UNSIGNED = {4: jnp.uint4, 8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}


def layout_of(dtype: Any) -> Layout:
    """The layout that holds all numbers of a float dtype.

    Raises:
        TypeError: it is not one.
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"Only real floating-point numbers can be sketched, got dtype {dtype}.")
    return FLOAT64 if jnp.dtype(dtype).itemsize == 8 else FLOAT32


def raw_bits(x: jax.Array) -> jax.Array:
    """The bits of each element, as unsigned integers of at least a byte."""
    bits = lax.bitcast_convert_type(x, _UNSIGNED[jnp.finfo(x.dtype).bits])
    return bits.astype(jnp.uint8) if bits.dtype == jnp.uint4 else bits


def widened(x: jax.Array) -> jax.Array:
    """Each element's number as the bits of its layout: int32, or int64 for float64."""
    raw = raw_bits(x)
    match raw.dtype.itemsize:
        case 1:
            return jnp.asarray(_values_of_bytes(x.dtype))[raw]
        case 2 if x.dtype == jnp.bfloat16:
            return raw.astype(jnp.int32) << 16
        case 2:  # float16 has no subnormals that are subnormal in float32
            return lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
        case _:
            return lax.bitcast_convert_type(raw, layout_of(x.dtype).signed)


def _values_of_bytes(dtype: Any) -> np.ndarray[Any, Any]:
    """int32 [256, or 16 for 4 bits]: as bits of float32 what the bytes of a dtype stand for."""
    patterns = np.arange(1 << jnp.finfo(dtype).bits, dtype=np.uint8).view(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return patterns.astype(np.float32).view(np.int32)


def first_normal(dtype: Any) -> int:
    """The bits of the smallest normal number of a dtype, in its layout."""
    signed = layout_of(dtype).signed
    wide = np.float64 if signed is jnp.int64 else np.float32
    return int(wide(smallest_normal(np.dtype(dtype))).view(signed))


def exponent_of(magnitude: jax.Array, layout: Layout) -> jax.Array:
    """int32: floor(log2) of the bits of a magnitude that is neither zero nor infinite."""
    field = (magnitude >> layout.mantissa).astype(jnp.int32)
    top_bit = layout.width - 1 - lax.clz(magnitude).astype(jnp.int32)
    subnormal = top_bit - (layout.bias + layout.mantissa - 1)
    return jnp.where(field > 0, field - layout.bias, subnormal)


def power_of_two(exponent: jax.Array) -> jax.Array:
    """float64: 2^exponent, for exponents of normal numbers."""
    return lax.bitcast_convert_type((exponent.astype(jnp.int64) + 1023) << 52, jnp.float64)


def values_of(bits: jax.Array, layout: Layout) -> jax.Array:
    """float64: finite numbers of float32 exactly; those of float64 as they are."""
    if layout is FLOAT64:
        return lax.bitcast_convert_type(bits, jnp.float64)
    magnitude = bits & layout.all_but_sign
    field = magnitude >> layout.mantissa
    hidden = jnp.where(field > 0, 1 << layout.mantissa, 0).astype(jnp.int32)
    significand = (magnitude & ((1 << layout.mantissa) - 1)) | hidden
    significand = jnp.where(bits < 0, -significand, significand)
    scale = power_of_two(jnp.maximum(field, 1) - (layout.bias + layout.mantissa))
    return significand.astype(jnp.float64) * scale
