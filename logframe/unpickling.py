"""Pickles of data frames, and of nothing else: a closed list of what they may be made of.

A pickle is a program: it names functions and calls them. This reader knows those that pandas and
NumPy name for a table of numbers and text, and refuses all others before anything is called.
"""

from __future__ import annotations

import io
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from ..sketch.errors import LogFrameError

WHERE_IT_IS = (
    ("builtins", "slice"),
    ("builtins", "bytearray"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pyarrow.lib", "_restore_array"),
    ("pyarrow.lib", "py_buffer"),
    ("pyarrow.lib", "type_for_alias"),
    ("pyarrow.lib", "chunked_array"),
)
MOVED = (
    ("numpy._core.multiarray", "_reconstruct", "numpy.core.multiarray"),
    ("numpy._core.multiarray", "scalar", "numpy.core.multiarray"),
    ("numpy._core.numeric", "_frombuffer", "numpy.core.numeric"),
    ("pandas", "DataFrame", "pandas.core.frame"),
    ("pandas", "Index", "pandas.core.indexes.base"),
    ("pandas", "MultiIndex", "pandas.core.indexes.multi"),
    ("pandas", "RangeIndex", "pandas.core.indexes.range"),
    ("pandas", "StringDtype", "pandas.core.arrays.string_"),
    ("pandas.arrays", "StringArray", "pandas.core.arrays.string_"),
    ("pandas.arrays", "ArrowStringArray", "pandas.core.arrays.string_arrow"),
    ("pandas.core.internals.managers", "BlockManager", "pandas.core.internals"),
)
"""What has lain elsewhere in other versions: where it is, its name, where it was."""
OLD_INDEXES = ("Int64Index", "UInt64Index", "Float64Index")
"""What pandas had before its version 2, and is an Index now."""

ALLOWED: dict[tuple[str, str], tuple[str, str]] = (
    {what: what for what in WHERE_IT_IS}
    | {(place, name): (now, name) for now, name, before in MOVED for place in (now, before)}
    | {("pandas.core.indexes.numeric", name): ("pandas", "Index") for name in OLD_INDEXES}
)
"""What a pickle may name, and where that is today."""

OLD_NAMES = {"__builtin__": "builtins"}
"""Modules as the protocols of Python 2 call them."""


class _Reader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        module_name = OLD_NAMES.get(module_name, module_name)
        if (module_name, global_name) == ("_codecs", "encode"):
            return latin1
        if (module_name, global_name) not in ALLOWED:
            raise LogFrameError(
                f"The pickle names {module_name}.{global_name}, which no table of numbers and text "
                "needs; it was not read. If it is a LogFrame all the same, write it as Parquet "
                "where it was made."
            )
        home, name = ALLOWED[module_name, global_name]
        return getattr(import_module(home), name)

    def persistent_load(self, pid: Any, /) -> Any:
        raise LogFrameError("The pickle refers to objects outside of it; it was not read.")


def latin1(text: str, encoding: str) -> bytes:
    """Bytes, as the older protocols write them."""
    if encoding != "latin1":
        raise LogFrameError(f"The pickle encodes text as {encoding!r}; it was not read.")
    return text.encode("latin1")


def read_pickle(path: Path) -> pd.DataFrame:
    """The data frame that a pickle holds.

    Raises:
        LogFrameError: it holds something else, or names what no data frame needs.
        OSError: the file cannot be read.
    """
    try:
        found = _Reader(io.BytesIO(path.read_bytes())).load()
    except (LogFrameError, OSError):
        raise
    except Exception as error:  # a broken pickle raises whatever it comes upon
        raise LogFrameError(f"{path} is no pickle of a LogFrame: {error}.") from error
    if type(found) is not pd.DataFrame:
        raise LogFrameError(f"{path} holds a {type(found).__name__}, not a data frame.")
    return found
