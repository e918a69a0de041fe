"""One start of a run in the collector: its ranks, its records, and what its agents are asked."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from ..store.incidents import IncidentLog
from ..store.record import Alert, RankInfo, Record
from ..store.writer import RunWriter
from ..wire.messages import LEAST_BUDGET, Alerts, Control, Hello
from .budget import Budget
from .joiner import Joiner, JoinerSettings
from .response import Response

logger = logging.getLogger(__name__)

NOTICE_STEPS = 8
"""Agents hear some steps before of a change, so that most ranks begin it in the same."""
AGAIN = "had not said goodbye when the run was started again"
"""Why ranks of the start before are told as lost."""
RECALLED, RECALLED_ROWS = 64, 1 << 15
"""Records that rules are shown again when an attempt goes on after a restart, and rows of these."""


class Attempt:
    """One start of a run; what an earlier collector stored of it is known.

    Args:
        number: within its run.
        world_size: how many ranks it has.
        mesh: size of each axis, by name.
        started: seconds, on the clock of `Joiner.feed`.
        writer: of the run's store.
        last_step: of its newest record, if an earlier collector or this one has stored any.
    """

    def __init__(
        self,
        number: int,
        world_size: int,
        mesh: dict[str, int],
        started: float,
        *,
        writer: RunWriter,
        settings: JoinerSettings,
        last_step: int | None,
    ) -> None:
        self.number = number
        self.world_size = world_size
        self.mesh = mesh
        self.started = started
        self.joiner = Joiner(
            number,
            world_size,
            site=lambda index: writer.catalog.meta.site(index, number),
            settings=settings,
        )
        self.incidents = IncidentLog(writer.alerts(number), writer.catalog.meta.sites)
        self.refused = set[tuple[int, str]]()
        """Exact counts for which the run has no room, of which an event told."""
        self.is_cramped = False
        """Whether an event told of quantities for which the run has no room."""
        self._writer = writer
        self._ranks: dict[int, RankInfo] = {}
        self._is_unwritten = False
        """Whether there are ranks of which the store does not know."""
        self._response = Response(settings.rules.closer)
        self._budget: Budget | None = None
        self._relief: Control | None = None
        """What an overloaded collector asks for."""
        self._recall(last_step)
        writer.catalog.set_attempt(number, world_size, mesh, ())

    # Ranks ---------------------------------------------------------------------------------------

    def introduce(self, hello: Hello, now: float) -> None:
        """A rank says who it is."""
        if hello.budget >= LEAST_BUDGET and self._budget is None:
            self._budget = Budget(hello.budget)
        self._response.is_of_use |= hello.keeps_back
        self.joiner.ranks.hear(hello.rank, now)
        self._ranks[hello.rank] = RankInfo(
            rank=hello.rank,
            host=hello.host,
            process=hello.process,
            device=hello.device,
            coordinates={axis.name: axis.coordinate for axis in hello.mesh},
            facts=hello.facts,
        )
        self._is_unwritten = True

    def write(self) -> None:
        """Have the next commit store who its ranks are."""
        if self._is_unwritten:
            ranks = [info for _, info in sorted(self._ranks.items())]
            self._writer.catalog.set_attempt(self.number, self.world_size, self.mesh, ranks)
        self._is_unwritten = False

    def is_over(self, now: float) -> bool:
        """Whether no rank is there, none is expected, and no record waits for any."""
        joiner = self.joiner
        return not joiner.open_records and joiner.ranks.everyone_is_gone(now, self.started)

    # What agents are asked -----------------------------------------------------------------------

    def hear_health(self, rank: int, step: int, health: Mapping[str, float]) -> None:
        """What a rank says of itself counts for the budget, unless all are slowed down anyway."""
        if self._budget is not None and self._relief is None:
            self._budget.hear(rank, step, health)

    def steer(self) -> tuple[list[Alerts], Control | None]:
        """What is to be told now to all its agents, and how they are to go on."""
        if self._budget is not None:
            change = self._budget.decide(self.joiner.ranks.present())
            if change is not None:
                self.joiner.telling.tell("budget", change.rank, change.step, change.text)
        asked = (self._budget and self._budget.control, self._relief)
        control = max((one for one in asked if one), key=_stretch, default=None)
        return self._response.take(), control

    def relieve(self, stretch: int) -> None:
        """Have its agents measure so many times as rarely: the collector does not keep up."""
        step = self.joiner.ranks.newest_step() + NOTICE_STEPS
        self._relief = Control(stretch=stretch, from_step=step)
        often = f"{stretch} times as rarely as asked for" if stretch > 1 else "as asked for"
        why = "does not keep up" if stretch > 1 else "keeps up again"
        text = f"The collector {why}: from step {step} on each site is sketched {often}."
        self.joiner.telling.tell("overload", -1, step, text)

    def pace(self, records: Sequence[Record]) -> None:
        """Learn from new records how long a step takes."""
        self._response.pace(records)

    def respond(self, alerts: Sequence[Alert]) -> None:
        """Have agents look closer where it is worth that."""
        begun = [alert for alert in alerts if alert.last_step is None]
        step = self.joiner.ranks.newest_step()
        free = self._budget is None and self._relief is None
        asked = self._response.add(begun, step, may_detail=free)
        if asked:
            self.joiner.telling.tell("closer-look", -1, step, asked)

    # What was before -----------------------------------------------------------------------------

    def _recall(self, last_step: int | None) -> None:
        """Go on where an earlier collector was, whose last record of it was of this step."""
        meta, joiner = self._writer.catalog.meta, self.joiner
        before = meta.attempts[self.number]
        lost = lost_of(self._writer, self.number) if before.ranks else {}
        joiner.ranks.recall(lost=lost, left=before.left, step=last_step)
        if last_step is not None:
            self._recall_records()
            joiner.recall(self._writer.learnt(self.number))
        place = {site.label: index for index, site in enumerate(meta.sites)}
        joiner.watch.resume(self._writer.alerts(self.number), place.__getitem__, last_step)

    def _recall_records(self) -> None:
        """Let rules remember the last records."""
        most = min(RECALLED, RECALLED_ROWS // max(len(self._writer.catalog.meta.sites), 1))
        try:
            records = self._writer.replay(self.number, most)
            self.joiner.watch.recall(records, world_size=self.world_size)
        except Exception as error:  # whatever the store's engine raises: no frame waits for it
            text = "Rules remember nothing of run %r from before: %r"
            logger.warning(text, self._writer.run, error)


def lost_of(writer: RunWriter, attempt: int) -> dict[int, int]:
    """By rank that is told as lost the step in which it was seen last, as far as it is stored."""
    try:
        return writer.lost(attempt)
    except Exception as error:  # whatever the store's engine raises: no frame waits for it
        logger.warning("Who was lost of run %r before is not known: %r", writer.run, error)
        return {}


def _stretch(control: Control) -> int:
    return control.stretch
