"""News as event files of TensorBoard: scalars, histograms of exponents, alerts and tables as text.

Written with TensorBoard's own records and messages into a plain file: its usual writer would
load TensorFlow where there is one, and drops what cannot be written without a word.
"""

from __future__ import annotations

import os
import socket
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from ..sketch.errors import SettingError
from ..sketch.table import FIRST_EXPONENT, Ints
from .files import append
from .news import Alarm, Ended, Found, News, Numbers, Table, Trouble

MOST_ATTEMPTS = 2
"""Of a run that are open: records of the last but one may still be patched."""
MOST_SITES = 500
"""Rows of a table: the page shows it as text, and is no fun with more."""

# protobuf makes the classes of messages when it is imported: the type checker knows none of them.
Value = Any
"""A `Summary.Value`."""
Event: Any = vars(event_pb2)["Event"]
HistogramProto: Any = vars(summary_pb2)["HistogramProto"]
Summary: Any = vars(summary_pb2)["Summary"]
SummaryMetadata: Any = vars(summary_pb2)["SummaryMetadata"]
TensorProto: Any = vars(tensor_pb2)["TensorProto"]
DT_STRING: Any = vars(types_pb2)["DT_STRING"]


class TensorBoard:
    """Writes into FOLDER/RUN/attempt-N, which `tensorboard --logdir FOLDER` shows as runs.

    Raises:
        SettingError: the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, dict[int, EventFile]] = {}
        """By run and attempt."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            text = f"`--sink tensorboard:{folder}` cannot be written: {error.strerror}."
            raise SettingError(text) from None

    def take(self, news: News) -> None:
        """Write it, through to the file."""
        match news:
            case Numbers():
                file = self._file(news.run, news.attempt)
                file.write(values_of(news), news.step, news.time_ns)
            case Found(incident=incident):
                file, cause = self._file(news.run, incident.attempt), incident.cause
                first, last = incident.first_step, incident.last_step
                step = first if last is None else last
                over = "" if last is None else f" (until step {last})"
                severity = incident.severity_at_first
                text = f"**{cause.rule}** ({severity}), step {first}{over}: {incident.text}"
                file.write([_text("incidents", text)], step, cause.time_ns)
            case Trouble():
                file = self._file(news.run, news.attempt)
                file.write([_text("incidents", news.text)], news.step, news.time_ns)
            case Alarm():
                pass  # it is part of an incident
            case Ended(run=run):
                self._close(run)

    def close(self) -> None:
        """Close all files."""
        for run in list(self._open):
            self._close(run)

    def _file(self, run: str, attempt: int) -> EventFile:
        attempts = self._open.setdefault(run, {})
        if attempt not in attempts:
            attempts[attempt] = EventFile(self._folder / run / f"attempt-{attempt}")
            if len(attempts) > MOST_ATTEMPTS:
                attempts.pop(next(iter(attempts))).close()
        return attempts[attempt]

    def _close(self, run: str) -> None:
        for file in self._open.pop(run, {}).values():
            file.close()


class EventFile:
    """One new file of events in a folder, which is made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / f"{name}.{time.monotonic_ns()}").open("xb", buffering=0)
        self._append(Event(wall_time=now, file_version="brain.Event:2"))

    def write(self, values: list[Value], step: int, time_ns: int) -> None:
        """One event with all of the values, or nothing."""
        self._append(Event(wall_time=time_ns / 1e9, step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """No more comes."""
        self._file.close()

    def _append(self, event: Value) -> None:
        record = BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        append(self._file, record.getvalue())


def values_of(news: Numbers) -> list[Value]:
    """Scalars, histograms, and a table where there is one."""
    scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in news.values.items()]
    histograms = [
        Summary.Value(tag=f"{group}/exponents", histo=histogram)
        for group, counts in news.exponents.items()
        if (histogram := histogram_of(counts)) is not None
    ]
    table = [] if news.table is None else [_text("sites", markdown_of(news.table))]
    return [*scalars, *histograms, *table]


def histogram_of(counts: Ints) -> Value | None:
    """A histogram over log2 |x|, a bucket each exponent; None for no elements."""
    held = np.flatnonzero(counts)
    if not len(held):
        return None
    first, last = int(held[0]), int(held[-1])
    lower = np.arange(first, last + 1, dtype=np.float64) + FIRST_EXPONENT
    found = counts[first : last + 1].astype(np.float64)
    return HistogramProto(
        min=lower[0],
        max=lower[-1] + 1,
        num=found.sum(),
        sum=(found * (lower + 0.5)).sum(),
        sum_squares=(found * (lower + 0.5) ** 2).sum(),
        bucket_limit=(lower + 1).tolist(),
        bucket=found.tolist(),
    )


def markdown_of(table: Table) -> str:
    """A table in Markdown, as the page shows text."""
    head = ["site", *table.statistics]
    rows = zip(table.sites[:MOST_SITES], table.values[:MOST_SITES].tolist(), strict=True)
    lines = [
        head,
        ["---"] * len(head),
        *([site.replace("|", "\\|"), *(f"{value:.4g}" for value in row)] for site, row in rows),
    ]
    left = len(table.sites) - MOST_SITES
    more = f"\n\n{left} more sites are in the store." if left > 0 else ""
    return "\n".join(f"|{'|'.join(line)}|" for line in lines) + more


def _text(tag: str, text: str) -> Value:
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
    tensor.tensor_shape.dim.add(size=1)
    metadata = SummaryMetadata(plugin_data=plugin)
    return Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor)
