"""Makes a run of a LogFrame, and judges it as if it had come live."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..rules.book import RuleBook, rule_book
from ..rules.watch import Watch
from ..sketch.errors import LogFrameError, StoreError
from ..store.implied import spread_of_one
from ..store.logframe import (
    COUNTED,
    KINDS,
    MORE_SCALARS,
    OPTIMIZER_STATE,
    ORIGIN,
    SCALARS,
    modules_in,
    parameter_named,
    parted,
)
from ..store.naming import holds_repository
from ..store.place import Place, place_of
from ..store.record import Event, RankInfo, Record, SiteInfo
from ..store.state import IMPORTED
from ..store.writer import RunWriter
from ..wire.messages import Kind
from .schema import validate
from .sketches import Sketches, sketches

OUR_KINDS: tuple[str, ...] = get_args(Kind)
"""Those that tandv has no name for are called so in a LogFrame of rankscope."""
CLASS = re.compile(r"^<class '(?:.*\.)?([^'.]+)'>$")
AT_ONCE = 64
"""Records that are committed at a time."""

Key = tuple[str, str, str, int]
"""Kind, name, slot and occurrence of a site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of a LogFrame."""

    run: str
    records: int
    sites: int
    alerts: int
    """How many the rules told of it."""
    not_observed: Sequence[str]
    """Sentences about what the run does not hold, and why; they are events of it, too."""


def import_logframe(
    frame: pd.DataFrame,
    path: str | Place,
    *,
    run: str,
    time_ns: int = 0,
    book: RuleBook | None = None,
) -> Imported:
    """Make a run of a LogFrame: one attempt, one rank, a record a step.

    What the LogFrame does not hold is not observed in the run; docs/logframe.md has a list.

    Args:
        frame: of any source; it is validated.
        path: where the run is to lie, a folder or a URL, at which there is nothing yet.
        run: its name.
        time_ns: when the steps were recorded, nanoseconds since 1970: a LogFrame does not say.
        book: the rules by which it is judged; by default those that are built in.

    Raises:
        LogFrameError: it breaks the schema; the message names the column, row and value.
        StoreError: there is something at `path`, or it cannot be written.
    """
    frame = validate(frame)
    place = place_of(path)
    if not len(frame):
        raise LogFrameError("The LogFrame has no rows: there is nothing to import.")
    sites, index = sites_of(frame)
    found = sketches(frame)
    if holds_repository(place):
        raise StoreError(f"There is a run at {place} already; choose another name for this one.")
    told = list(not_observed(frame, found))
    with RunWriter.open(path, run=run) as writer:
        attempt = writer.catalog.attempt_of(IMPORTED)
        writer.catalog.set_attempt(attempt, 1, {}, [RankInfo(rank=0)])
        writer.catalog.set_left(attempt, [0])  # a start of a job after it does not miss it
        writer.catalog.add_sites(sites)
        watch = Watch(attempt, sites.__getitem__, rule_book() if book is None else book)
        events = [
            Event(kind="imported", attempt=attempt, rank=0, step=0, text=text, time_ns=time_ns)
            for text in told
        ]
        records = 0
        for some in _batches(_records(frame, found, index, time_ns)):
            before = Counter(watch.judged)
            alerts = [one for record in some for one in watch.judge(record, {}, world_size=1)]
            judged = watch.judged - before
            writer.commit(some, streams={}, alerts=alerts, judged=judged, events=events)
            writer.compact_if_due()
            records, events = records + len(some), []
        writer.finish()
    return Imported(
        run=run, records=records, sites=len(sites), alerts=watch.told, not_observed=told
    )


def sites_of(frame: pd.DataFrame) -> tuple[list[SiteInfo], NDArray[np.intp]]:
    """The sites in the order of their first rows, and of each row its site.

    Of several rows of one tensor in one step each is another call of the module.

    Raises:
        LogFrameError: a tensor type is not known; or rankscope wrote it, and a tensor comes twice.
    """
    about = frame["metadata"]
    is_ours = "mixed" not in frame.attrs[ORIGIN]
    names = [parted(name) if is_ours else (name, "", 0) for name in about["name"]]
    types = about["tensor_type"].tolist()
    modules = modules_in((name for name, *_ in names), types)
    calls = Counter[tuple[int, Key]]()
    index, infos = dict[Key, int](), list[SiteInfo]()
    of_rows = np.empty(len(names), np.intp)
    for row, (step, module, dtype) in enumerate(
        zip(about["step"].tolist(), about["type"], about["dtype"], strict=True)
    ):
        name, slot, call = names[row]
        kind, key = kind_of(types[row], row)
        name = parameter_named(name, kind, modules)
        first = kind, name, key or slot, call
        again, calls[step, first] = calls[step, first], calls[step, first] + 1
        if again and is_ours:
            raise LogFrameError(
                f"Column metadata.name names a tensor twice in step {step}, row {row}: "
                f"{frame['metadata', 'name'].iloc[row]!r}."
            )
        site = kind, name, key or slot, call + again
        if site not in index:
            index[site] = len(infos)
            infos.append(
                SiteInfo(
                    kind=kind,
                    name=name,
                    slot=key or slot,
                    occurrence=call + again,
                    dtype=dtype.rpartition(".")[2],
                    module=CLASS.sub(r"\1", module),
                    order=len(infos),
                )
            )
        of_rows[row] = index[site]
    return infos, of_rows


def kind_of(tensor_type: str, row: int) -> tuple[str, str]:
    """The kind of a row, and of an optimizer's state its key.

    Raises:
        LogFrameError: there is no such tensor type.
    """
    base, _, key = tensor_type.partition(".")
    if base == OPTIMIZER_STATE:
        return "optimizer_state", key
    kind = KINDS.get(tensor_type, tensor_type)
    if kind not in OUR_KINDS:
        known = ", ".join((*KINDS, f"{OPTIMIZER_STATE}.<key>", *OUR_KINDS))
        raise LogFrameError(
            f"Column metadata.tensor_type must hold one of {known}, row {row}: {tensor_type!r}."
        )
    return kind, ""


def _records(
    frame: pd.DataFrame, found: Sketches, index: NDArray[np.intp], time_ns: int
) -> Iterator[Record]:
    steps = frame["metadata", "step"].to_numpy(np.int64)
    order = np.lexsort((index, steps))
    every, starts = np.unique(steps[order], return_index=True)
    for number, (step, rows) in enumerate(
        zip(every.tolist(), np.split(order, starts[1:]), strict=True)
    ):
        told = found.told[rows]
        [spread] = spread_of_one(told[None], np.zeros(1, np.int64))
        yield Record(
            index=number,
            step=step,
            attempt=0,
            time_ns=time_ns,
            ranks=(0,),
            complete=True,
            partial=False,
            final=False,
            sites=index[rows],
            merged=found.table.take(rows),
            spread=spread,
            by_rank={0: told},
            training={},
            health={},
            told=told,
        )


def _batches(records: Iterator[Record]) -> Iterator[list[Record]]:
    some: list[Record] = []
    for record in records:
        some.append(record)
        if len(some) == AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def not_observed(frame: pd.DataFrame, found: Sketches) -> Iterator[str]:
    """Sentences about what a run of this LogFrame does not hold."""
    yield (
        "This run was imported from a LogFrame: signs, moments and checksums of tensors, their "
        "shapes, ranks, times and training statistics were not observed; statistics are as the "
        "log had them."
    )
    rows = len(frame)
    if count := int(found.is_open.sum()):
        yield (
            f"In {count} of {rows} rows it is not known how many elements are zero, NaN or "
            "infinite: they were counted in one column with 0.5 <= |x| < 1. `unseen` counts them."
        )
    if count := int(found.is_low.sum()):
        yield (
            f"In {count} of {rows} rows counts are so large that tandv may have stopped counting: "
            "it counts in the tensor's own dtype."
        )
    if left := _left_out(frame):
        yield f"Statistics that have no place in a run were left out: {', '.join(left)}."


def _left_out(frame: pd.DataFrame) -> list[str]:
    names: Mapping[str, object] = SCALARS
    if "mixed" not in frame.attrs[ORIGIN]:
        names = SCALARS | dict.fromkeys((*MORE_SCALARS, *COUNTED), "")
    return [str(name) for name in frame["scalar_stats"] if name not in names]
