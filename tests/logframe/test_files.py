"""LogFrames in files: what comes back, and what is refused."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankscope.logframe import read_logframe, validate, write_logframe
from rankscope.sketch import LogFrameError, SettingError
from rankscope.store import Run

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'rankscope[parquet]'")


def test_parquet_keeps_labels_types_and_attributes(run: Run, tmp_path: Path) -> None:
    frame = run.logframe()

    write_logframe(frame, tmp_path / "log.parquet")

    # With pandas alone, as notebooks written against tandv read it.
    plain = pd.read_parquet(tmp_path / "log.parquet")
    pd.testing.assert_frame_equal(plain, frame)
    assert plain.attrs == frame.attrs
    assert ("exponent_counts", -np.inf) in plain.columns
    pd.testing.assert_frame_equal(read_logframe(tmp_path / "log.parquet"), frame)


def test_csv_keeps_all_but_attributes(run: Run, tmp_path: Path) -> None:
    frame = run.logframe()

    write_logframe(frame, tmp_path / "log.csv")

    pd.testing.assert_frame_equal(read_logframe(tmp_path / "log.csv"), frame)


def test_frames_have_the_types_that_the_schema_asks_for(run: Run) -> None:
    frame = run.logframe()

    kinds: dict[str, set[str]] = {"scalar_stats": set(), "exponent_counts": set()}
    for group, name in frame.columns:
        if group in kinds:
            kinds[group].add(frame[group, name].dtype.kind)
        elif name != "step":
            assert pd.api.types.is_string_dtype(frame[group, name])
    assert list(frame.columns[:5]) == [
        ("metadata", name) for name in ("name", "type", "tensor_type", "step", "dtype")
    ]
    assert frame["metadata", "step"].dtype.kind == "i"
    assert kinds == {"scalar_stats": {"i", "f"}, "exponent_counts": {"i"}}


@pytest.mark.parametrize("index", [True, False])
def test_a_csv_that_pandas_wrote_is_read(log: pd.DataFrame, tmp_path: Path, index: bool) -> None:
    log.iat[0, 0] = "nan"  # a module may be called so
    log.iat[1, 0] = ""
    log.to_csv(tmp_path / "log.csv", index=index)

    frame = read_logframe(tmp_path / "log.csv")

    assert frame["metadata", "name"].tolist()[:2] == ["nan", ""]
    pd.testing.assert_frame_equal(frame, validate(log))


@pytest.mark.filterwarnings("ignore:The DataFrame has column names of mixed type")
def test_parquet_that_pandas_wrote_is_read(log: pd.DataFrame, tmp_path: Path) -> None:
    log.to_parquet(tmp_path / "log.parquet")

    pd.testing.assert_frame_equal(read_logframe(tmp_path / "log.parquet"), validate(log))


def test_a_shifted_log_goes_through_parquet_and_not_through_csv(
    log: pd.DataFrame, tmp_path: Path
) -> None:
    frame = validate(log)

    write_logframe(frame, tmp_path / "log.parquet")

    again = read_logframe(tmp_path / "log.parquet")
    pd.testing.assert_frame_equal(again, frame)
    assert again.attrs == frame.attrs
    with pytest.raises(LogFrameError, match=r"no place to say so; write log\.parquet"):
        write_logframe(frame, tmp_path / "log.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.parquet"]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickle_is_read_by_those_who_trust_it(
    log: pd.DataFrame, tmp_path: Path, protocol: int
) -> None:
    path = tmp_path / "final_logframe.pkl"
    path.write_bytes(pickle.dumps(log, protocol=protocol))

    with pytest.raises(LogFrameError, match=r"can run any program .* --trust-pickle"):
        read_logframe(path)
    pd.testing.assert_frame_equal(read_logframe(path, trust_pickle=True), validate(log))


def test_a_pickle_of_an_older_numpy_and_pandas_is_read(log: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "old.pkl"
    old = pickle.dumps(log, protocol=2)
    for now, before in (
        (b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"),
        (b"cpandas\nDataFrame\n", b"cpandas.core.frame\nDataFrame\n"),
        (b"cpandas\nMultiIndex\n", b"cpandas.core.indexes.multi\nMultiIndex\n"),
    ):
        old = old.replace(now, before)  # pandas 2 still writes its own names of before
        assert before in old
    path.write_bytes(old)

    pd.testing.assert_frame_equal(read_logframe(path, trust_pickle=True), validate(log))


class Calls:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "make",
    [
        lambda mark: Calls(os.mkdir, str(mark)),
        lambda mark: Calls(eval, f"open({str(mark)!r}, 'w')"),
        lambda mark: Calls(getattr, Path(mark), "touch"),
        lambda mark: Calls(subprocess.check_output, ["touch", str(mark)]),
        lambda mark: Calls(pd.read_pickle, str(mark)),
        lambda mark: Calls(pd.eval, f"open({str(mark)!r}, 'w')"),
        lambda mark: Calls(np.load, str(mark)),
    ],
)
def test_a_hostile_pickle_is_refused_before_it_does_anything(
    make: Any, log: pd.DataFrame, tmp_path: Path
) -> None:
    mark, path = tmp_path / "was-here", tmp_path / "hostile.pkl"
    log.attrs["note"] = make(mark)
    path.write_bytes(pickle.dumps(log))

    with pytest.raises(LogFrameError, match=r"The pickle names .*; it was not read"):
        read_logframe(path, trust_pickle=True)
    assert not mark.exists()


def test_a_pickle_of_something_else_is_refused(log: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "log.pkl"
    for content, message in (
        (pickle.dumps([1, 2]), "holds a list, not a data frame"),
        (pickle.dumps(log)[:-100], "is no pickle of a LogFrame"),
        (b"", "is no pickle of a LogFrame"),
        (b"Pmine\n.", "refers to objects outside of it"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00hextR.", "encodes text as 'hex'"),
    ):
        path.write_bytes(content)
        with pytest.raises(LogFrameError, match=message):
            read_logframe(path, trust_pickle=True)


@pytest.mark.parametrize("name", ["log.parquet", "log.csv", "log.pkl"])
def test_a_broken_file_is_told_in_a_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / name

    with pytest.raises(LogFrameError, match=f"There is no file {path}"):
        read_logframe(path, trust_pickle=True)
    for content in (b"", b"nonsense", b"\x00\xff" * 40):
        path.write_bytes(content)
        with pytest.raises(LogFrameError, match=name):
            read_logframe(path, trust_pickle=True)


def test_other_endings_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(LogFrameError, match=r"log\.h5 must end in one of \.parquet, \.pq, \.csv"):
        read_logframe(tmp_path / "log.h5")
    with pytest.raises(SettingError, match=r"written as \.parquet or \.pq or \.csv, got 'log.pkl'"):
        write_logframe(run.logframe(), tmp_path / "log.pkl")
    with pytest.raises(SettingError, match="cannot be written: there is no folder"):
        write_logframe(run.logframe(), tmp_path / "missing" / "log.csv")


def test_without_pyarrow_parquet_is_refused_and_csv_is_not(run: Run, tmp_path: Path) -> None:
    write_logframe(run.logframe(), tmp_path / "log.csv")
    script = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from rankscope.logframe import read_logframe\n"
        f"frame = read_logframe({str(tmp_path / 'log.csv')!r})\n"
        "from rankscope.logframe import write_logframe\n"
        f"write_logframe(frame, {str(tmp_path / 'log.parquet')!r})\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.returncode == 1
    assert "Parquet needs pyarrow, which is not installed: pip install" in done.stderr
