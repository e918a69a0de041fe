"""The sites of a map by module: a tree of their names, parts of which are folded into one row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import log
from urllib.parse import quote, unquote

from . import words
from .grid import Grid, row_name

GOOD_ROWS = 100
"""Rows that are told apart and hit with the mouse: 4 pixels each of the tallest frame."""
DEEPEST = 16
"""Dots of a name that part modules."""
MOST_APART, MOST_LENGTH = 24, 1000
"""Modules that may differ from the rest, and characters of what the address says of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Module:
    """A module, or the root of all: what has its name, or one that begins with it and a dot."""

    path: str
    """As "layers.11"; empty: the root."""
    depth: int
    """Words in the path."""
    parts: list[Module | str] = field(default_factory=list["Module | str"])
    """Modules inside, and labels of sites of its own, in the order of execution."""
    sites: list[str] = field(default_factory=list[str])
    """Labels of all sites in it, in the order in which its parts hold them."""

    @property
    def modules(self) -> list[Module]:
        """The parts that can be folded: they stand for more than one site."""
        return [part for part in self.parts if isinstance(part, Module) and len(part.sites) > 1]

    @property
    def is_wrapper(self) -> bool:
        """Whether it holds a module that can be folded, and nothing else."""
        return len(self.parts) == len(self.modules) == 1


def tree_of(names: Mapping[str, str]) -> Module:
    """The root of the modules of some sites.

    Args:
        names: by label the name, in the order of execution. A module stands where its first site
            does, and all of its sites with it.
    """
    root = Module(path="", depth=0)
    known = {"": root}
    for label, name in names.items():
        above = root
        words_ = name.split(".", DEEPEST)
        for path in accumulate(words_, lambda one, other: f"{one}.{other}"):
            if path not in known:
                known[path] = Module(path=path, depth=above.depth + 1)
                above.parts.append(known[path])
            above = known[path]
        above.parts.append(label)
    _collect(root)
    return root


def _collect(module: Module) -> list[str]:
    for part in module.parts:
        module.sites.extend([part] if isinstance(part, str) else _collect(part))
    return module.sites


@dataclass(frozen=True, slots=True, kw_only=True)
class Folding:
    """Which modules are folded: those from a depth on, but for some."""

    depth: int | None = None
    """Modules with as many words in their path, or more, are folded; 0: none; None: as fits."""
    apart: tuple[str, ...] = ()
    """Paths of those that are not as the depth says; the one that was touched last comes last."""

    def folds(self, module: Module) -> bool:
        """Whether a module is folded."""
        return (0 < (self.depth or 0) <= module.depth) != (module.path in self.apart)

    def touched(self, module: Module) -> Folding:
        """The folding in which that module is the other way.

        What is inside one that is folded is as the depth says when it is unfolded again; what holds
        nothing but one module is unfolded with it.
        """
        within = f"{module.path}."
        if self.folds(module):
            turned = replace(self, apart=self._turned(module))
            inner = module
            while inner.is_wrapper:
                inner = inner.modules[0]
                if turned.folds(inner):
                    return turned.touched(inner)
            return turned
        kept = tuple(path for path in self.apart if not path.startswith(within))
        return replace(self, apart=replace(self, apart=kept)._turned(module))

    def _turned(self, module: Module) -> tuple[str, ...]:
        if module.path in self.apart:
            return tuple(path for path in self.apart if path != module.path)
        return (*self.apart, module.path)

    def write(self) -> str:
        """As the address says it; of too many modules apart the last ones."""
        if self.depth is None:
            return ""
        apart = [quote(path, safe=":.[]/") for path in self.apart[-MOST_APART:]]
        while sum(map(len, apart)) + len(apart) > MOST_LENGTH:
            apart.pop(0)
        return ",".join([str(self.depth), *apart])

    @classmethod
    def read(cls, text: str) -> Folding:
        """What `write` wrote.

        Raises:
            ValueError: it did not.
        """
        if not text:
            return cls()
        depth, *apart = text.split(",")
        if not depth.isdecimal() or len(depth) > 3:
            raise ValueError(text)
        return cls(depth=int(depth), apart=tuple(map(unquote, apart[-MOST_APART:])))


