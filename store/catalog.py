"""What a run says of itself beside its records: its sites, exact counts, attempts and names.

It grows in memory and becomes durable with the next commit. A commit may be under way on another
thread meanwhile: what changes it is done under one lock, and what it has given out never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Lock

from ..sketch.errors import StoreError
from ..sketch.exact_counts import MAX_NUMBERS
from ..wire.messages import MAX_READ
from .record import ExactCountInfo, QuantityInfo, RankInfo, Record, SiteInfo
from .state import Attempt, Meta

MAX_SITES = 100_000
"""Of a run."""


class Catalog:
    """Gives sites, exact counts and attempts their numbers. Any thread may use it.

    Args:
        run: name of the run.
        meta: what is stored.
    """

    def __init__(self, run: str, meta: Meta) -> None:
        self.run = run
        self._meta = meta
        self._lock = Lock()
        self._index = {site.label: index for index, site in enumerate(meta.sites)}
        self._quantity_index = {_identity(info): at for at, info in enumerate(meta.quantities)}
        self._exact_count_index = {
            (info.site, info.name): index for index, info in enumerate(meta.exact_counts)
        }

    @property
    def meta(self) -> Meta:
        """All of it, as it is now."""
        return self._meta

    def attempt_of(self, launch: str) -> int:
        """The number of the attempt with that launch token; a new token gets the next number."""
        with self._lock:
            launches = [attempt.launch for attempt in self._meta.attempts]
            if launch in launches:
                return launches.index(launch)
            attempts = *self._meta.attempts, Attempt(launch=launch)
            self._meta = replace(self._meta, attempts=attempts)
            return len(launches)

    def set_attempt(
        self, attempt: int, world_size: int, mesh: Mapping[str, int], ranks: Sequence[RankInfo]
    ) -> None:
        """Say what is known of an attempt; ranks that join later are added to those before.

        Raises:
            StoreError: the attempt has no number yet, see `attempt_of`.
        """
        with self._lock:
            attempts = list(self._meta.attempts)
            if not 0 <= attempt < len(attempts):
                text = f"Attempt {attempt} is not known; ask `attempt_of` for its number."
                raise StoreError(text)
            known = {rank.rank: rank for rank in (*attempts[attempt].ranks, *ranks)}
            attempts[attempt] = replace(
                attempts[attempt],
                world_size=world_size,
                mesh=dict(mesh),
                ranks=tuple(known[rank] for rank in sorted(known)),
            )
            self._meta = replace(self._meta, attempts=tuple(attempts))

    def set_left(self, attempt: int, ranks: Iterable[int]) -> None:
        """Say which ranks of an attempt have said goodbye, and are not there."""
        with self._lock:
            attempts = list(self._meta.attempts)
            attempts[attempt] = replace(attempts[attempt], left=tuple(sorted(ranks)))
            self._meta = replace(self._meta, attempts=tuple(attempts))

    def add_sites(self, sites: Sequence[SiteInfo]) -> list[int]:
        """The index of each site, by its label; unknown ones are appended.

        Of known ones what the latest attempt tells of placement, dtype, cuts and so on counts; how
        it was in the attempts before is kept. The shape is that which an attempt told first.

        Raises:
            StoreError: the run has no room for so many.
        """
        with self._lock:
            changed, new = self._news(sites)
            if changed:
                every = enumerate(self._meta.sites)
                merged = tuple(changed.get(place, known) for place, known in every)
                former = self._former(changed)
                self._meta = replace(self._meta, sites=merged, former=former)
            if new:
                first = len(self._meta.sites)
                count = first + len(new)
                if count > MAX_SITES:
                    raise StoreError(
                        f"Run {self.run!r} has room for {MAX_SITES} sites, and was told of {count}."
                    )
                self._index |= {label: first + place for place, label in enumerate(new)}
                self._meta = replace(self._meta, sites=(*self._meta.sites, *new.values()))
            return [self._index[site.label] for site in sites]

    def knows(self, sites: Sequence[SiteInfo]) -> bool:
        """Whether `add_sites` would change nothing but the attempt in which they were seen last."""
        with self._lock:
            changed, new = self._news(sites)
            known = self._meta.sites
            return not new and all(
                replace(known[place], attempt=site.attempt) == site
                for place, site in changed.items()
            )

    def add_exact_counts(self, exact_counts: Sequence[tuple[int, str]]) -> list[int | None]:
        """The index of each exact count, by its site's index and its name; new ones are appended.

        Returns:
            None for those for which the run has no room: it holds `MAX_NUMBERS` counts.

        Raises:
            SettingError: there is no such exact count.
        """
        with self._lock:
            new, start = dict[tuple[int, str], ExactCountInfo](), self._meta.numbers
            for site, name in exact_counts:
                info = ExactCountInfo(site=site, name=name, start=start)
                is_known = (site, name) in self._exact_count_index or (site, name) in new
                if not is_known and info.numbers.stop <= MAX_NUMBERS:
                    new[site, name] = info
                    start = info.numbers.stop
            if new:
                first = len(self._meta.exact_counts)
                self._exact_count_index.update(
                    zip(new, range(first, first + len(new)), strict=True)
                )
                exact_counts_now = *self._meta.exact_counts, *new.values()
                self._meta = replace(self._meta, exact_counts=exact_counts_now)
            return [self._exact_count_index.get(key) for key in exact_counts]

    def add_quantities(self, quantities: Sequence[QuantityInfo]) -> list[int | None]:
        """The index of each quantity, wherever it says that it begins; new ones are appended.

        Returns:
            None for those for which the run has no room: it holds `MAX_READ` numbers.
        """
        with self._lock:
            new, start = list[QuantityInfo](), self._meta.values
            for info in quantities:
                fits = start + info.width <= MAX_READ
                if _identity(info) not in self._quantity_index and fits:
                    self._quantity_index[_identity(info)] = len(self._meta.quantities) + len(new)
                    new.append(replace(info, start=start))
                    start += info.width
            if new:
                self._meta = replace(self._meta, quantities=(*self._meta.quantities, *new))
            return [self._quantity_index.get(_identity(info)) for info in quantities]

    def with_names(self, records: Sequence[Record]) -> Meta:
        """All of it with the names of numbers and groups that are new in these records."""
        with self._lock:
            meta = self._meta
            training = new_names(meta.training, [record.training for record in records])
            health = new_names(meta.health, [record.health for record in records])
            groups = new_names(meta.groups, [{0: record.by_group} for record in records])
            if training or health or groups:
                self._meta = replace(
                    meta,
                    training=(*meta.training, *training),
                    health=(*meta.health, *health),
                    groups=(*meta.groups, *groups),
                )
            return self._meta

    def _former(self, changed: Mapping[int, SiteInfo]) -> dict[int, tuple[SiteInfo, ...]]:
        """What sites were in earlier attempts, once these are changed."""
        former = dict(self._meta.former)
        for place, now in changed.items():
            known = self._meta.sites[place]
            if now.attempt > known.attempt and self._differs(known, now):
                former[place] = (*former.get(place, ()), known)
        return former

    def _differs(self, before: SiteInfo, now: SiteInfo) -> bool:
        """Whether a site is another one in a later attempt.

        A shape alone says so where there are other ranks: it is that of the rank that came first.
        """
        known = dict(enumerate(self._meta.attempts))
        one, other = (known.get(site.attempt, Attempt(launch="")) for site in (before, now))
        is_alike = (one.world_size, one.mesh) == (other.world_size, other.mesh)
        shape = now.shape if is_alike else before.shape
        return replace(before, shape=shape, attempt=now.attempt) != now

    def _news(self, sites: Sequence[SiteInfo]) -> tuple[dict[int, SiteInfo], dict[str, SiteInfo]]:
        """By index: known sites as they are now, where that differs; by label: new ones."""
        changed, new = dict[int, SiteInfo](), dict[str, SiteInfo]()
        for site in sites:
            place = self._index.get(site.label)
            if place is None:
                new[site.label] = site
                continue
            known = self._meta.sites[place]
            if site.attempt < known.attempt:
                continue  # a rank of an attempt that is over, but for it
            latest = replace(
                known,
                dtype=site.dtype,
                placement=site.placement,
                checked=site.checked,
                whole=site.whole,
                cuts=site.cuts,
                group=site.group,
                shape=site.shape if site.attempt > known.attempt else known.shape,
                attempt=site.attempt,
            )
            if latest != known:
                changed[place] = latest
        return changed, new


def _identity(info: QuantityInfo) -> tuple[str, str, str, int, bool]:
    return info.name, info.of, info.part, info.width, info.is_vector


def new_names(
    known: Sequence[str], numbers: Sequence[Mapping[int, Mapping[str, object]]]
) -> list[str]:
    """The names among these numbers that are not known, in order of appearance."""
    names = {name: None for ranks in numbers for values in ranks.values() for name in values}
    return [name for name in names if name not in known]
