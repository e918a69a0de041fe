"""What happened to the ranks of a job, as news: some were lost, or told that they ended early."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..store.ending import early_ends, early_words, hosts_of, lost_ranks, lost_words
from ..store.record import Event
from ..store.state import Attempt
from .news import Trouble


def troubles_of(
    events: Sequence[Event], *, run: str, attempts: Sequence[Attempt]
) -> Iterator[Trouble]:
    """What ranks of a run have met.

    Args:
        events: those that became durable together.
        attempts: all of the run.
    """
    # `Any`: as `store.ending` reads them from the log.
    by_attempt = defaultdict[int, list[Mapping[str, Any]]](list)
    for one in events:
        by_attempt[one.attempt].append(asdict(one))
    for number, told in by_attempt.items():
        lost, early = lost_ranks(told), early_ends(told)
        newest_ns = max(one["time_ns"] for one in told)
        for kind, ranks, text in (
            ("ranks-lost", [*lost], lost_words(lost, hosts_of(attempts[number]))),
            ("ended-early", [*early], early_words(early)),
        ):
            if text:
                yield Trouble(
                    run=run,
                    launch=attempts[number].launch,
                    attempt=number,
                    kind=kind,
                    ranks=tuple(sorted(ranks)),
                    step=max(one["step"] for one in told if one["rank"] in ranks),
                    text=f"{text[0].upper()}{text[1:]}.",
                    time_ns=newest_ns,
                )
