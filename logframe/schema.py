"""The schema of a LogFrame: which columns there must be, and what may be in them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..sketch.errors import LogFrameError, SettingError
from ..store.logframe import COUNTED, METADATA, ORIGIN, sealed

Exponents = Literal["auto", "tandv", "documented"]
"""What column n of the exponents holds: `tandv` 2^(n-1) <= |x| < 2^n, and in column 0 zeros, NaN
and infinities as well, as Track & Visualize stores it; `documented` 2^n <= |x| < 2^(n+1), as it
says of itself, and as rankscope writes it; `auto` is the latter where the frame says so."""

Label = tuple[str, Any]

GROUPS = ("metadata", "scalar_stats", "exponent_counts")
WORDS = ("", "nan", "none", "null", "<na>")
"""What files write for a number that is not there."""
FARTHEST = 1100
"""No floating-point number has an exponent beyond."""
MIXED = -1
"""The exponent, as documented, of the column in which tandv counts zeros, NaN and infinities."""
OUR_COUNTS: frozenset[Label] = frozenset(("scalar_stats", name) for name in COUNTED[:4])
"""Columns by which a frame from rankscope is known where its attributes are lost."""


def validate(frame: pd.DataFrame, *, exponents: Exponents = "auto") -> pd.DataFrame:
    """The LogFrame with labels, types and attributes as its schema has them, as a new frame.

    Column n of its exponents holds 2^n <= |x| < 2^(n+1) afterwards, whatever it held before;
    `attrs["rankscope"]["mixed"]` names the one that also holds zeros, NaN and infinities, if any.

    Args:
        frame: of any source.
        exponents: what its columns of exponents hold.

    Raises:
        LogFrameError: a column is missing, unknown, or holds what it must not; the message names
            it, and the row, counted from 0, and the value where there is one.
        SettingError: there are no such `exponents`.
    """
    if exponents not in ("auto", "tandv", "documented"):
        raise SettingError(
            f"`exponents` must be 'auto', 'tandv' or 'documented', got {exponents!r}."
        )
    if frame.columns.nlevels != 2:
        raise LogFrameError(
            "A LogFrame has two levels of column labels, as (metadata, name); "
            f"got {frame.columns.nlevels}."
        )
    origin = _origin(frame)
    labels = [_label(*label) for label in frame.columns]
    _check_labels(labels)
    columns = {label: _values(frame.iloc[:, at], label) for at, label in enumerate(labels)}
    ordered = [("metadata", name) for name in METADATA]
    ordered += [label for label in labels if label[0] == "scalar_stats"]
    ordered += sorted((one for one in labels if one[0] == "exponent_counts"), key=lambda x: x[1])
    if exponents == "auto":
        exponents = "documented" if origin or {*labels} >= OUR_COUNTS else "tandv"
    shift = int(exponents == "tandv")
    if shift and ("exponent_counts", 0) not in labels:
        raise LogFrameError(
            "Column exponent_counts.0 is missing: without it tandv counts zeros, NaN and "
            "infinities beyond its columns, and nothing can be told apart."
        )
    named = [_shifted(label, shift) for label in ordered]
    checked = pd.DataFrame(dict(enumerate(columns[label] for label in ordered)))
    checked.columns = pd.MultiIndex.from_tuples(named)
    checked.attrs = dict(frame.attrs)
    checked.attrs[ORIGIN] = {"exponents": "floor(log2 |x|)"} | origin
    if shift:
        checked.attrs[ORIGIN]["mixed"] = MIXED
    return sealed(checked)


def _origin(frame: pd.DataFrame) -> dict[str, Any]:
    """What the frame's attributes say of its exponents."""
    told = frame.attrs.get(ORIGIN, {})
    if not isinstance(told, dict) or told.get("mixed", MIXED) != MIXED:
        raise LogFrameError(f"The attribute {ORIGIN!r} says nothing that is known: {told!r}.")
    return told


def _label(group: Any, name: Any) -> Label:
    """A column's label; of an exponent, which files make text of, its number."""
    if group not in GROUPS:
        raise LogFrameError(f"Column {group}.{name} is in none of the groups {', '.join(GROUPS)}.")
    if group == "metadata" and name not in METADATA:
        raise LogFrameError(f"Column {group}.{name} is not one of {', '.join(METADATA)}.")
    if group != "exponent_counts":
        return group, str(name)
    try:
        exponent = float(name)
    except (TypeError, ValueError):
        exponent = np.nan
    if np.isinf(exponent):
        return group, exponent
    if exponent != np.rint(exponent) or abs(exponent) > FARTHEST:
        raise LogFrameError(
            f"Column {group}.{name} must be called by a whole number of at most {FARTHEST}, "
            "-inf or inf."
        )
    return group, int(exponent)


