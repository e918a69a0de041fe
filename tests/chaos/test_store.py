"""A disk that is full, two collectors on one store, a reader that holds an old snapshot."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.sketch import NotARunError
from rankscope.store import Run, open_run

from .ledger import check
from .processes import SLOWLY_S, Processes, scaled, sleep_between, wait_until

RANKS = 4


@pytest.fixture
def small_disk(processes: Processes) -> Iterator[Path]:
    """The store on a file system of 16 MiB of its own; a full one says ENOSPC, as a disk does."""
    processes.store.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(processes.store)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount a tmpfs: {done.stderr.strip()}")
    yield processes.store
    processes.close()
    subprocess.run(["umount", "--lazy", str(processes.store)], check=True)


def fill(disk: Path) -> Path:
    """Take all that is free, to the last byte."""
    ballast = disk / ".ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            while True:
                try:
                    file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break
    return ballast


def test_a_full_disk_is_waited_for_and_nothing_is_lost(
    processes: Processes, small_disk: Path
) -> None:
    times = scaled(3, 15)
    collector = processes.collector("--until-done")
    reader = processes.reader()
    senders = processes.senders(RANKS, steps=20 * times, pause_s=SLOWLY_S)
    wait_until(lambda: (small_disk / "demo").is_dir())
    for number in range(times):
        sleep_between(processes, 0.3, 1.2)
        ballast = fill(small_disk)
        wait_until(lambda: "cannot be stored" in processes.log.read_text())
        sleep_between(processes, 1.0, 2.0)
        if number % 2:  # and while it is full the collector dies, and cannot even begin
            processes.kill(collector)
            ballast.unlink()
            collector = processes.collector("--until-done")
        else:
            sleep_between(processes, 0.2, 2.0)
            ballast.unlink()
    processes.await_all([*senders, collector], 120)

    assert "No space left on device" in processes.log.read_text()
    assert reader.ends_well() > 0
    ledgers = processes.ledgers(RANKS)
    run = check(processes.store / "demo", ledgers)
    assert [own.dropped for own in ledgers] == [0] * RANKS
    assert run.records().complete.all()


def test_a_second_collector_of_a_run_is_refused_and_takes_over_when_the_first_is_gone(
    processes: Processes,
) -> None:
    first = processes.collector()
    senders = processes.senders(2, steps=75, pause_s=SLOWLY_S)  # while two more processes start
    wait_until(lambda: (processes.store / "demo").is_dir())
    command = [*processes.COLLECT, "--bind", "tcp://127.0.0.1:*", "--store", str(processes.store)]
    refused = subprocess.run(
        [*command, "--run", "demo"], capture_output=True, text=True, timeout=60, check=False
    )

    assert refused.returncode == 1
    assert f"is being written by process {first.pid}; stop that one" in refused.stderr
    where, processes.address = processes.address, ""
    # Of any run: it listens, but not to this one. Of the late job most ranks never come.
    second = processes.collector("--until-done", "--lost-after", "10")
    late = processes.sender(2, 3, 5, 0.0, launch="late")
    wait_until(lambda: f"is being written by process {first.pid}" in processes.log.read_text())
    assert where != processes.address
    processes.await_all(senders, 60)
    processes.kill(first)
    processes.await_all([late, second], 60)
    check(processes.store / "demo", processes.ledgers(2))
    assert processes.ledgers(3, "late")[2:][0].durable


def answers(run: Run) -> list[bytes]:
    """What a reader is told of all that there is."""
    return [
        run.scalar("count").values.tobytes(),
        run.exponents()["count"].values.tobytes(),
        run.training().values.tobytes(),
        run.records().to_csv().encode(),
    ]


def is_begun(path: Path) -> bool:
    """Whether a run is there, and has sites: until then it is said that there is none."""
    try:
        return len(open_run(path).sites()) > 0
    except NotARunError:
        return False


def test_a_reader_that_holds_an_old_snapshot_goes_on_with_it(processes: Processes) -> None:
    collector = processes.collector("--until-done")
    senders = processes.senders(RANKS, steps=scaled(600, 6000), pause_s=0.01)
    path = processes.store / "demo"
    wait_until(lambda: is_begun(path))
    held = open_run(path)
    wait_until(lambda: held.refresh() or len(held.records()) > 20)
    before = answers(held)
    processes.await_all([*senders, collector], 600)

    assert answers(held) == before
    assert held.refresh()
    assert len(held.records()) == scaled(600, 6000)
    check(path, processes.ledgers(RANKS))
