"""How the attempts of a run ended, as their agents and its collector told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..sketch.labels import more_words, rank_words
from ..wire.messages import PROCESS_ENDED, TRAINING_ENDED
from .reader import Reader
from .state import Attempt

TOGETHER_NS = 5_000_000_000
"""Ranks that are lost within this time are lost by one cause: agents beat every two seconds."""

State = Literal["open", "finished", "ended early", "ranks lost"]
"""`open`: it goes on, or its collector was killed. `ended early`: a rank left its block, or its
process, in the middle. `ranks lost`: some fell silent and were not heard of again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run goes, or how it ended."""

    state: State
    text: str
    """The same in words, with where and why; and of earlier attempts, if some ended badly."""
    attempt: int = 0
    """Its number."""
    earlier: tuple[Ending, ...] = ()
    """Those of earlier attempts that ended early, or with ranks lost."""

    @property
    def is_bad(self) -> bool:
        """Whether the job itself failed, whatever its numbers were."""
        return self.state not in ("open", "finished")

    @property
    def brief(self) -> str:
        """The state, and those of `earlier`: "finished (attempt 0: ranks lost)"."""
        before = [f"attempt {one.attempt}: {one.state}" for one in self.earlier]
        return self.state + (f" ({', '.join(before)})" if before else "")


# `Any`, here and below: an event is as JSON gave it.
def ending_of(reader: Reader) -> Ending:
    """How the latest attempt of a run ended, and earlier ones that ended badly."""
    latest = max(len(reader.meta.attempts) - 1, 0)
    told = defaultdict[int, list[Mapping[str, Any]]](list)
    for event in reader.log("events"):
        told[event["attempt"]].append(event)
    hosts = [hosts_of(attempt) for attempt in reader.meta.attempts] or [{}]
    before = [
        _ending(number, told[number], hosts[number], over=True)
        for number in sorted(told)
        if number < latest
    ]
    earlier = tuple(one for one in before if one.is_bad)
    ending = _ending(latest, told[latest], hosts[latest], over=reader.state.finished)
    alike = defaultdict[str, list[int]](list)
    for one in earlier:
        alike["the same" if one.text == ending.text else one.text].append(one.attempt)
    words = [ending.text, *(f"{attempt_words(own)}: {text}" for text, own in alike.items())]
    return replace(ending, text="; ".join(words), earlier=earlier)


def attempt_words(numbers: Sequence[int]) -> str:
    """Attempts by number, as "attempts 0, 1"."""
    return f"attempt{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def hosts_of(attempt: Attempt) -> dict[int, str]:
    """By rank its host, where there are several."""
    hosts = {info.rank: info.host for info in attempt.ranks}
    return hosts if len({*hosts.values()}) > 1 else {}


def lost_ranks(events: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """By rank that fell silent and did not come back, the event that told it.

    Args:
        events: of one attempt.
    """
    lost = dict[int, Mapping[str, Any]]()
    for one in events:
        if one["kind"] == "rank-lost":
            lost[one["rank"]] = one
        elif one["kind"] == "rank-joined":
            lost.pop(one["rank"], None)
    return lost


def _ending(
    attempt: int, events: Sequence[Mapping[str, Any]], hosts: Mapping[int, str], *, over: bool
) -> Ending:
    """How one attempt ended, by its events alone."""
    early, lost = early_words(early_ends(events)), lost_words(lost_ranks(events), hosts)
    words = [part for part in (early, lost) if part]
    if lost and _is_consequence(early):
        words.reverse()
    if not over:
        words.insert(0, "not finished")
    state: State = "finished" if over else "open"
    if early or lost:
        state = "ended early" if early else "ranks lost"
    return Ending(state=state, text="; ".join(words) or "finished", attempt=attempt)


def early_ends(events: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """By rank that told that it ended early, in the order of telling, in which step and why."""
    told = dict[int, str]()
    for one in events:
        for begin in (TRAINING_ENDED, PROCESS_ENDED):
            if one["kind"] == "report" and one["text"].startswith(begin):
                told.setdefault(one["rank"], one["text"].removeprefix(begin).rstrip("."))
    return told


def early_words(told: Mapping[int, str]) -> str:
    """What each rank told; causes before their consequences, two of them. Empty for no rank."""
    ranks = defaultdict[str, list[int]](list)
    for rank, text in told.items():
        ranks[text].append(rank)
    texts = sorted(ranks, key=_is_consequence)
    words = list[str]()
    for text in texts[:2]:
        who = f" on {rank_words(sorted(ranks[text]))}" if max(told) > 0 else ""
        step = text[: len(text) - len(text.lstrip("0123456789"))]
        words.append(f"{'' if words else 'ended early '}in step {step}{who}{text[len(step) :]}")
    if len(texts) > 2:
        words.append(f"and otherwise on {sum(len(ranks[text]) for text in texts[2:])} more")
    return ", ".join(words)


def _is_consequence(text: str) -> bool:
    """Whether somebody else ended before."""
    return any(words in text for words in ("closed by peer", "reset by peer", "Broken pipe"))


def lost_words(lost: Mapping[int, Mapping[str, Any]], hosts: Mapping[int, str]) -> str:
    """Which ranks are lost, in which step and where each was seen last; empty for none.

    Those that were lost first stand apart: they are the cause where others wait for them.

    Args:
        lost: see `lost_ranks`.
        hosts: see `hosts_of`.
    """
    if not lost:
        return ""
    until_ns = min(one["time_ns"] for one in lost.values()) + TOGETHER_NS
    first = {rank: one["step"] for rank, one in lost.items() if one["time_ns"] <= until_ns}
    then = {rank: one["step"] for rank, one in lost.items() if rank not in first}
    words = ", then ".join(_seen_words(steps, hosts) for steps in (first, then) if steps)
    return f"ranks lost: {words}"


def _seen_words(steps: Mapping[int, int], hosts: Mapping[int, str]) -> str:
    """Some ranks, by rank the step in which it was seen last."""
    ranks = rank_words(sorted(steps)).partition(" ")[2]
    first, last = min(steps.values()), max(steps.values())
    seen = f"step {first}" if first == last else f"steps {first} to {last}"
    names = sorted({hosts[rank] for rank in steps if rank in hosts})
    on = f", on {', '.join(names[:4])}{more_words(names[4:])}" if names else ""
    return f"{ranks} (last seen in {seen}{on})"