def _shifted(label: Label, shift: int) -> Label:
    group, name = label
    return (group, name - shift) if group == "exponent_counts" and np.isfinite(name) else label


def _check_labels(labels: Sequence[Label]) -> None:
    """Refuse columns that come twice or are missing."""
    seen = set[Label]()
    for group, name in labels:
        if (group, name) in seen:
            raise LogFrameError(f"Column {group}.{name} is there twice.")
        seen.add((group, name))
    needed: list[Label] = [("metadata", name) for name in METADATA]
    needed += [("exponent_counts", -np.inf), ("exponent_counts", np.inf)]
    missing = [f"{group}.{name}" for group, name in needed if (group, name) not in seen]
    if missing:
        raise LogFrameError(f"Column {missing[0]} is missing{_and_more(missing)}.")
    if not any(group == "scalar_stats" for group, _ in labels):
        raise LogFrameError("There is no column in scalar_stats; there must be one at least.")
    whole = sorted(name for group, name in labels if group == "exponent_counts")[1:-1]
    if not whole:
        raise LogFrameError("There is no column of a whole exponent in exponent_counts.")
    for before, after in pairwise(whole):
        if after != before + 1:
            raise LogFrameError(
                f"Column exponent_counts.{before + 1} is missing between {before} and {after}."
            )


def _and_more(missing: Sequence[str]) -> str:
    return f", and {', '.join(missing[1:])}" if len(missing) > 1 else ""


def _values(column: pd.Series, label: Label) -> Any:
    match label:
        case "metadata", "step":
            return whole_numbers(column, label)
        case "metadata", name:
            return texts(column, label, may_lack=name == "type")
        case "scalar_stats", name:
            return _counts_if(column, label) if name in COUNTED else numbers(column, label)
        case _:
            return whole_numbers(column, label, least=0)


def _counts_if(column: pd.Series, label: Label) -> Any:
    """A count that may not be known: whole numbers where all are."""
    found = numbers(column, label)
    with np.errstate(invalid="ignore"):
        is_whole = bool((found == np.rint(found)).all()) and bool((found >= 0).all())
    return whole_numbers(column, label, least=0) if is_whole else found


def texts(column: pd.Series, label: Label, *, may_lack: bool) -> pd.Series:
    """A column of text; what is missing is empty, where it may be."""
    values = column.to_numpy(object)
    missing = np.array([value is None or value != value for value in values], np.bool_)
    if may_lack:
        values = np.where(missing, "", values)
    wrong = np.array([not isinstance(value, str) for value in values], np.bool_)
    _refuse(wrong, label, column, "text")
    return pd.Series(list(values), dtype="str")


def whole_numbers(column: pd.Series, label: Label, least: int | None = None) -> NDArray[np.int64]:
    """int64: a column of whole numbers that are not below `least`."""
    parsed = np.asarray(pd.to_numeric(column, errors="coerce"))
    if parsed.dtype.kind in "iu":
        wrong = parsed > np.iinfo(np.int64).max
    else:
        parsed = parsed.astype(np.float64)
        with np.errstate(invalid="ignore"):
            wrong = ~(parsed == np.rint(parsed)) | ~(np.abs(parsed) < 2.0**63)
    if column.dtype.kind not in "iuf":
        wrong |= [isinstance(value, bool | np.bool_) for value in column]
    if least is not None:
        wrong |= parsed < least
    expected = "a whole number" + ("" if least is None else f" from {least} on")
    _refuse(wrong, label, column, expected)
    return parsed.astype(np.int64)


def numbers(column: pd.Series, label: Label) -> NDArray[np.float64]:
    """float64: a column of numbers; what is missing is NaN."""
    parsed = np.asarray(pd.to_numeric(column, errors="coerce"), np.float64)
    if column.dtype.kind not in "iuf":
        values = column.to_numpy(object)
        lost = np.flatnonzero(np.isnan(parsed))
        wrong = np.zeros(len(values), np.bool_)
        wrong[lost] = [not _is_missing(value) for value in values[lost]]
        _refuse(wrong, label, column, "a number")
    return parsed


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in WORDS
    return value is None or value is pd.NA or bool(value != value)


def _refuse(wrong: NDArray[np.bool_], label: Label, column: pd.Series, expected: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        value = repr(column.to_numpy(object)[row])
        short = value if len(value) <= 80 else value[:77] + "..."
        raise LogFrameError(
            f"Column {label[0]}.{label[1]} must hold {expected}, row {row}: {short}."
        )
