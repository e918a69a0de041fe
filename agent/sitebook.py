"""The sites of one agent: each owns a row for the life of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..wire.messages import Kind, Placement, Site

MAX_SITES = 20_000
"""Sites of one rank; what comes beyond is not measured, and counted."""

UNMEASURED = -1
"""The row of a site that is excluded, disabled or beyond `MAX_SITES`."""

Key = tuple[str, str, str, int]


@dataclass(slots=True)
class SiteBook:
    """Rows by (kind, name, slot, occurrence), in the order of first execution."""

    chooses: Callable[[str], bool]
    sites: list[Site] = field(default_factory=list[Site])
    refused: int = 0
    """Sites beyond `MAX_SITES`."""
    synchronous: set[int] = field(default_factory=set[int])
    """Rows whose tensor is changed in place after it was seen: read at once from then on."""
    _rows: dict[Key, int] = field(default_factory=dict[Key, int])

    def row(self, key: Key) -> int | None:
        """The row of a known site, `UNMEASURED`, or None where the site is new."""
        return self._rows.get(key)

    def add(
        self,
        key: Key,
        *,
        dtype: str,
        shape: tuple[int, ...],
        module: str = "",
        placement: dict[str, Placement],
        aliases: tuple[str, ...] = (),
    ) -> int:
        """Give a new site its row, or mark it as unmeasured."""
        kind, name, slot, occurrence = key
        if not self.chooses(name):
            self._rows[key] = UNMEASURED
        elif len(self.sites) >= MAX_SITES:
            self.refused += 1
            self._rows[key] = UNMEASURED
        else:
            self._rows[key] = len(self.sites)
            self.sites.append(
                Site(
                    kind=_kind(kind),
                    name=name,
                    slot=slot,
                    occurrence=occurrence,
                    dtype=dtype,
                    shape=list(shape),
                    module=module,
                    order=len(self.sites),
                    placement=placement,
                    aliases=list(aliases),
                )
            )
        return self._rows[key]

    def disable(self, key: Key) -> None:
        """Measure this site no more."""
        self._rows[key] = UNMEASURED


def _kind(kind: str) -> Kind:
    return kind  # pyright: ignore[reportReturnType]  # keys are built from literals
