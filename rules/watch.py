"""Judges each record as it is made: what begins to be wrong, and what is right again.

Pure: alerts follow from the records and from what is remembered of them. An alert is told when it
begins, and once more when it has ended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..store.record import Alert, QuantityInfo, Record, SiteInfo
from ..store.selection import execution_order
from .book import RuleBook
from .bounds import sites_of_names
from .rule import Memory, Rule, Verdict
from .seen import Rows, Seen, Sites

MOST_AT_ONCE, MOST_TOLD = 64, 4096
"""Alerts of a rule that begin with one record, and all in an attempt: where all is wrong a few say
it."""

Key = tuple[str, int]
"""A rule, and the index of a site; -1 for the run as a whole."""


class _Streaks:
    """How long each site has been wrong by one rule, or right again."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.is_quiet = True
        """Whether no site has been above the lower bound since it was last at most that."""

    def wrong(self, sites: int) -> NDArray[np.float64]:
        return self.memory.column("wrong", sites, 0.0)

    def right(self, sites: int) -> NDArray[np.float64]:
        return self.memory.column("right", sites, 0.0)

    def since(self, sites: int) -> NDArray[np.float64]:
        return self.memory.column("since", sites)


@dataclass(slots=True)
class _Firing:
    alert: Alert
    last_step: int


