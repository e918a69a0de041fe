"""LogFrames as files: Parquet, which keeps labels, types and attributes, and CSV, which does not.

pandas alone cannot do it: Parquet's columns have names only, and it reads none back that holds an
infinity. The names written here are tuples that Python reads as the labels, 1e999 for infinity.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..sketch.errors import LogFrameError, SettingError
from ..sketch.writing import writing
from .logframe import ORIGIN

PARQUET, CSV, PICKLE = (".parquet", ".pq"), (".csv",), (".pkl", ".pickle")


def check_ending(path: Path) -> None:
    """Refuse to write what is neither Parquet nor CSV.

    Raises:
        SettingError: its name ends in something else, or the library for Parquet is missing.
    """
    if path.suffix in PARQUET:
        parquet_library()
    elif path.suffix not in CSV:
        raise SettingError(
            f"A LogFrame is written as {' or '.join((*PARQUET, *CSV))}, got {path.name!r}."
        )


def write_logframe(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a LogFrame; the file appears whole, or not at all.

    Args:
        frame: of `Run.logframe()` or `read_logframe`.
        path: ends in .parquet, .pq or .csv.

    Raises:
        SettingError: its name ends in something else, the library for Parquet is missing, or it
            cannot be written.
        LogFrameError: CSV was asked for, which keeps no attributes, and would have to.
    """
    path = Path(path)
    check_ending(path)
    if path.suffix in CSV and "mixed" in frame.attrs.get(ORIGIN, {}):
        raise LogFrameError(
            "One column of exponents of this LogFrame also holds zeros, NaN and infinities, and "
            f"CSV has no place to say so; write {path.with_suffix(PARQUET[0]).name} instead."
        )
    unfinished = path.with_name(f".{path.name}.unfinished")
    with writing(path):
        try:
            if path.suffix in CSV:
                frame.to_csv(unfinished, index=False)
            else:
                write_parquet(frame, unfinished)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Write Parquet that `pandas.read_parquet` reads back with the same labels and attributes."""
    library = parquet_library()
    names = [name_of(label) for label in frame.columns]
    arrays = [library.Array.from_pandas(frame.iloc[:, at]) for at in range(len(names))]
    text = {"name": None, "field_name": None, "numpy_type": "object", "metadata": None}
    about = {
        "index_columns": [
            {"kind": "range", "name": None, "start": 0, "stop": len(frame), "step": 1}
        ],
        "column_indexes": [text | {"pandas_type": kind} for kind in ("unicode", "mixed")],
        "columns": [
            {
                "name": name,
                "field_name": name,
                "pandas_type": str(array.type),
                "numpy_type": str(dtype),
                "metadata": None,
            }
            for name, array, dtype in zip(names, arrays, frame.dtypes, strict=True)
        ],
        "creator": {"library": "pyarrow", "version": library.__version__},
        "pandas_version": pd.__version__,
    }
    attributes = {"pandas": json.dumps(about), "PANDAS_ATTRS": json.dumps(frame.attrs)}
    table = library.Table.from_arrays(arrays, names=names).replace_schema_metadata(attributes)
    library.parquet.write_table(table, path, compression="zstd")


def name_of(label: tuple[str, Any]) -> str:
    """A column's label as Python would read it."""
    group, name = label
    if isinstance(name, float) and np.isinf(name):
        return f"({group!r}, {'-' if name < 0 else ''}1e999)"
    return repr((group, name))


def parquet_library() -> Any:
    """pyarrow, which most who read runs do not need.

    Raises:
        SettingError: it is not installed.
    """
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise SettingError(
            "Parquet needs pyarrow, which is not installed: pip install 'rankscope[parquet]'; "
            "CSV needs nothing."
        ) from error
