"""What `/metrics` answers, as Prometheus' own parser reads it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read_text

from rankscope.sinks import Ended, FeedCounts
from rankscope.sinks.prometheus import Prometheus

from .telling import ALERT, alarm, numbers

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(sink: Prometheus) -> Samples:
    content_type, body = sink.render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name.removeprefix("rankscope_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in read_text(body.decode())
        for sample in family.samples
    }


def one(found: Samples, metric: str, /, **labels: str) -> float:
    return found[metric, tuple(sorted(labels.items()))]


def test_the_newest_step_of_a_run_is_told() -> None:
    sink = Prometheus()
    sink.take(numbers(3))
    sink.take(numbers(7))
    sink.take(numbers(5))  # a record that was patched
    found = samples(sink)

    rms = numbers(7).values["activation/rms"]
    assert one(found, "step", run="demo") == 7
    assert one(found, "training", run="demo", name="loss") == 3.0
    assert one(found, "statistic", run="demo", kind="activation", statistic="rms") == rms
    over = {"kind": "weight", "statistic": "overflow/float16"}
    assert one(found, "statistic", run="demo", **over) == 0
    assert one(found, "agent", run="demo", name="dropped") == 7


def test_a_loss_that_is_nan_is_told_as_nan() -> None:
    sink = Prometheus()
    sink.take(numbers(values={"training/loss": math.nan}))

    assert math.isnan(one(samples(sink), "training", run="demo", name="loss"))


def test_names_are_quoted_whatever_they_are() -> None:
    sink, name = Prometheus(), 'a "b"\\\n{c="d"} é/f'
    sink.take(numbers(values={f"training/{name}": 1.0}))

    assert one(samples(sink), "training", run="demo", name=name) == 1


def test_a_run_has_no_more_series_than_its_bound_and_those_left_out_are_counted() -> None:
    sink = Prometheus(most_series=10)
    for step in range(3):
        names = {f"training/{place}": float(step) for place in range(25)}
        sink.take(numbers(step, values=names))
    found = samples(sink)

    told = [labels for name, labels in found if name == "training"]
    assert len(told) == 10
    assert one(found, "training", run="demo", name="9") == 2  # those that came first stay
    assert one(found, "series_left_out", run="demo") == 10  # nor is more remembered of others


def test_runs_have_a_bound_and_those_that_ended_leave_first() -> None:
    sink = Prometheus(most_runs=2)
    for name in ("a", "b"):
        sink.take(numbers(run=name))
    sink.take(Ended(run="b"))
    sink.take(numbers(run="c"))
    sink.take(Ended(run="unknown"))
    assert {dict(labels)["run"] for name, labels in samples(sink) if name == "step"} == {"a", "c"}

    sink.take(numbers(1, run="a"))
    sink.take(numbers(run="d"))
    assert {dict(labels)["run"] for name, labels in samples(sink) if name == "step"} == {"a", "d"}


def test_alerts_are_counted_and_those_that_go_on() -> None:
    sink = Prometheus()
    sink.take(alarm())
    sink.take(alarm())  # told again, by a collector that was started again
    sink.take(alarm(alert=replace(ALERT, site="weight:other")))
    sink.take(alarm(alert=replace(ALERT, last_step=5)))
    found = samples(sink)

    rule = {"run": "demo", "rule": "replica-divergence"}
    assert one(found, "alerts_total", **rule) == 2
    assert one(found, "alerts_firing", **rule) == 1


def test_alerts_of_an_attempt_that_died_go_on_no_more() -> None:
    sink = Prometheus()
    sink.take(numbers(3))
    sink.take(alarm())
    sink.take(numbers(0, attempt=1, record=4))
    found = samples(sink)

    rule = {"run": "demo", "rule": "replica-divergence"}
    assert one(found, "alerts_firing", **rule) == 0
    assert one(found, "alerts_total", **rule) == 1


def test_after_a_rewind_within_an_attempt_numbers_go_on() -> None:
    sink = Prometheus()
    sink.take(numbers(7))
    sink.take(numbers(5, record=8))
    assert one(samples(sink), "step", run="demo") == 5


def test_the_collector_and_the_sinks_are_told_as_they_are() -> None:
    sink = Prometheus()
    pipeline = {"frames": 5.0, "lag_s": 0.25, "resident_bytes": 1e8, "lost_frames": 2.0}
    counts = {"webhook": FeedCounts(delivered=3, dropped=1, waiting=4)}
    _, body = sink.render("", pipeline, counts)
    text = body.decode()

    assert "# TYPE rankscope_collector_frames_total counter\n" in text
    assert "\nrankscope_collector_frames_total 5.0\n" in text
    assert "\nrankscope_collector_lag_seconds 0.25\n" in text
    assert "# TYPE rankscope_collector_resident_bytes gauge\n" in text
    assert 'rankscope_sink_dropped_total{sink="webhook"} 1.0\n' in text
    assert 'rankscope_sink_waiting{sink="webhook"} 4.0\n' in text


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=1.0.0", "*/*"])
def test_who_asks_for_openmetrics_gets_it(accept: str) -> None:
    sink = Prometheus()
    sink.take(numbers())
    content_type, body = sink.render(accept)

    is_open = content_type.startswith("application/openmetrics-text")
    assert is_open == ("openmetrics" in accept)
    families = list((read_open if is_open else read_text)(body.decode()))
    assert "rankscope_step" in {family.name for family in families}
