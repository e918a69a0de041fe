"""Which sinks there are, and how `--sink KIND:TARGET` names them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from ..sketch.errors import SettingError
from .fanout import Sinks
from .feed import Feed, FeedCounts
from .json_lines import JsonLines
from .news import Sink
from .webhook import Webhook

WEBHOOK = "RANKSCOPE_WEBHOOK"
"""Variable with the address of a webhook: everybody on the machine can read an argument."""


class Metrics(Protocol):
    """Answers `/metrics`."""

    def render(
        self,
        accept: str,
        pipeline: Mapping[str, float],
        sinks: Mapping[str, FeedCounts],
    ) -> tuple[str, bytes]:
        """Content type and body.

        Args:
            accept: what whoever asks can read.
            pipeline: how the collector is, by name.
            sinks: how each sink keeps up.
        """
        ...


def open_sinks(asked: Sequence[str]) -> tuple[Sinks, Metrics | None]:
    """The sinks named by `--sink`, and what answers `/metrics` if Prometheus is among them.

    Raises:
        SettingError: there is no such sink, it cannot be used, or its package is not installed.
    """
    feeds, metrics, names = list[Feed](), None, Counter[str]()
    opened = [_open(text) for text in asked]  # all of them before any thread begins
    for kind, sink in opened:
        names[kind] += 1
        feeds.append(Feed(kind if names[kind] == 1 else f"{kind}-{names[kind]}", sink))
        metrics = sink if kind == "prometheus" else metrics
    return Sinks(feeds), cast("Metrics | None", metrics)


def parse_sink(text: str) -> tuple[str, str]:
    """Kind and target of a sink; a webhook's address may be left to the environment.

    Raises:
        SettingError: there is no such sink, or it is said otherwise.
    """
    kind, _, target = text.partition(":")
    if kind not in SINKS:
        raise SettingError(f"There is no sink {kind!r}; say {KINDS}.")
    example, _ = SINKS[kind]
    if kind != "webhook" and bool(target) != (":" in example):
        raise SettingError(f"`--sink {kind}` is said as {example}, got {text!r}.")
    return kind, target


def _open(text: str) -> tuple[str, Sink]:
    kind, target = parse_sink(text)
    _, open_it = SINKS[kind]
    if kind == "webhook":
        target = target or os.environ.get(WEBHOOK, "")
        if not target:
            raise SettingError(f"`--sink webhook` needs an address: set {WEBHOOK}.")
    try:
        return kind, open_it(target)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "rankscope":
            raise  # a fault of ours
        raise SettingError(
            f"`--sink {kind}` needs {error.name}, which is not installed. "
            f"Install it with: pip install 'rankscope[{kind}]'"
        ) from error


def _tensorboard(target: str) -> Sink:
    from .tensorboard import TensorBoard

    return TensorBoard(Path(target))


def _wandb(target: str) -> Sink:
    from .wandb import WeightsAndBiases

    return WeightsAndBiases(target)


def _prometheus(target: str) -> Sink:
    from .prometheus import Prometheus

    return Prometheus()


SINKS: Mapping[str, tuple[str, Callable[[str], Sink]]] = {
    "jsonl": ("jsonl:PATH", lambda target: JsonLines(Path(target))),
    "tensorboard": ("tensorboard:DIR", _tensorboard),
    "wandb": ("wandb:PROJECT", _wandb),
    "webhook": ("webhook:URL", Webhook),
    "prometheus": ("prometheus", _prometheus),
}
"""By kind: how it is said, and what opens it. Libraries are not loaded before they are wanted."""
KINDS = ", ".join(example for example, _ in SINKS.values())