@dataclass(slots=True)
class Watch:
    """The rules of one attempt, and what they found wrong and is still so.

    Args:
        attempt: its number.
        site: what is known of a site of the run, by its index.
        book: the rules to judge by, beside verdicts that are given, and what is not told.
    """

    attempt: int
    site: Callable[[int], SiteInfo]
    book: RuleBook
    told: int = 0
    """How many began."""
    judged: Counter[str] = field(default_factory=Counter[str])
    """By rule how many records it could judge something of."""
    broken: dict[str, str] = field(default_factory=dict[str, str])
    """By rule why it failed, since when it is not asked."""
    _firing: defaultdict[str, dict[int, _Firing]] = field(
        default_factory=lambda: defaultdict(dict[int, _Firing])
    )
    """By rule and index of the site."""
    _streaks: dict[str, _Streaks] = field(default_factory=dict[str, _Streaks])
    _memories: dict[str, Memory] = field(default_factory=dict[str, Memory])
    _sites: Sites = field(init=False)
    _is_resumed: bool = False
    _newest_of_quantities: int = -1
    """The index of the last record whose quantities were judged."""

    def __post_init__(self) -> None:
        self._sites = Sites(self.site)

    @property
    def firing(self) -> set[Key]:
        """What is wrong at the moment."""
        return {(rule, site) for rule, found in self._firing.items() for site in found}

    def recall(self, records: Iterable[Record], *, world_size: int) -> None:
        """Remember an attempt's last records, which an earlier collector has judged.

        Nothing is told of them, nor counted. To be called before `resume`.
        """
        self._is_resumed = True
        try:
            for record in records:
                self.judge(record, {}, world_size=world_size, patched=record.kept)
        finally:
            # What was found, and what goes on, the earlier collector has told.
            self._firing.clear()
            self.broken.clear()
            self.judged, self.told = Counter[str](), 0

    def resume(
        self, alerts: Sequence[Alert], place: Callable[[str], int], last_step: int | None
    ) -> None:
        """Go on where an earlier collector of the attempt has ended.

        Args:
            alerts: what it has told.
            place: index of a site by its label.
            last_step: of the attempt's newest record, to which alerts went on that did not end.
        """
        self.told, self._is_resumed = len(alerts), last_step is not None
        for alert in alerts:
            if alert.last_step is None:
                site = place(alert.site) if alert.site else -1
                last = max(alert.first_step, last_step or alert.first_step)
                self._firing[alert.rule][site] = _Firing(alert, last)

    def judge(
        self,
        record: Record,
        given: Mapping[Rule, Verdict],
        *,
        world_size: int,
        patched: bool = False,
    ) -> list[Alert]:
        """What begins and what ends with a record.

        Args:
            given: verdicts that were made elsewhere, by their rules.
            world_size: how many ranks the attempt has.
            patched: whether the record comes out of order: it had been judged before a late rank
                came, or was kept back. Only what judges it alone is asked then, and nothing ends.
        """
        seen = Seen(record, self._sites, world_size, self._is_resumed)
        alerts = list[Alert]()
        for rule, verdict in given.items():
            alerts += self._apply(rule, verdict, record, patched=patched)
        with np.errstate(all="ignore"):
            for rule in self.book.rules:
                if rule.name not in self.broken and (rule.alone or not (patched or record.partial)):
                    alerts += self._ask(rule, seen, patched=patched)
        return alerts

    def _ask(self, rule: Rule, seen: Seen, *, patched: bool) -> list[Alert]:
        """What a rule says; one that fails is not asked again."""
        if rule.measure is None:
            return []
        try:
            verdict = rule.measure(seen, self._memories.setdefault(rule.name, Memory()))
            return self._apply(rule, verdict, seen.record, patched=patched)
        except Exception as error:  # whatever a user's rule does, the others go on
            self.broken[rule.name] = f"{type(error).__name__}: {error}"
            return []

    def judge_quantities(
        self, record: Record, quantities: Sequence[QuantityInfo], sites: Sequence[SiteInfo]
    ) -> list[Alert]:
        """What begins and what ends with the quantities of a record; of each record once.

        Args:
            quantities, sites: those of the run.
        """
        was_judged = record.index <= self._newest_of_quantities  # and a late rank came then
        if was_judged or record.partial:
            return []
        self._newest_of_quantities = record.index
        alerts, derived = list[Alert](), bool(record.derived.numbers().values)
        place = sites_of_names(sites) if derived else {}
        for bound in self.book.bounds:
            if bound.is_of_sketches:
                verdict = bound.measure_sketches(record, self._sites)
            else:
                verdict = bound.measure(record, quantities, place) if derived else None
            alerts += self._apply(bound.rule, verdict, record, patched=record.kept)
        return alerts

    def _apply(
        self, rule: Rule, verdict: Verdict | None, record: Record, *, patched: bool
    ) -> list[Alert]:
        if verdict is None or not len(verdict.sites):
            return []
        value, place = verdict.value, verdict.sites + 1  # the run as a whole comes first
        if np.isnan(value).all():
            return []
        if not patched:
            self.judged[rule.name] += 1
        threshold = rule.threshold if verdict.threshold is None else verdict.threshold
        clear = rule.clear if verdict.threshold is None else verdict.threshold
        streaks = self._streaks.setdefault(rule.name, _Streaks())
        above, firing = value > clear, self._firing[rule.name]
        if streaks.is_quiet and not firing and not above.any():
            return []  # as in nearly all records: nothing is wrong, and nothing can end
        wrong, right = value > threshold, value <= clear
        size = int(place.max()) + 1
        in_a_row, calm = streaks.wrong(size), streaks.right(size)
        since = streaks.since(size)
        since[place[above & np.isnan(since[place])]] = record.step
        since[place[right]] = np.nan
        in_a_row[place[wrong]] += 1
        in_a_row[place[~wrong & ~np.isnan(value)]] = 0
        calm[place[wrong]] = 0
        calm[place[right]] += 1
        streaks.is_quiet = not in_a_row.any() and bool(np.isnan(since).all())
        is_enough = (in_a_row[place] >= rule.records) | (value > rule.at_once)
        begun = np.flatnonzero(wrong & is_enough)
        alerts = self._begin(rule, verdict, begun, since, record)
        if not (patched or record.partial) and (record.complete or not rule.alone):
            alerts += self._end(rule, verdict.sites[right & (calm[place] >= rule.calm)])
        return alerts

    def _begin(
        self,
        rule: Rule,
        verdict: Verdict,
        begun: NDArray[np.intp],
        since: NDArray[np.float64],
        record: Record,
    ) -> list[Alert]:
        told = list[Alert]()
        for entry in self._by_execution(verdict.sites, begun):
            site = int(verdict.sites[entry])
            going_on = self._firing[rule.name].get(site)
            if going_on is not None:
                going_on.last_step = max(record.step, going_on.last_step)
                continue
            label = self.site(site).label if site >= 0 else ""
            full = len(told) >= MOST_AT_ONCE or self.told >= MOST_TOLD
            if full or self.book.is_muted(rule.name, label):
                continue
            said = verdict.tell(entry)
            threshold = (
                rule.threshold if verdict.threshold is None else float(verdict.threshold[entry])
            )
            alert = Alert(
                rule=rule.name,
                severity=rule.severity,
                attempt=self.attempt,
                site=label,
                ranks=said.ranks,
                first_step=int(since[site + 1]) if said.since is None else said.since,
                last_step=None,
                record=record.index,
                value=float(verdict.value[entry]) if said.value is None else said.value,
                threshold=threshold if said.threshold is None else said.threshold,
                text=said.text,
                evidence=dict(said.evidence),
                time_ns=record.time_ns,
            )
            self._firing[rule.name][site] = _Firing(alert, record.step)
            self.told += 1
            told.append(alert)
        return told

    def _by_execution(self, sites: Rows, entries: NDArray[np.intp]) -> list[int]:
        """Of more than can be told at once those first that are executed first."""
        if len(entries) <= MOST_AT_ONCE:
            return entries.tolist()
        known = execution_order([self.site(index) for index in range(int(sites.max()) + 1)])
        order = {site: number for number, site in enumerate(known)}
        return sorted(entries.tolist(), key=lambda entry: order.get(int(sites[entry]), -1))

    def _end(self, rule: Rule, right: Rows) -> list[Alert]:
        firing = self._firing[rule.name]
        ended = right[np.isin(right, list(firing))].tolist() if firing else []
        found = [firing.pop(site) for site in ended]
        return [replace(one.alert, last_step=one.last_step) for one in found]
