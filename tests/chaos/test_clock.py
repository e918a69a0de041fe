"""A wall clock that is set while all goes on: it may delay what is stored, and nothing else."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankscope.__main__ import cli

from .ledger import check
from .processes import Processes, scaled, wait_until

RANKS = 4
SetClock = Callable[[int], None]


@pytest.fixture
def clock(tmp_path: Path) -> tuple[SetClock, Mapping[str, str]]:
    """Sets the wall clock of the processes that are started with this environment, in seconds."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library, offset = tmp_path / "clock.so", tmp_path / "offset"
    source = Path(__file__).with_name("clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    offset.write_bytes(struct.pack("q", 0))

    def set_clock(seconds: int) -> None:
        with offset.open("r+b") as file:  # in place: it is mapped
            file.write(struct.pack("q", seconds))

    return set_clock, {"LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(offset)}


def test_a_clock_that_is_set_back_and_forth_loses_nothing(
    processes: Processes, clock: tuple[SetClock, Mapping[str, str]]
) -> None:
    set_clock, environment = clock
    processes.collector("--until-done", environment=environment)
    reader = processes.reader()
    times = scaled(1, 6)
    senders = processes.senders(RANKS, steps=300 * times, pause_s=0.04, environment=environment)
    wait_until(lambda: all(one.acknowledged for one in processes.ledgers(RANKS)))
    for _ in range(times):
        # Forward by less than the ten minutes that a store's own clock may differ by.
        for seconds in (300, 302, 299, 0, -5):
            set_clock(seconds)
            time.sleep(1.0)
        wait_until(lambda: "This machine's clock went back" in processes.log.read_text())
        set_clock(400)  # then it passes
        time.sleep(4.0)
    processes.await_all(senders, 120)
    processes.stop_collector()

    assert reader.ends_well() > 0
    ledgers = processes.ledgers(RANKS)
    run = check(processes.store / "demo", ledgers)
    assert [own.dropped for own in ledgers] == [0] * RANKS
    assert run.records().complete.all()
    assert set(run.events()["kind"]) == set(), "nobody was taken for lost, and nothing came late"


def test_the_doctor_sees_a_collector_whose_clock_is_wrong(
    processes: Processes, clock: tuple[SetClock, Mapping[str, str]]
) -> None:
    set_clock, environment = clock
    set_clock(60)
    processes.collector(environment=environment)
    result = CliRunner().invoke(cli, ["doctor", "--to", processes.address])

    assert result.exit_code == 1
    assert "bad   The collector's clock is 60.0 s ahead of this machine's" in result.output
