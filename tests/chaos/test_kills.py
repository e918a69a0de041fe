"""kill -9, of collectors and of agents, at any moment: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import time

from rankscope.agent.window import FORSAKEN, OVERFLOW
from rankscope.sketch import StoreError
from rankscope.store import open_run

from .ledger import check
from .processes import SLOWLY_S, Processes, scaled, sleep_between, wait_until
from .sender import ELEMENTS

RANKS = 8


def test_a_collector_killed_again_and_again_loses_nothing_and_doubles_nothing(
    processes: Processes,
) -> None:
    kills = scaled(6, 50)
    collector = processes.collector()
    reader = processes.reader()
    senders = processes.senders(RANKS, steps=20 * kills, pause_s=SLOWLY_S)
    for _ in range(kills):
        sleep_between(processes, 0.2, 2.0)
        processes.kill(collector)
        collector = processes.collector("--until-done")
    processes.await_all([*senders, collector], 120)

    assert reader.ends_well() > kills
    ledgers = processes.ledgers(RANKS)
    run = check(processes.store / "demo", ledgers)
    assert [own.dropped for own in ledgers] == [0] * RANKS
    assert run.records().complete.all()


def test_what_a_small_window_loses_is_counted_told_and_nowhere_zero(processes: Processes) -> None:
    kills = scaled(2, 20)
    collector = processes.collector()
    small = {"WINDOW_FRAMES": "8"}
    senders = processes.senders(4, steps=150 * kills, pause_s=0.02, environment=small)
    for _ in range(kills):
        sleep_between(processes, 1.0, 2.0)
        processes.kill(collector)
        time.sleep(0.5)
        collector = processes.collector("--until-done", "--deadline", "3")
    processes.await_all([*senders, collector], 120)

    ledgers = processes.ledgers(4)
    run = check(processes.store / "demo", ledgers)
    assert sum(own.dropped for own in ledgers) > 0
    assert set(run.gaps()["cause"]) <= {OVERFLOW, FORSAKEN}
    records = run.records()
    lacking = records[~records.complete]
    assert (lacking.ranks > 0).all()
    counts = run.scalar("count", sites="activation:fc").values[:, 0]
    assert counts.tolist() == (records.ranks * ELEMENTS).tolist(), "of those that are there"


def test_agents_killed_at_any_moment_take_nothing_with_them_but_their_last_frames(
    processes: Processes,
) -> None:
    rounds = scaled(2, 12)
    processes.collector("--lost-after", "2", "--deadline", "2")
    reader = processes.reader()
    for attempt in range(rounds):
        launch = f"launch-{attempt}"
        senders = processes.senders(4, steps=200, pause_s=0.03, launch=launch)
        # Of a rank that was killed before it was heard nothing is known that could be lost.
        wait_until(
            lambda launch=launch: all(one.acknowledged for one in processes.ledgers(4, launch))
        )
        for victim in (senders[1], senders[3]):
            sleep_between(processes, 0.1, 0.8)
            processes.kill(victim)
        processes.await_all([senders[0], senders[2]], 60)
    processes.stop_collector()

    assert reader.ends_well() > rounds
    for attempt in range(rounds):
        ledgers = processes.ledgers(4, f"launch-{attempt}")
        run = check(processes.store / "demo", ledgers, attempt=attempt)
        assert [own.durable for own in ledgers] == [True, None, True, None]
        lost = run.events().query(f"kind == 'rank-lost' and attempt == {attempt}")
        assert sorted(lost["rank"]) == [1, 3]


def test_a_goodbye_that_was_answered_outlives_the_collector(processes: Processes) -> None:
    collector = processes.collector()
    stays, leaves = (
        processes.sender(rank, 2, steps=steps, pause_s=0.1)
        for rank, steps in enumerate((scaled(100, 300), 5))
    )
    processes.await_all([leaves], 60)
    processes.kill(collector)
    # Were the rank awaited its records would be stored after the agent has given up.
    collector = processes.collector("--until-done", "--deadline", "60", "--lost-after", "60")
    processes.await_all([stays, collector], 40)

    ledgers = processes.ledgers(2)
    run = check(processes.store / "demo", ledgers)
    assert [one.durable for one in ledgers] == [True, True]
    assert run.attempts["left"].tolist() == [(0, 1)]
    assert run.finished
    assert not len(run.events())


def complete_records(processes: Processes) -> int:
    """How many are stored that hold all ranks."""
    try:
        return int(open_run(processes.store / "demo").records().complete.sum())
    except StoreError:  # it is not there yet
        return 0


def test_a_collector_that_is_stopped_and_started_again_cuts_no_record_in_two(
    processes: Processes,
) -> None:
    stops = scaled(2, 20)
    total = 40 * stops
    processes.collector()
    senders = processes.senders(RANKS, steps=total, pause_s=SLOWLY_S)
    complete = 0
    for _ in range(stops):
        # All ranks have found it: of one that has not nobody can know whether it will come.
        wait_until(lambda least=complete: complete_records(processes) > min(least, total - 1))
        sleep_between(processes, 0.0, 0.5)
        processes.stop_collector()
        complete = complete_records(processes)
        processes.collector("--until-done")
    processes.await_all(senders, 120)
    processes.stop_collector()

    run = check(processes.store / "demo", processes.ledgers(RANKS))
    records = run.records(all_attempts=True)
    assert records.step.tolist() == list(range(total))
    assert records.complete.all()
    assert not len(run.events())
