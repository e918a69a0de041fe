"""A sink that is slow, fails or hangs costs nobody but itself."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from rankscope.sinks import Ended, Feed, News, Rejected

from ..collector.serving import wait_until
from .telling import Listener, alarm, numbers

SOON = (0.001, 0.001)


def close(feed: Feed, timeout_s: float = 5.0) -> bool:
    feed.end()
    return feed.join(time.monotonic() + timeout_s)


def test_news_arrive_in_order_and_the_sink_is_closed() -> None:
    sink = Listener()
    feed = Feed("it", sink)
    for step in range(20):
        feed.put(numbers(step))

    assert close(feed)
    assert sink.steps() == list(range(20))
    assert sink.closed.is_set()
    assert feed.counts().delivered == 20
    assert feed.counts().dropped == 0


def test_what_a_sink_did_not_take_is_tried_again() -> None:
    tries = list[News]()

    def fail_twice(news: News) -> None:
        tries.append(news)
        if len(tries) < 3:
            raise OSError("no")

    sink = Listener(fail_twice)
    feed = Feed("it", sink, pauses_s=SOON)
    feed.put(numbers(7))
    wait_until(lambda: feed.counts().delivered)

    assert sink.steps() == [7]
    assert (feed.counts().retried, feed.counts().dropped) == (2, 0)
    assert close(feed)


def test_what_fails_to_the_end_is_dropped_counted_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(news: News) -> None:
        raise OSError("the disk is full")

    feed = Feed("it", Listener(fail), pauses_s=SOON)
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            feed.put(numbers(step))
        wait_until(lambda: feed.counts().dropped == 5)

    assert feed.counts().retried == 10
    [line] = caplog.messages
    assert line == "The sink it did not take Numbers of demo: OSError('the disk is full')"
    assert close(feed)


def test_what_is_rejected_is_not_tried_again() -> None:
    def reject(news: News) -> None:
        raise Rejected("not here")

    feed = Feed("it", Listener(reject), pauses_s=SOON)
    feed.put(numbers())
    wait_until(lambda: feed.counts().dropped)

    assert feed.counts().retried == 0
    assert close(feed)


def test_a_sink_that_hangs_holds_up_nobody_and_keeps_little() -> None:
    go_on = threading.Event()

    def hang(news: News) -> None:
        go_on.wait(30)

    feed = Feed("it", Listener(hang), most=10)
    began = time.monotonic()
    for step in range(1000):
        feed.put(numbers(step) if step < 20 else alarm())
    assert time.monotonic() - began < 1.0
    assert feed.counts().waiting == 10
    assert feed.counts().dropped >= 989

    began = time.monotonic()
    assert not close(feed, timeout_s=0.1)
    assert time.monotonic() - began < 1.0
    assert feed.counts().dropped >= 1000
    go_on.set()


def test_numbers_give_way_to_alerts() -> None:
    go_on, hangs = threading.Event(), threading.Event()

    def hang(news: News) -> None:
        hangs.set()
        go_on.wait(30)

    sink = Listener(hang)
    feed = Feed("it", sink, most=3)
    feed.put(Ended(run="before"))
    hangs.wait(10)
    for news in (alarm("a"), numbers(1), numbers(2), alarm("b"), Ended(run="c")):
        feed.put(news)
    go_on.set()

    assert close(feed)
    assert [news.run for news in sink.heard] == ["before", "a", "b", "c"]
    assert feed.counts().dropped == 2


def test_the_end_waits_for_no_pause() -> None:
    def fail(news: News) -> None:
        raise OSError("no")

    feed = Feed("it", Listener(fail), pauses_s=(60.0,))
    feed.put(numbers())
    wait_until(lambda: feed.counts().retried)

    assert close(feed)
    assert feed.counts().dropped == 1


def test_what_comes_after_the_end_is_dropped() -> None:
    feed = Feed("it", Listener())
    assert close(feed)
    feed.put(numbers())

    assert feed.counts().dropped == 1
