"""From the collector to all sinks: records are summed up once, alerts go out at once."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from rankscope.sinks import Alarm, Ended, Feed, News, Numbers, Sinks, Stored
from rankscope.store import SiteInfo

from ..collector.serving import wait_until
from ..store.conftest import SITES, build_record
from .telling import ALERT, Listener, kinds, stored


def test_all_sinks_hear_the_same_in_order() -> None:
    one, two = Listener(), Listener()
    sinks = Sinks([Feed("one", one), Feed("two", two)])
    sinks.pipeline = {"lag_s": 0.5}
    sinks.stored(stored(0))
    sinks.stored(stored(1))
    sinks.ended("demo")
    sinks.close()

    for listener in (one, two):
        assert kinds(listener.heard) == [Numbers, Numbers, Ended]
        assert listener.steps() == [0, 1]
    first = one.heard[0]
    assert isinstance(first, Numbers)
    assert first.values["pipeline/lag_s"] == 0.5
    assert first.values["training/loss"] == 10
    assert set(first.exponents) == {"activation", "weight", "optimizer_state.exp_avg"}


def test_a_table_comes_with_the_first_record_and_the_final_one() -> None:
    sink = Listener()
    sinks = Sinks([Feed("it", sink)])
    for step in range(3):
        sinks.stored(stored(step, final=step == 2))
    sinks.close()

    with_table = [one.table is not None for one in sink.heard if isinstance(one, Numbers)]
    assert with_table == [True, False, True]


def test_an_alert_overtakes_what_is_not_summed_up() -> None:
    sink, heard = Listener(), threading.Event()
    sink.before = lambda news: heard.set() if isinstance(news, Alarm) else None
    sinks = Sinks([Feed("it", sink)])
    sinks.alarm("demo", "one", ALERT)

    assert heard.wait(5)
    sinks.close()


def test_records_that_pile_up_are_let_go_and_counted() -> None:
    go_on, hangs = threading.Event(), threading.Event()

    class Slow(list[SiteInfo]):
        """Sites that are not told before the test says so."""

        def __getitem__(self, place: Any) -> Any:
            hangs.set()
            go_on.wait(30)
            return super().__getitem__(place)

    sink = Listener()
    sinks = Sinks([Feed("it", sink)], most_bytes=2 * build_record(0).size_bytes + 1)
    sinks.stored(Stored(run="demo", launch="one", record=build_record(0), sites=Slow(SITES)))
    assert hangs.wait(10)
    for step in range(1, 10):
        sinks.stored(stored(step))
    sinks.ended("demo")
    go_on.set()
    sinks.close()

    assert sink.steps() == [0, 8, 9]
    assert isinstance(sink.heard[-1], Ended)
    assert sinks.counts()["it"].dropped == 7


def test_a_record_that_cannot_be_summed_up_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    sink = Listener()
    sinks = Sinks([Feed("it", sink)])
    unknown = Stored(run="demo", launch="one", record=build_record(0), sites=SITES[:1])
    with caplog.at_level(logging.WARNING):
        sinks.stored(unknown)
        sinks.stored(stored(1))
        wait_until(lambda: sink.heard)

    assert sink.steps() == [1]
    assert sinks.counts()["it"].dropped == 1
    assert "A record of run 'demo' could not be summed up for sinks." in caplog.text
    sinks.close()


def test_without_sinks_nothing_is_done() -> None:
    sinks = Sinks()
    before = threading.active_count()
    sinks.stored(stored(0))
    sinks.alarm("demo", "one", ALERT)
    sinks.ended("demo")

    assert threading.active_count() == before
    assert sinks.counts() == {}
    sinks.close()


def test_closing_ends_in_time_though_a_sink_hangs() -> None:
    go_on = threading.Event()

    def hang(news: News) -> None:
        go_on.wait(30)

    well = Listener()
    sinks = Sinks([Feed("hangs", Listener(hang)), Feed("well", well)])
    sinks.stored(stored(0))
    sinks.close(timeout_s=0.5)
    go_on.set()

    assert well.closed.wait(5)
    assert well.steps() == [0]