def in_words(text: str) -> str:
    """A folding that is no choice of a menu, in words."""
    folding = Folding.read(text)
    apart = f", {len(folding.apart)} apart" if folding.apart else ""
    return f"{f'depth {folding.depth}' if folding.depth else 'all sites'}{apart}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """What is one row of the map: a site, or a module that is folded."""

    sites: list[str]
    module: Module | None = None
    """None: a site."""

    @property
    def name(self) -> str:
        """What is written beside it."""
        if self.module is None:
            return row_name(self.sites)
        return f"{self.module.path} · {words.count(len(self.sites), 'site')}"


def rows_of(module: Module, folding: Folding) -> Iterator[Row]:
    """The rows of what is in a module, from top to bottom."""
    for part in module.parts:
        if isinstance(part, str):
            yield Row(sites=[part])
        elif len(part.sites) == 1:
            yield Row(sites=part.sites)
        elif folding.folds(part):
            yield Row(sites=part.sites, module=part)
        else:
            yield from rows_of(part, folding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """All modules folded to a depth."""

    depth: int
    rows: int
    example: str
    """The first of the largest modules that are folded."""


def levels_of(root: Module) -> list[Level]:
    """The depths that differ, the deepest first, after the one in which nothing is folded."""
    found = [Level(depth=0, rows=len(root.sites), example="")]
    for depth in range(_deepest(root), 0, -1):
        rows = list(rows_of(root, Folding(depth=depth)))
        if len(rows) < found[-1].rows:
            widest = max(rows, key=lambda row: len(row.sites))
            path = widest.module.path if widest.module else ""
            found.append(Level(depth=depth, rows=len(rows), example=path))
    return found


def _deepest(module: Module) -> int:
    return max((_deepest(inner) for inner in module.modules), default=module.depth)


def fitting(levels: Iterable[Level]) -> int:
    """The depth whose number of rows is nearest to what a frame shows well, as a ratio."""
    return min(levels, key=lambda level: abs(log(max(level.rows, 1) / GOOD_ROWS))).depth


def named(grid: Grid, rows: Sequence[Row], before: Grid | None = None) -> Grid:
    """The grid with the names of these rows; the store may have taken neighbours together.

    Args:
        grid: what the store answered.
        rows: what it was asked for.
        before: what it answered before, of the same rows; None where they are others.
    """
    if before is not None and before.row_sites == grid.row_sites:
        return replace(grid, names=before.names, said=before.said)
    first = {row.sites[0]: row for row in rows}
    held = [[first[label] for label in sites if label in first] for sites in grid.row_sites]
    return replace(
        grid,
        names=[
            some[0].name + (f" +{len(some) - 1}" if len(some) > 1 else "") for some in held
        ],
        said=[_said(some, sites) for some, sites in zip(held, grid.row_sites, strict=True)],
    )  # fmt: skip


def _said(rows: Sequence[Row], sites: Sequence[str]) -> str:
    kind = sites[0].partition(":")[0].replace("_", " ")
    if len(rows) == 1:
        return f"{rows[0].name} ({kind})"
    more = words.count(len(rows) - 1, "more row")
    return f"{rows[0].name} and {more}, {words.count(len(sites), 'site')} in all ({kind})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """A module beside its rows."""

    path: str
    sites: int
    first: int
    """Its first row."""
    stop: int
    """The row after its last one."""
    level: int
    """How many brackets are left of it."""
    folded: bool


def brackets_of(
    root: Module, folding: Folding, row_sites: Sequence[Sequence[str]]
) -> list[Bracket]:
    """The modules that can be folded or unfolded, each before what it holds.

    Args:
        row_sites: the labels in each row, as they are shown.
    """
    place = {label: row for row, sites in enumerate(row_sites) for label in sites}
    return list(_brackets(root, folding, place, level=0))


def _brackets(
    module: Module, folding: Folding, place: Mapping[str, int], *, level: int
) -> Iterator[Bracket]:
    for inner in module.modules:
        folded = folding.folds(inner)
        shown = folded or not inner.is_wrapper
        if shown:
            rows = [place[label] for label in (inner.sites[0], inner.sites[-1])]
            yield Bracket(
                path=inner.path, sites=len(inner.sites), first=rows[0], stop=rows[1] + 1,
                level=level, folded=folded,
            )  # fmt: skip
        if not folded:
            yield from _brackets(inner, folding, place, level=level + shown)


def module_at(root: Module, path: str) -> Module | None:
    """The module of that path, if it can be folded."""
    for inner in root.modules:
        if path == inner.path:
            return inner
        if path.startswith(f"{inner.path}."):
            return module_at(inner, path)
    return None


def path_to(root: Module, site: str) -> list[Module]:
    """The modules that hold a site and can be folded, the outermost first."""
    inside = next((inner for inner in root.modules if site in inner.sites), None)
    return [] if inside is None else [inside, *path_to(inside, site)]
