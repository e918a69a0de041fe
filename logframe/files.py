"""Reads LogFrames from files: Parquet, CSV, and pickles of those who are trusted."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ..sketch.errors import LogFrameError, RankscopeError
from ..store.logframe_file import CSV, PARQUET, PICKLE, parquet_library
from .schema import Exponents, validate
from .unpickling import read_pickle

INDEX = "Unnamed: 0"
"""What `pandas.read_csv` calls the column of row labels that `to_csv` writes."""


def read_logframe(
    path: str | Path, *, trust_pickle: bool = False, exponents: Exponents = "auto"
) -> pd.DataFrame:
    """Read a LogFrame, check it, and give its exponents the documented labels; see `validate`.

    Args:
        path: ends in .parquet, .pq, .csv, .pkl or .pickle.
        trust_pickle: whether pickles are read. Even then one may only name what pandas and NumPy
            need for a table; this keeps most that is hostile out, but not all that is broken.
        exponents: what the columns of exponents hold, where the file does not say it.

    Raises:
        LogFrameError: it cannot be read, or breaks the schema; the message names the column.
        SettingError: the library for Parquet is missing.
    """
    path = Path(path)
    if not path.is_file() and path.suffix.lower() in (*PARQUET, *CSV, *PICKLE):
        raise LogFrameError(f"There is no file {path}.")
    try:
        frame = _read(path, trust_pickle=trust_pickle)
        return validate(frame, exponents=exponents)
    except RankscopeError:
        raise
    except OSError as error:
        raise LogFrameError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # the libraries raise whatever a broken file makes them
        raise LogFrameError(f"{path} holds no LogFrame: {error}") from error


def _read(path: Path, *, trust_pickle: bool) -> pd.DataFrame:
    ending = path.suffix.lower()
    if ending in PARQUET:
        parquet_library()
        return pd.read_parquet(path, engine="pyarrow")
    if ending in CSV:
        # As text: what is no number is told by column and row, and a module may be called "nan".
        found = pd.read_csv(path, header=[0, 1], dtype=str, keep_default_na=False)
        return found.loc[:, [not str(group).startswith(INDEX) for group, _ in found.columns]]
    if ending in PICKLE:
        if not trust_pickle:
            raise LogFrameError(
                f"{path} is a pickle, and a pickle can run any program of whoever wrote it. If you "
                "trust it: --trust-pickle, in Python trust_pickle=True. Parquet and CSV are safe."
            )
        return _checked(read_pickle(path))
    known = ", ".join((*PARQUET, *CSV, *PICKLE))
    raise LogFrameError(f"{path.name} must end in one of {known}.")


def _checked(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame, if the text in it lies where it says: a pickle can claim anything."""
    arrays = [frame.iloc[:, at].array for at in range(frame.shape[1])]
    arrays += [level.array for level in getattr(frame.columns, "levels", [])]
    for array in arrays:
        if isinstance(array, pd.arrays.ArrowStringArray | pd.arrays.ArrowExtensionArray):
            parquet_library().array(array).validate(full=True)
    return frame
