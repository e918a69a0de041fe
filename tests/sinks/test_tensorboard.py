"""Event files, as TensorBoard itself reads them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rankscope.sinks import Ended
from rankscope.sinks.tensorboard import MOST_SITES, TensorBoard, markdown_of
from rankscope.sketch import SettingError

from .telling import ALERT, found, numbers


def read(folder: Path) -> Any:
    """All that TensorBoard finds in a folder."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def text_of(found: Any, tag: str) -> str:
    [event] = found.Tensors(f"{tag}/text_summary")
    return event.tensor_proto.string_val[0].decode()


def test_scalars_have_their_steps_and_times(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path)
    for step in (0, 5, 10):
        sink.take(numbers(step))
    found = read(tmp_path / "demo" / "attempt-0")  # all is in the file before it is closed

    losses = found.Scalars("training/loss")
    assert [(one.step, one.value) for one in losses] == [(0, 10.0), (5, 5.0), (10, 0.0)]
    assert losses[0].wall_time == numbers(0).time_ns / 1e9
    rms = found.Scalars("activation/rms")
    assert rms[1].value == pytest.approx(numbers(5).values["activation/rms"])
    sink.close()


def test_exponents_are_a_histogram_of_the_logarithm(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path)
    counts = np.zeros_like(numbers().exponents["weight"])
    counts[[149 - 3, 149, 149 + 1]] = 5, 2, 1  # 2^-3, 2^0, 2^1
    sink.take(numbers(exponents={"weight": counts, "activation": np.zeros_like(counts)}))
    sink.close()
    found = read(tmp_path / "demo" / "attempt-0")

    assert found.Tags()["histograms"] == ["weight/exponents"]
    [event] = found.Histograms("weight/exponents")
    assert event.histogram_value.bucket_limit == [-2, -1, 0, 1, 2]
    assert event.histogram_value.bucket == [5, 0, 0, 2, 1]
    assert (event.histogram_value.min, event.histogram_value.max) == (-3, 2)


def test_alerts_and_tables_are_text(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path)
    sink.take(numbers(table=True))
    sink.take(found())
    sink.take(found("other", replace(ALERT, last_step=8)))
    sink.close()
    written = read(tmp_path / "demo" / "attempt-0")

    said = f"**replica-divergence** (error), step 3: {ALERT.text}"
    assert text_of(written, "incidents") == said
    assert "(until step 8)" in text_of(read(tmp_path / "other" / "attempt-0"), "incidents")
    head, _, first, *_ = text_of(written, "sites").splitlines()
    assert head.startswith("|site|count|rms|mean|")
    assert first.startswith("|activation:layers.0.up|40|")


def test_a_long_table_is_cut_and_says_so() -> None:
    table = numbers(table=True).table
    assert table is not None
    sites = MOST_SITES + 3
    long = replace(
        table,
        sites=tuple(map(str, range(sites))),
        values=np.zeros((sites, len(table.statistics))),
    )

    assert markdown_of(long).endswith("\n\n3 more sites are in the store.")


def test_each_attempt_is_a_run_of_its_own(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path)
    sink.take(numbers(0))
    sink.take(numbers(1, attempt=1, launch="two"))
    sink.take(numbers(2))  # a record of the first that was patched
    sink.take(numbers(3, attempt=2, launch="three"))
    sink.take(numbers(4))
    sink.take(Ended(run="demo"))
    sink.close()

    first = read(tmp_path / "demo" / "attempt-0").Scalars("training/loss")
    second = read(tmp_path / "demo" / "attempt-1").Scalars("training/loss")
    assert sorted(one.step for one in first) == [0, 2, 4]
    assert [one.step for one in second] == [1]


def test_neither_tensorflow_nor_torch_is_loaded(tmp_path: Path) -> None:
    script = "import sys, rankscope.sinks.tensorboard; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True, cwd=tmp_path)

    assert not {"torch", "tensorflow", "grpc"} & set(loaded.split())


def test_a_folder_that_cannot_be_made_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=r"`--sink tensorboard:.*` cannot be written"):
        TensorBoard(tmp_path / "file" / "inside")
