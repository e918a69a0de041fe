"""News as lines of JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankscope.sinks import Ended
from rankscope.sinks.json_lines import JsonLines
from rankscope.sketch import SettingError

from .telling import ALERT, alarm, numbers


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_numbers_exponents_and_tables_are_written(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "news.jsonl")
    news = numbers(4, table=True)
    sink.take(news)
    first, table = lines(tmp_path / "news.jsonl")

    assert (first["event"], first["run"], first["attempt"], first["step"]) == (
        *("numbers", "demo", 0, 4),
    )
    assert first["time"] == "2023-11-14T22:13:24.000+00:00"
    assert first["numbers"] == dict(news.values)
    assert sum(first["exponents"]["activation"]["counts"]) == 80
    assert table["event"] == "table"
    assert table["sites"]["activation:layers.0.up"]["count"] == 40


def test_what_is_not_finite_is_a_word_that_float_reads(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "news")
    values = {"training/loss": math.nan, "training/a": math.inf, "training/b": -math.inf}
    sink.take(numbers(values=values))
    [line] = lines(tmp_path / "news")

    assert line["numbers"] == {"training/loss": "nan", "training/a": "inf", "training/b": "-inf"}


def test_alerts_are_written_when_they_begin_and_when_they_end(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "news")
    sink.take(alarm())
    sink.take(alarm(alert=replace(ALERT, last_step=9, value=math.inf)))
    sink.take(Ended(run="demo"))
    begins, ends, over = lines(tmp_path / "news")

    assert (begins["event"], begins["state"], begins["ranks"]) == ("alert", "begins", [2])
    assert (ends["state"], ends["last_step"], ends["value"]) == ("ends", 9, "inf")
    assert begins["time"].startswith("2023-11-14T")
    assert over == {"event": "ended", "run": "demo"}


def test_a_file_that_is_moved_away_begins_anew(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "news")
    sink.take(Ended(run="a"))
    (tmp_path / "news").rename(tmp_path / "news.1")
    sink.take(Ended(run="b"))

    assert [line["run"] for line in lines(tmp_path / "news")] == ["b"]


def test_a_file_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be written: Is a directory"):
        JsonLines(tmp_path)
