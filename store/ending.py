"""How the latest attempt of a run ended, as its agents and its collector told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..sketch.labels import rank_words
from ..wire.messages import PROCESS_ENDED, TRAINING_ENDED
from .reader import Reader

State = Literal["open", "finished", "ended early", "ranks lost"]
"""`open`: it goes on, or its collector was killed. `ended early`: a rank left its block, or its
process, in the middle. `ranks lost`: some fell silent and were not heard of again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run goes, or how it ended."""

    state: State
    text: str
    """The same in words, with where and why."""

    @property
    def is_bad(self) -> bool:
        """Whether the job itself failed, whatever its numbers were."""
        return self.state not in ("open", "finished")


def ending_of(reader: Reader) -> Ending:
    """How the latest attempt of a run ended."""
    latest = len(reader.meta.attempts) - 1
    events = [one for one in reader.log("events") if one["attempt"] == latest]
    early, lost = _early(events), _lost(events)
    words = [part for part in (early, _of_lost(lost)) if part]
    if not words:
        state: State = "finished" if reader.state.finished else "open"
        return Ending(state=state, text="finished" if state == "finished" else "not finished")
    if not reader.state.finished:
        words.insert(0, "not finished")
    return Ending(state="ended early" if early else "ranks lost", text="; ".join(words))


# `Any`: an event is as JSON gave it.
def _early(events: Sequence[Mapping[str, Any]]) -> str:
    """What the first rank told that ended early, and which others did; empty for none."""
    told = {
        one["rank"]: one["text"].removeprefix(begin).rstrip(".")
        for one in reversed(events)
        for begin in (TRAINING_ENDED, PROCESS_ENDED)
        if one["kind"] == "report" and one["text"].startswith(begin)
    }
    if not told:
        return ""
    first = next(reversed(told.values()))
    who = f" on {rank_words(sorted(told))}" if max(told) > 0 else ""
    step, *why = first.split(":", 1)
    return f"ended early in step {':'.join([step + who, *why])}"


def _lost(events: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """By rank that fell silent and did not come back, the step in which it was seen last."""
    lost = dict[int, int]()
    for one in events:
        if one["kind"] == "rank-lost":
            lost[one["rank"]] = one["step"]
        elif one["kind"] == "rank-joined":
            lost.pop(one["rank"], None)
    return lost


def _of_lost(lost: Mapping[int, int]) -> str:
    if not lost:
        return ""
    ranks = rank_words(sorted(lost)).partition(" ")[2]
    first, last = min(lost.values()), max(lost.values())
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"ranks lost: {ranks} (last seen in {steps})"
