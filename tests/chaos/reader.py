"""A reader as a process: it looks at every snapshot that it meets, until it is told to stop.

    reader.py RUN REPORT

SIGTERM ends it once it has looked at the snapshot in hand: a process that leaves a read half done
takes the interpreter from under Icechunk's threads, which then panic or wait for it for ever. The
report is one line of JSON: how many snapshots it saw, and the first thing that was wrong in one. In
each snapshot the columns of a record, which lie in several arrays, must belong together: a record
of which half was there would not add up.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from threading import Event

import numpy as np
from sender import ELEMENTS, SITES

from rankscope.sketch import StoreError
from rankscope.store import Run, open_run

LATEST = 64
"""Records at the end of a snapshot that are looked at: these are the ones being written."""


def wrong_with(run: Run, before: int) -> str:
    """What in the newest records does not belong together; empty if all does."""
    records = run.records(all_attempts=True)
    if len(records) < before:
        return f"{len(records)} records, where {before} had been there"
    one_each = run.records()
    if not len(one_each):
        return ""
    latest = one_each.iloc[-LATEST:]
    steps = (int(latest.step.iloc[0]), int(latest.step.iloc[-1]))
    counts = run.scalar("count", sites="activation:fc", steps=steps).values[:, 0]
    bins = run.exponents(sites="activation:fc", steps=steps)
    binned = bins["count"].sum("exponent").values[:, 0] + bins["nan"].values[:, 0]
    told = np.isfinite(run.training(steps=steps).sel(name="loss").values).sum(axis=1)
    held = latest.ranks.to_numpy() * ELEMENTS
    whole = (counts == held) & (binned == held) & (told * ELEMENTS == held)
    if whole.all():
        return ""
    place = int(np.flatnonzero(~whole)[0])
    return (
        f"step {latest.step.iloc[place]} holds {latest.ranks.iloc[place]} ranks, "
        f"{counts[place]:.0f} elements, {binned[place]} in the histogram, {told[place]} losses"
    )


def follow(path: Path, report: dict[str, object], told_to_stop: Event) -> None:
    """Look at one snapshot after the other."""
    run, before = None, 0
    while not told_to_stop.is_set():
        try:
            if run is None:
                run = open_run(path)
            elif not run.refresh():
                time.sleep(0.01)
                continue
            wrong = wrong_with(run, before) if run.sites().index.size == len(SITES) else ""
        except StoreError as error:  # it is not there yet, or was held up for minutes
            if run is None:
                time.sleep(0.02)
                continue
            wrong = f"it cannot be read: {error}"
        if wrong:
            report["wrong"] = wrong
            return
        before = len(run.records(all_attempts=True))
        report["snapshots"] = int(str(report["snapshots"])) + 1


if __name__ == "__main__":
    told = Event()
    signal.signal(signal.SIGTERM, lambda number, frame: told.set())
    found: dict[str, object] = {"snapshots": 0, "wrong": ""}
    try:
        follow(Path(sys.argv[1]), found, told)
    except BaseException as error:
        found["wrong"] = repr(error)
    Path(sys.argv[2]).write_text(json.dumps(found))
