"""What is measured and how it merges: the ground floor. NumPy and ml_dtypes only; no I/O.

The one rule of this room: a sketch is a monoid. There is one merge, and what cannot be merged
(a mean, a norm, a quantile) is derived at the end.
"""

from .derive import MAIN, STATISTICS, derive, main_statistics
from .distribution import RANKED, RankDistribution
from .elements import BLOCK, element_hash
from .errors import (
    AddressError,
    BusyError,
    GoneError,
    LogFrameError,
    NotARunError,
    ProtocolError,
    RankscopeError,
    SettingError,
    StoreError,
)
from .exact_counts import (
    BlockExponents,
    CastCounts,
    ExactCount,
    FineExponents,
    exact_count_named,
)
from .formats import FORMATS, NumberFormat, number_format
from .matrices import Form, Merge, Weighted, length_of, merged, square
from .ranges import fit, overflow, quantile, subnormal, underflow
from .reference import sketch_array
from .scaling import best_shift
from .spectra import Statistic, read, read_values, spectrum, why_unknown
from .table import BINS, COUNTS, FIRST_EXPONENT, LAST_EXPONENT, MOMENTS, SketchTable
from .tally import Bounded, Tally

__all__ = [
    "BINS",
    "BLOCK",
    "COUNTS",
    "FIRST_EXPONENT",
    "FORMATS",
    "LAST_EXPONENT",
    "MAIN",
    "MOMENTS",
    "RANKED",
    "STATISTICS",
    "AddressError",
    "BlockExponents",
    "Bounded",
    "BusyError",
    "CastCounts",
    "ExactCount",
    "FineExponents",
    "Form",
    "GoneError",
    "LogFrameError",
    "Merge",
    "NotARunError",
    "NumberFormat",
    "ProtocolError",
    "RankDistribution",
    "RankscopeError",
    "SettingError",
    "SketchTable",
    "Statistic",
    "StoreError",
    "Tally",
    "Weighted",
    "best_shift",
    "derive",
    "element_hash",
    "exact_count_named",
    "fit",
    "length_of",
    "main_statistics",
    "merged",
    "number_format",
    "overflow",
    "quantile",
    "read",
    "read_values",
    "sketch_array",
    "spectrum",
    "square",
    "subnormal",
    "underflow",
    "why_unknown",
]
