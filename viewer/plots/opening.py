"""From a run or a frame to what plots ask of it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import pandas as pd

from ...sketch.errors import SettingError
from ...store.query import Run
from .from_frame import FrameSource
from .from_run import RunSource
from .source import Source


def source_of(data: object) -> Source:
    """How to ask what is to be drawn: `Data`.

    Raises:
        SettingError: it is neither a run nor a LogFrame.
    """
    if isinstance(data, Run):
        return RunSource(data)
    if isinstance(data, pd.DataFrame):
        return FrameSource(data)
    more = "; several by name draw `scalar_lines` and `exponent_histogram`"
    more = more if isinstance(data, dict) else ""
    raise SettingError(
        f"Plots take an open run (`open_run(path)`) or a LogFrame, got {type(data).__name__}{more}."
    )


def sources_of(data: object) -> dict[str, Source]:
    """By name, where there are several; else the one there is, without a name.

    Raises:
        SettingError: something is neither a run nor a LogFrame, or there is nothing.
    """
    if not isinstance(data, Mapping):
        return {"": source_of(data)}
    if not data:
        raise SettingError("`data` is empty: give a run, or several by name.")
    return {str(name): source_of(one) for name, one in data.items()}


@contextmanager
def naming(run: str) -> Generator[None]:
    """Errors name the run, where there are several."""
    try:
        yield
    except SettingError as error:
        raise SettingError(f"{run}: {error}" if run else str(error)) from None
