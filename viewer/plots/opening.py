"""From a run or a frame to what plots ask of it."""

from __future__ import annotations

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
    more = "; several by name draws `scalar_lines` alone" if isinstance(data, dict) else ""
    raise SettingError(
        f"Plots take an open run (`open_run(path)`) or a LogFrame, got {type(data).__name__}{more}."
    )
