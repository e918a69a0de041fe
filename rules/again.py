"""Judging a stored run again, as it was judged live."""

from __future__ import annotations

from collections import Counter

from ..store.incidents import Incident, by_identity, incidents_of
from ..store.query import Run
from .book import RuleBook
from .exact import EXACT
from .watch import Watch


def judge_again(run: Run, book: RuleBook) -> tuple[list[Incident], Counter[str]]:
    """What rules would have told of a run; and by rule, of how many records it could judge.

    Each attempt is judged by its sites as it had them. Of copies and sums, whose verdicts need the
    numbers of single ranks, it is what was told.
    """
    exact = {rule.name for rule in EXACT}
    alerts = [one for one in run.alert_log() if one.rule in exact]
    judged = Counter[str]()
    for attempt, world_size in enumerate(run.attempts["world_size"].tolist()):
        sites = run.site_infos_of(attempt)
        watch = Watch(attempt, sites.__getitem__, book)
        for record in run.replay(attempt):
            alerts += watch.judge(record, {}, world_size=world_size, patched=record.kept)
            alerts += watch.judge_quantities(record, run.quantity_infos, sites)
        judged += watch.judged
    return incidents_of(by_identity(alerts).values(), run.site_infos), judged
