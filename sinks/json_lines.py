"""News as lines of JSON in a file, for scripts and log shippers.

The file is opened anew for each line, so that it may be moved away at any time (logrotate).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..sketch.errors import SettingError
from ..sketch.jsontext import json_number
from ..sketch.table import FIRST_EXPONENT, Ints
from ..store.incidents import Incident
from .files import append
from .news import Alarm, Ended, Found, News, Numbers, Table, Trouble


class JsonLines:
    """Appends to a file.

    Raises:
        SettingError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.open("ab").close()
        except OSError as error:
            text = f"`--sink jsonl:{path}` cannot be written: {error.strerror}."
            raise SettingError(text) from None

    def take(self, news: News) -> None:
        """Write all of its lines, or none."""
        lines = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines_of(news))
        with self._path.open("ab", buffering=0) as file:
            append(file, lines.encode())

    def close(self) -> None:
        """All is written already."""


def lines_of(news: News) -> list[dict[str, Any]]:
    """What is written of it."""
    match news:
        case Numbers():
            where = {"run": news.run, "attempt": news.attempt, "step": news.step}
            when = {"time": _time(news.time_ns)}
            numbers = {name: json_number(value) for name, value in news.values.items()}
            exponents = {group: _trimmed(counts) for group, counts in news.exponents.items()}
            line = {"event": "numbers", **where, **when, "numbers": numbers, "exponents": exponents}
            if news.table is None:
                return [line]
            return [line, {"event": "table", **where, **when, "sites": _sites(news.table)}]
        case Alarm():
            alert, state = news.alert, "begins" if news.begins else "ends"
            fields = asdict(alert) | {
                "value": json_number(alert.value),
                "threshold": json_number(alert.threshold),
                "evidence": {name: json_number(one) for name, one in alert.evidence.items()},
                "undetermined": alert.undetermined,
                "time": _time(alert.time_ns),
            }
            del fields["time_ns"]
            return [{"event": "alert", "run": news.run, "state": state, **fields}]
        case Found(incident=incident):
            return [{"event": "incident", "run": news.run, **summary_of(incident)}]
        case Trouble():
            return [{"event": news.kind, **trouble_of(news)}]
        case Ended():
            return [{"event": "ended", "run": news.run}]


def trouble_of(news: Trouble) -> dict[str, Any]:
    """What ranks met, in fields."""
    return {
        "run": news.run,
        "attempt": news.attempt,
        "ranks": list(news.ranks),
        "step": news.step,
        "text": news.text,
        "time": _time(news.time_ns),
    }


def summary_of(incident: Incident) -> dict[str, Any]:
    """An incident in fields."""
    cause = incident.cause
    return {
        "state": "begins" if incident.last_step is None else "is over",
        "severity": incident.severity,
        "rule": cause.rule,
        "site": cause.site,
        "ranks": list(incident.ranks),
        "undetermined": incident.undetermined,
        "attempt": incident.attempt,
        "first_step": incident.first_step,
        "last_step": incident.last_step,
        "value": json_number(cause.value),
        "threshold": json_number(cause.threshold),
        "text": cause.text,
        "escalation": _escalation_of(incident),
        "alerts": len(incident.alerts),
        "sites": incident.sites,
        "time": _time(cause.time_ns),
    }


def _escalation_of(incident: Incident) -> dict[str, Any] | None:
    worse = incident.escalation
    if worse is None:
        return None
    return {
        "severity": worse.severity,
        "rule": worse.rule,
        "site": worse.site,
        "ranks": list(worse.ranks),
        "first_step": worse.first_step,
        "text": worse.text,
    }


def _time(time_ns: int) -> str:
    moment = datetime.fromtimestamp(time_ns / 1e9, UTC)
    return moment.isoformat(timespec="milliseconds")


def _trimmed(counts: Ints) -> dict[str, Any]:
    """Counts from the lowest exponent that there is to the highest."""
    held = np.flatnonzero(counts)
    if not len(held):
        return {"first": None, "counts": []}
    first, last = int(held[0]), int(held[-1])
    return {"first": first + FIRST_EXPONENT, "counts": counts[first : last + 1].tolist()}


def _sites(table: Table) -> dict[str, dict[str, float | str]]:
    """By label the statistics that are defined."""
    return {
        site: {
            name: json_number(value)
            for name, value in zip(table.statistics, row, strict=True)
            if value == value
        }
        for site, row in zip(table.sites, table.values.tolist(), strict=True)
    }
