"""The sites of one agent: each owns a row for the life of the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from ..sketch.exact_counts import MAX_NUMBERS, ExactCount
from ..sketch.labels import site_label
from ..wire.messages import MAX_EXACT_COUNTS, Kind, Placement, Site, SiteExactCount
from .interruption import Lock

MAX_SITES = 20_000
"""Sites of one rank; what comes beyond is not measured, and counted."""

UNMEASURED = -1
"""The row of a site that is excluded, disabled or beyond `MAX_SITES`."""

Key = tuple[str, str, str, int]
Counted = tuple[tuple[int, ExactCount], ...]
"""What is counted of a site's tensor beside its sketch, by index into the schema's exact counts."""


@dataclass(slots=True)
class SiteBook:
    """Rows by (kind, name, slot, occurrence), in the order of first execution."""

    chooses: Callable[[str], bool]
    counts: Callable[[str], Sequence[ExactCount]] = lambda _: ()
    """What is counted of the site with a label, beside its sketch."""
    says: Callable[[str], dict[str, Placement]] = lambda _: {}
    """What the user says of how the site with a label relates to the whole."""
    leaves_unchecked: Callable[[str], bool] = lambda _: False
    """Whether the copies of the site with a label may differ between ranks."""
    groups: Mapping[str, int] = field(default_factory=dict[str, int])
    """By name of a parameter the number of the optimizer's group that it is in."""
    sites: list[Site] = field(default_factory=list[Site])
    moves: int = 0
    """How often a site came to relate to the whole in another way."""
    refused: int = 0
    """Sites beyond `MAX_SITES`."""
    disabled: int = 0
    """How often a site came to be measured no more."""
    whole: set[int] = field(default_factory=set[int])
    """Rows of sites that are never sampled, small ones among them: all of a site alike."""
    synchronous: set[int] = field(default_factory=set[int])
    """Rows whose tensor is changed in place after it was seen: read at once from then on."""
    exact_counts: list[SiteExactCount] = field(default_factory=list[SiteExactCount])
    counted: dict[int, Counted] = field(default_factory=dict[int, Counted])
    """By row: what is counted there, with its index into `exact_counts`."""
    refused_exact_counts: int = 0
    """ExactCounts beyond `MAX_EXACT_COUNTS`, or `MAX_NUMBERS` counts."""
    _untold: list[str] = field(default_factory=list[str])
    _numbers: int = 0
    _lock: Lock = field(default_factory=Lock)
    _rows: dict[Key, int] = field(default_factory=dict[Key, int])
    _orders: dict[Key, int] = field(default_factory=dict[Key, int])
    """Places in the order of execution, of sites and of those that are to become one."""

    def row(self, key: Key) -> int | None:
        """The row of a known site, `UNMEASURED`, or None where the site is new."""
        return self._rows.get(key)

    def expect(self, key: Key) -> None:
        """A site was executed that is read later: it keeps its place in the order of execution."""
        with self._lock:
            self._orders.setdefault(key, len(self._orders))

    def add(
        self,
        key: Key,
        *,
        dtype: str,
        shape: tuple[int, ...],
        module: str = "",
        placement: dict[str, Placement],
        aliases: tuple[str, ...] = (),
        whole: Sequence[int] = (),
        cuts: Sequence[tuple[str, int]] = (),
        is_small: bool = True,
    ) -> int:
        """Give a new site its row, or mark it as unmeasured; hooks may run on several threads."""
        with self._lock:
            if key not in self._rows:
                kind, name, slot, occurrence = key
                site = Site(
                    kind=_kind(kind),
                    name=name,
                    slot=slot,
                    occurrence=occurrence,
                    dtype=dtype,
                    shape=list(shape),
                    module=module,
                    order=self._orders.setdefault(key, len(self._orders)),
                    placement=placement,
                    aliases=list(aliases),
                    whole=list(whole),
                    cuts=list(cuts),
                    group=self.groups.get(name, 0),
                )
                self._rows[key] = self._add(site, is_small=is_small)
            return self._rows[key]

    def move(
        self,
        row: int,
        *,
        shape: Sequence[int],
        placement: dict[str, Placement],
        whole: Sequence[int],
        cuts: Sequence[tuple[str, int]],
    ) -> None:
        """A site relates to the whole in another way from now on."""
        with self._lock:
            site = self.sites[row]
            label = site_label(site.kind, site.name, site.slot, site.occurrence)
            self.sites[row] = replace(
                site,
                shape=list(shape),
                placement={**placement, **self.says(label)},
                whole=list(whole),
                cuts=list(cuts),
            )
            self.moves += 1

    def known(self) -> tuple[list[Site], list[SiteExactCount]]:
        """All sites so far, and what is counted of them."""
        with self._lock:
            return list(self.sites), list(self.exact_counts)

    def shortages(self) -> list[str]:
        """Sentences of what there is no room for; each is given once."""
        with self._lock:
            untold, self._untold = self._untold, []
            return untold

    def _add(self, site: Site, *, is_small: bool) -> int:
        if not self.chooses(site.name):
            return UNMEASURED
        row, label = len(self.sites), site_label(site.kind, site.name, site.slot, site.occurrence)
        if row >= MAX_SITES:
            if not self.refused:
                self._untold.append(
                    f"A rank has {MAX_SITES} sites at most, and {label} is the first that is not "
                    "measured: choose by `kinds`, `include` or `modules`"
                )
            self.refused += 1
            return UNMEASURED
        self.sites.append(
            replace(
                site,
                placement={**site.placement, **self.says(label)},
                checked=not self.leaves_unchecked(label),
            )
        )
        self._count(row, label)
        if is_small or row in self.counted:
            self.whole.add(row)
        return row

    def labels(self) -> list[str]:
        """Of all sites."""
        return [site_label(one.kind, one.name, one.slot, one.occurrence) for one in self.sites]

    def _count(self, row: int, label: str) -> None:
        """Note what is counted of a new site, as far as there is room."""
        counted = list[tuple[int, ExactCount]]()
        for exact_count in self.counts(label):
            numbers = self._numbers + math.prod(exact_count.shape)
            if numbers > MAX_NUMBERS or len(self.exact_counts) >= MAX_EXACT_COUNTS:
                if not self.refused_exact_counts:
                    self._untold.append(
                        f"There is no room for all exact counts, and {label} is the first site of "
                        f"which some are not counted: a rank has room for {MAX_NUMBERS} counts"
                    )
                self.refused_exact_counts += 1
                continue
            self._numbers = numbers
            counted.append((len(self.exact_counts), exact_count))
            self.exact_counts.append(SiteExactCount(site=row, name=exact_count.name))
        if counted:
            self.counted[row] = tuple(counted)

    def disable(self, key: Key) -> None:
        """Measure this site no more."""
        self._rows[key] = UNMEASURED
        self.disabled += 1


def _kind(kind: str) -> Kind:
    return kind  # pyright: ignore[reportReturnType]  # keys are built from literals
