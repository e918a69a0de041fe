"""The newest numbers of each run, and how the collector is, as Prometheus asks for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ..store.incidents import Identity, identity_of
from .feed import FeedCounts
from .news import Alarm, Ended, Found, News, Numbers, Trouble

MOST_SERIES = 1000
"""Numbers told of a run; the names that came first stay, later ones are counted only."""
MOST_RUNS = 16
"""Runs that are told; those that have ended leave first, then those that were silent longest."""
GAUGES = (
    "streams",
    "runs",
    "held_bytes",
    "open_records",
    "lag_s",
    "commit_s",
    "resident_bytes",
    "uptime_s",
)
"""Of the collector's numbers those that may fall; the others only grow."""
PREFIXES = {"training": "name", "agent": "name"}
"""Families of their own, with the label that says which; all else are statistics of a kind."""

Labels = tuple[str, ...]


@dataclass(slots=True)
class _Run:
    attempt: int = -1
    record: int = -1
    step: int = -1
    values: dict[str, float] = field(default_factory=dict[str, float])
    left_out: set[str] = field(default_factory=set[str])
    firing: dict[Identity, str] = field(default_factory=dict[Identity, str])
    """Alerts that go on: which it is, and its rule."""
    begun: Counter[str] = field(default_factory=Counter[str])
    ended: bool = False


class Prometheus:
    """Keeps what `/metrics` is to answer."""

    def __init__(self, *, most_series: int = MOST_SERIES, most_runs: int = MOST_RUNS) -> None:
        self._most_series, self._most_runs = most_series, most_runs
        self._runs: dict[str, _Run] = {}
        """The one that was heard last comes last."""
        self._lock = Lock()

    def take(self, news: News) -> None:
        """Remember what is newest."""
        with self._lock:
            if isinstance(news, Ended) and news.run not in self._runs:
                return
            run = self._runs[news.run] = self._runs.pop(news.run, None) or _Run()
            match news:
                case Numbers():
                    self._learn(run, news)
                case Alarm():
                    _note(run, news)
                case Found():
                    pass  # its alerts are counted
                case Trouble():
                    pass  # it is no number
                case Ended():
                    run.ended = True
            while len(self._runs) > self._most_runs:
                ended = (name for name, one in self._runs.items() if one.ended)
                del self._runs[next(ended, None) or next(iter(self._runs))]

    def close(self) -> None:
        """What was told last may be asked for until the end."""

    def render(
        self,
        accept: str = "",
        pipeline: Mapping[str, float] | None = None,
        sinks: Mapping[str, FeedCounts] | None = None,
    ) -> tuple[str, bytes]:
        """Content type and body of an answer.

        Args:
            accept: the header of who asks.
            pipeline: how the collector is, by name.
            sinks: how each sink keeps up.
        """
        with self._lock:
            families = [*_of_pipeline(pipeline or {}), *_of_sinks(sinks or {}), *self._of_runs()]
        registry = CollectorRegistry()
        registry.register(_Given(families))
        encode, content_type = choose_encoder(accept)
        return content_type, encode(registry)

    def _learn(self, run: _Run, news: Numbers) -> None:
        run.ended = False
        if news.record < run.record:
            return  # that was patched
        if news.attempt > run.attempt:  # nobody says of an attempt that died what has ended in it
            run.firing = {one: rule for one, rule in run.firing.items() if one[0] >= news.attempt}
        run.attempt, run.record, run.step = news.attempt, news.record, news.step
        for name, value in news.values.items():
            if name.startswith("pipeline/"):  # which is told as it is at this very moment
                continue
            if name in run.values or len(run.values) < self._most_series:
                run.values[name] = value
            elif len(run.left_out) < self._most_series:
                run.left_out.add(name)

    def _of_runs(self) -> Iterator[Metric]:
        runs = self._runs.items()
        yield _gauge("step", "Newest step stored.", ["run"], _each(runs, "step"))
        yield _gauge("attempt", "Attempt of that step.", ["run"], _each(runs, "attempt"))
        families: dict[str, dict[Labels, float]] = {"training": {}, "agent": {}, "statistic": {}}
        for run, one in runs:
            for name, value in one.values.items():
                first, _, rest = name.partition("/")
                if first in PREFIXES:
                    families[first][run, rest] = value
                else:
                    families["statistic"][run, first, rest] = value
        text = "Training statistics of the newest step, averaged over ranks."
        yield _gauge("training", text, ["run", "name"], families["training"])
        text = "Counters of the agents, the greatest of any rank."
        yield _gauge("agent", text, ["run", "name"], families["agent"])
        text = "Statistics of the newest step by kind of tensor, see docs/sinks.md."
        yield _gauge("statistic", text, ["run", "kind", "statistic"], families["statistic"])
        text = "Numbers that are not told, for there are too many."
        left_out = {(run,): float(len(one.left_out)) for run, one in runs}
        yield _gauge("series_left_out", text, ["run"], left_out)
        firing = {
            (run, rule): float(Counter(one.firing.values())[rule])
            for run, one in runs
            for rule in one.begun
        }
        yield _gauge("alerts_firing", "Alerts that go on.", ["run", "rule"], firing)
        begun = {(run, rule): float(n) for run, one in runs for rule, n in one.begun.items()}
        yield _counter("alerts", "Alerts that have begun.", ["run", "rule"], begun)


class _Given(Collector):
    """Families that are there already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _note(run: _Run, news: Alarm) -> None:
    alert = news.alert
    key = identity_of(alert)
    if not news.begins:
        run.firing.pop(key, None)
    elif key not in run.firing:
        run.begun[alert.rule] += 1
        run.firing[key] = alert.rule


def _each(runs: Iterable[tuple[str, _Run]], what: str) -> dict[Labels, float]:
    return {(name,): float(getattr(run, what)) for name, run in runs}


def _of_pipeline(numbers: Mapping[str, float]) -> Iterator[Metric]:
    for name, value in numbers.items():
        full = name.removesuffix("_s") + "_seconds" * name.endswith("_s")
        make = _gauge if name in GAUGES else _counter
        yield make(f"collector_{full}", f"The collector's {name}.", [], {(): value})


def _of_sinks(sinks: Mapping[str, FeedCounts]) -> Iterator[Metric]:
    of_sinks = {(name,): counts for name, counts in sinks.items()}
    for what, text in (
        ("delivered", "News that sinks have taken."),
        ("retried", "Tries that failed."),
        ("dropped", "News that sinks did not take."),
    ):
        numbers = {labels: float(getattr(one, what)) for labels, one in of_sinks.items()}
        yield _counter(f"sink_{what}", text, ["sink"], numbers)
    waiting = {labels: float(counts.waiting) for labels, counts in of_sinks.items()}
    yield _gauge("sink_waiting", "News that wait for sinks.", ["sink"], waiting)


def _gauge(
    name: str, text: str, labels: list[str], values: Mapping[Labels, float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"rankscope_{name}", text, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def _counter(
    name: str, text: str, labels: list[str], values: Mapping[Labels, float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"rankscope_{name}", text, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family
