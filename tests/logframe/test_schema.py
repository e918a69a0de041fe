"""What a LogFrame must hold, and what is said of one that does not."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankscope.logframe import validate
from rankscope.sketch import LogFrameError, SettingError
from rankscope.store import Run

STEP, MEAN, COUNT = ("metadata", "step"), ("scalar_stats", "mean"), ("exponent_counts", 3)


def changed(log: pd.DataFrame, column: Any, row: int, value: object) -> pd.DataFrame:
    """The log with another value."""
    frame = log.astype({column: object})
    frame.iat[row, list(frame.columns).index(column)] = value
    return frame


def test_columns_of_exponents_come_to_be_called_by_floor_log2(log: pd.DataFrame) -> None:
    frame = validate(log)

    assert list(frame["exponent_counts"].columns) == [-np.inf, *range(-17, 16), np.inf]
    assert np.array_equal(frame["exponent_counts"].to_numpy(), log["exponent_counts"].to_numpy())
    assert frame.attrs["rankscope"] == {"exponents": "floor(log2 |x|)", "mixed": -1}


def test_what_was_validated_is_not_shifted_again(log: pd.DataFrame) -> None:
    once = validate(log)

    pd.testing.assert_frame_equal(validate(once), once)


def test_a_frame_of_rankscope_is_not_shifted(run: Run) -> None:
    frame = run.logframe()

    pd.testing.assert_frame_equal(validate(frame), frame)
    assert "mixed" not in validate(frame).attrs["rankscope"]


def test_the_plots_of_tandv_take_a_validated_frame(log: pd.DataFrame) -> None:
    # They compare a hash of the columns' types with an attribute.
    frame = validate(log)

    expected = hashlib.sha256(str(frame.dtypes).encode()).hexdigest()
    assert frame.attrs["vis-meta"] == {"hash": expected}


def test_columns_that_files_made_text_are_known_again(log: pd.DataFrame) -> None:
    frame = log.copy()
    frame.columns = pd.MultiIndex.from_tuples([(group, str(name)) for group, name in log.columns])

    pd.testing.assert_frame_equal(validate(frame), validate(log))


def test_a_type_that_is_missing_is_empty(log: pd.DataFrame) -> None:
    assert validate(log)["metadata", "type"].tolist()[3] == ""


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (STEP, 1.5, "Column metadata.step must hold a whole number, row 2: 1.5."),
        (STEP, "x", "Column metadata.step must hold a whole number, row 2: 'x'."),
        (STEP, True, "Column metadata.step must hold a whole number, row 2: True."),
        (STEP, 1 << 70, "Column metadata.step must hold a whole number, row 2: 11805916207"),
        (("metadata", "name"), None, "Column metadata.name must hold text, row 2: None."),
        (("metadata", "type"), 7, "Column metadata.type must hold text, row 2: 7."),
        (("metadata", "dtype"), 1.0, "Column metadata.dtype must hold text, row 2: 1.0."),
        (MEAN, "high", "Column scalar_stats.mean must hold a number, row 2: 'high'."),
        (COUNT, -1, "Column exponent_counts.3 must hold a whole number from 0 on, row 2: -1."),
        (COUNT, 0.5, "Column exponent_counts.3 must hold a whole number from 0 on, row 2: 0.5."),
        (COUNT, None, "Column exponent_counts.3 must hold a whole number from 0 on, row 2: None."),
    ],
)
def test_a_wrong_value_is_told_by_column_and_row(
    log: pd.DataFrame, column: Any, value: object, message: str
) -> None:
    with pytest.raises(LogFrameError) as told:
        validate(changed(log, column, 2, value))

    assert str(told.value).startswith(message)


@pytest.mark.parametrize(
    ("dropped", "message"),
    [
        (("metadata", "step"), "Column metadata.step is missing."),
        (("exponent_counts", np.inf), "Column exponent_counts.inf is missing."),
        (("exponent_counts", 3), "Column exponent_counts.3 is missing between 2 and 4."),
        (("exponent_counts", 0), "Column exponent_counts.0 is missing between -1 and 1."),
    ],
)
def test_a_missing_column_is_named(log: pd.DataFrame, dropped: Any, message: str) -> None:
    with pytest.raises(LogFrameError) as told:
        validate(log.drop(columns=[dropped]))

    assert str(told.value) == message


def test_a_whole_group_may_not_be_missing(log: pd.DataFrame) -> None:
    whole = [("exponent_counts", exponent) for exponent in range(-16, 17)]

    with pytest.raises(LogFrameError, match="no column in scalar_stats"):
        validate(log.drop(columns="scalar_stats", level=0))
    with pytest.raises(LogFrameError, match="no column of a whole exponent"):
        validate(log.drop(columns=whole))
    with pytest.raises(LogFrameError, match=r"exponent_counts\.0 is missing: without it"):
        validate(log.drop(columns=[one for one in whole if one[1] <= 0]))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (("metadata", "shape"), "Column metadata.shape is not one of name, type,"),
        (("losses", "train"), "Column losses.train is in none of the groups metadata,"),
        (("exponent_counts", "many"), "Column exponent_counts.many must be called by a whole"),
        (("exponent_counts", 2.5), "Column exponent_counts.2.5 must be called by a whole"),
        (("exponent_counts", "3"), "Column exponent_counts.3 is there twice."),
    ],
)
def test_a_column_that_is_not_of_the_schema_is_named(
    log: pd.DataFrame, label: Any, message: str
) -> None:
    frame = pd.concat([log, pd.DataFrame({label: [0] * len(log)})], axis=1)

    with pytest.raises(LogFrameError) as told:
        validate(frame)

    assert str(told.value).startswith(message)


def test_a_flat_table_is_refused() -> None:
    with pytest.raises(LogFrameError, match="two levels of column labels"):
        validate(pd.DataFrame({"name": ["a"]}))


def test_an_attribute_that_nobody_wrote_is_refused(log: pd.DataFrame) -> None:
    log.attrs["rankscope"] = {"mixed": "everything"}

    with pytest.raises(LogFrameError, match="'rankscope' says nothing that is known"):
        validate(log)
    with pytest.raises(SettingError, match="must be 'auto', 'tandv' or 'documented'"):
        validate(log, exponents="shifted")  # type: ignore[arg-type]
