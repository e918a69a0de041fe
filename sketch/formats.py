"""Facts about number formats: where they end, from ml_dtypes."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from math import frexp

import ml_dtypes
import numpy as np

from .errors import SettingError
from .table import FIRST_EXPONENT

FORMATS = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e4m3b11fnuz",
    "float8_e4m3",
    "float8_e3m4",
    "float6_e3m2fn",
    "float6_e2m3fn",
    "float4_e2m1fn",
)
"""The formats that can be asked for by name."""
BLOCK_FORMATS = (
    "float8_e5m2",
    "float8_e4m3fn",
    "float6_e3m2fn",
    "float6_e2m3fn",
    "float4_e2m1fn",
)
"""Those of the elements of blocks that share a scale (MX, NVFP4, block-scaled float8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """Where a floating-point format begins and ends."""

    name: str
    bits: int
    """Width of one element in bits."""
    mantissa: int
    """Stored bits of the significand."""
    max: float
    """Largest finite number."""
    smallest_normal: float
    smallest_subnormal: float
    saturates: bool
    """Whether a cast clips to `max` (formats without infinity and NaN) and so cannot overflow."""

    @property
    def overflow_threshold(self) -> float:
        """The smallest |x| that rounds past `max`, to nearest even.

        That is half a unit in the last place beyond it, or just above where `max` is even: in
        float8_e4m3fn 464 becomes 448, for the mantissa above that of 448 is NaN's.
        """
        unit = 2.0 ** (floor_log2(self.max) - self.mantissa)
        halfway = self.max + unit / 2
        return halfway if self.max / unit % 2 == 1 else float(np.nextafter(halfway, np.inf))

    @property
    def flush_threshold(self) -> float:
        """The largest |x| that rounds to zero, to nearest even: half the smallest subnormal."""
        return self.smallest_subnormal / 2


@cache
def number_format(name: str) -> NumberFormat:
    """The facts of the format called `name`, spelled as its dtype.

    Raises:
        SettingError: no such format; the message lists near names.
    """
    if name not in FORMATS:
        near = get_close_matches(name, FORMATS, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(FORMATS)}."
        raise SettingError(f"There is no number format {name!r}; {hint}")
    info = ml_dtypes.finfo(dtype_named(name))
    return NumberFormat(
        name=name,
        bits=info.bits,
        mantissa=info.nmant,
        max=float(info.max),
        smallest_normal=float(info.smallest_normal),
        smallest_subnormal=float(info.smallest_subnormal),
        saturates=name.startswith(("float6_", "float4_")),
    )


def dtype_named(name: str) -> np.dtype[np.generic]:
    """The NumPy dtype called `name`, those of ml_dtypes among them.

    Raises:
        SettingError: neither NumPy nor ml_dtypes knows the name.
    """
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        raise SettingError(f"There is no dtype {name!r} in NumPy or ml_dtypes.") from None


def smallest_normal(dtype: np.dtype[np.generic]) -> float:
    """The smallest normal number of `dtype`; 0 for integers and booleans, without subnormals."""
    if dtype.kind in "iub":
        return 0.0
    return float(ml_dtypes.finfo(dtype).smallest_normal)


def floor_log2(x: float) -> int:
    """The exponent of a positive number, exactly."""
    return frexp(x)[1] - 1


def normal_bin(name: str) -> int:
    """The bin of the smallest normal number of the dtype called `name`; 0 if it is below all bins.

    What lies in bins below it is subnormal.
    """
    return max(floor_log2(smallest_normal(dtype_named(name))) - FIRST_EXPONENT, 0)
