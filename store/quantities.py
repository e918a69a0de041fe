"""Derived quantities of modules and parameters: what there is, and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd

from ..sketch.derive import MAIN
from ..sketch.errors import SettingError
from ..sketch.labels import site_label
from ..sketch.quantities import COMBINED, SKETCHED
from .combined import combined_frame, combined_of
from .pack import was_told
from .reader import Reader
from .record import QuantityInfo
from .selection import Chosen, compiled, near_names

COLUMNS = ["step", "attempt", "of", "part", "index", "value"]


def quantities_frame(reader: Reader, of: str | None) -> pd.DataFrame:
    """One row a quantity and module or parameter, see `Run.quantities`."""
    rows = [
        *((one.name, one.of, one.part, one.width) for one in _matching(reader, None, of)),
        *(
            (name, label, "", 1)
            for name, (kind, _) in SKETCHED.items()
            for label, _ in _sites(reader, kind, of)
        ),
        *(
            (name, label, "", 1)
            for name in COMBINED
            for label in combined_of(reader, name, compiled(of))
        ),
    ]
    return pd.DataFrame(rows, columns=["quantity", "of", "part", "numbers"])


def quantity_frame(
    reader: Reader, name: str, of: str | None, chosen: Chosen, attempt: int | None
) -> pd.DataFrame:
    """One row a number, see `Run.quantity`.

    Args:
        attempt: the only one whose records are chosen; None for all.

    Raises:
        SettingError: the run has no such quantity, or not of that.
    """
    if name in SKETCHED:
        return _of_sketches(reader, name, of, chosen)
    if name in COMBINED and all(one.name != name for one in reader.meta.quantities):
        return _ordered([combined_frame(reader, name, compiled(of), chosen, attempt)])
    infos = _matching(reader, name, of)
    if not infos:
        raise SettingError(_unknown(reader, name, of))
    blocks = reader.read_all([("quantities", chosen.records, (info.numbers,)) for info in infos])
    frames = [_long(info, block, chosen) for info, block in zip(infos, blocks, strict=True)]
    return _ordered(frames)


def _long(info: QuantityInfo, block: np.ndarray, chosen: Chosen) -> pd.DataFrame:
    """Of the steps in which it was there; NaN in it was told."""
    seen = np.flatnonzero(was_told(block[:, 0])) if len(block) else np.zeros(0, np.int64)
    columns: dict[str, Any] = {
        "step": np.repeat(chosen.steps[seen], info.width),
        "attempt": np.repeat(chosen.attempts[seen], info.width),
        "of": info.of,
        "part": info.part,
        "index": np.tile(np.arange(info.width), len(seen)),
        "value": block[seen].ravel(),
    }
    return pd.DataFrame(columns)


def _of_sketches(reader: Reader, name: str, of: str | None, chosen: Chosen) -> pd.DataFrame:
    kind, statistic = SKETCHED[name]
    found = _sites(reader, kind, of)
    if not found:
        names = {one.name for one in reader.meta.sites if one.kind == kind}
        near = f"; {near_names(of, names)}" if names else ""
        raise SettingError(
            f"The run has no {kind} of {repr(of) if of else 'any module'}, of which {name} is the "
            f"{statistic}{near}."
        )
    places = np.array([place for _, place in found])
    values = reader.read("scalars", chosen.records, places, MAIN.index(statistic))
    frames = list[pd.DataFrame]()
    for column, (label, _) in zip(values.T.astype(np.float64), found, strict=True):
        info = QuantityInfo(name=name, of=label, width=1, start=0)
        there = ~np.isnan(column)
        some = Chosen(chosen.records[there], chosen.steps[there], chosen.attempts[there])
        frames.append(_long(info, np.where(there, column, 0.0)[there, None], some))
    return _ordered(frames)


def _ordered(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    frame = pd.concat([one for one in frames if len(one)] or [frames[0]], ignore_index=True)
    order = np.lexsort([frame[name] for name in ("index", "part", "of", "step")])
    return pd.DataFrame({name: frame[name].to_numpy()[order] for name in COLUMNS})


def _matching(reader: Reader, name: str | None, of: str | None) -> list[QuantityInfo]:
    pattern = compiled(of)
    return [
        one
        for one in reader.meta.quantities
        if name in (None, one.name) and (pattern is None or pattern.search(one.of))
    ]


def _sites(reader: Reader, kind: str, of: str | None) -> list[tuple[str, int]]:
    """Name, without its kind, and place of the sites of a kind."""
    pattern = compiled(of)
    return [
        (site_label(kind, one.name, one.slot, one.occurrence).removeprefix(f"{kind}:"), place)
        for place, one in enumerate(reader.meta.sites)
        if one.kind == kind and (pattern is None or pattern.search(one.name))
    ]


def _unknown(reader: Reader, name: str, of: str | None) -> str:
    known = sorted({one.name for one in reader.meta.quantities})
    if name in known:
        there = sorted({one.of for one in reader.meta.quantities if one.name == name})
        return f"No {name} was derived of {of!r}; it is there of {', '.join(there[:8])}."
    kinds = {one.kind for one in reader.meta.sites}
    known += [of_sketches for of_sketches, (kind, _) in SKETCHED.items() if kind in kinds]
    known += [combined for combined in COMBINED if combined_of(reader, combined)]
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(known) or 'none'}."
    return (
        f"The run has no quantity {name!r}; {hint} Others are derived on request, as by "
        "observe(…, quantities={'Linear': ['rank_me']}): docs/quantities.md."
    )
