"""Which names are observed, and what is counted of them: patterns that users give."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import get_args

from ..sketch.errors import SettingError
from ..sketch.exact_counts import ExactCount, exact_count_named
from ..wire.messages import Placement

PLACEMENTS: tuple[str, ...] = get_args(Placement)
ExactCounts = Mapping[str, ExactCount | str | Sequence[ExactCount | str]]
"""By pattern what is counted: exact counts, or their names, as "cast_counts:float8_e4m3fn"."""
MOST_COMPARED = 1000
"""Names among which near ones are looked for: to compare with all of a large model takes long."""


class RankscopeWarning(UserWarning):
    """Something about the observation is probably not what was meant."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A name is chosen if it matches one of `include`, or that is empty, and none of `exclude`."""

    include: tuple[re.Pattern[str], ...]
    exclude: tuple[re.Pattern[str], ...]

    @classmethod
    def of(
        cls, include: str | Sequence[str] | None, exclude: str | Sequence[str] | None
    ) -> Selection:
        """From one pattern or several, as regular expressions for `re.search`.

        Raises:
            SettingError: a pattern is not a regular expression.
        """
        return cls(_compile("include", include), _compile("exclude", exclude))

    def chooses(self, name: str) -> bool:
        """Whether the module, parameter or tap called `name` is observed."""
        included = not self.include or any(pattern.search(name) for pattern in self.include)
        return included and not any(pattern.search(name) for pattern in self.exclude)

    def warn_of_strays(self, names: Iterable[str]) -> None:
        """Warn of each pattern that is found in none of `names`, and list near ones."""
        known = list(names)
        for option, patterns in (("include", self.include), ("exclude", self.exclude)):
            _warn_of_strays(option, patterns, known, "module or parameter")


@dataclass(frozen=True, slots=True)
class Counting:
    """What is counted of which sites beside their sketches."""

    asked: tuple[tuple[re.Pattern[str], tuple[ExactCount, ...]], ...]
    """Patterns that are searched for in a site's label, and what is counted where they are found"""

    @classmethod
    def of(cls, exact_counts: ExactCounts | None) -> Counting:
        """From regular expressions and what is asked for.

        Raises:
            SettingError: a pattern is no regular expression, or what is asked for no exact count.
        """
        asked: list[tuple[re.Pattern[str], tuple[ExactCount, ...]]] = []
        for pattern, some in (exact_counts or {}).items():
            chosen = list[ExactCount]()
            for one in _exact_counts(some):
                if not isinstance(one, ExactCount):
                    raise SettingError(
                        f"exact_counts[{pattern!r}] must be FineExponents, BlockExponents or "
                        f"CastCounts, or a name as 'cast_counts:float8_e4m3fn', got {one!r}."
                    )
                chosen.append(one)
            asked += [(found, tuple(chosen)) for found in _compile("exact_counts", pattern)]
        return cls(tuple(asked))

    def of_site(self, label: str) -> tuple[ExactCount, ...]:
        """What is counted of a site, each once."""
        found = [one for pattern, some in self.asked if pattern.search(label) for one in some]
        return tuple(dict.fromkeys(found))

    def warn_of_strays(self, labels: Iterable[str]) -> None:
        """Warn of each pattern that was found in none of the sites' labels, and list near ones."""
        _warn_of_strays(
            "exact_counts", [pattern for pattern, _ in self.asked], list(labels), "site"
        )


@dataclass(frozen=True, slots=True)
class Placing:
    """What the user says of how sites relate to the whole, by a pattern in their labels."""

    said: tuple[tuple[re.Pattern[str], dict[str, Placement]], ...]

    @classmethod
    def of(cls, placements: Mapping[str, Mapping[str, Placement]] | None) -> Placing:
        """From regular expressions and placements by mesh axis.

        Raises:
            SettingError: a pattern is no regular expression, or what is said no placement.
        """
        said: list[tuple[re.Pattern[str], dict[str, Placement]]] = []
        for pattern, by_axis in (placements or {}).items():
            for axis, placement in by_axis.items():
                if placement not in PLACEMENTS:
                    raise SettingError(
                        f"placements[{pattern!r}][{axis!r}] must be one of "
                        f"{', '.join(PLACEMENTS)}, got {placement!r}."
                    )
            said += [(found, dict(by_axis)) for found in _compile("placements", pattern)]
        return cls(tuple(said))

    def check(self, axes: Sequence[str]) -> None:
        """Refuse axes that the mesh of the job has not.

        Raises:
            SettingError: there is no such axis.
        """
        for pattern, by_axis in self.said:
            for axis in by_axis:
                if axis not in axes:
                    raise SettingError(
                        f"placements[{pattern.pattern!r}] names mesh axis {axis!r}; "
                        f"this job has {', '.join(axes)}."
                    )

    def of_site(self, label: str) -> dict[str, Placement]:
        """What is said of a site; of an axis that several patterns name the last counts."""
        placed = dict[str, Placement]()
        for pattern, by_axis in self.said:
            if pattern.search(label):
                placed |= by_axis
        return placed

    def warn_of_strays(self, labels: Iterable[str]) -> None:
        """Warn of each pattern that was found in none of the sites' labels, and list near ones."""
        _warn_of_strays("placements", [pattern for pattern, _ in self.said], list(labels), "site")


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Which sites' copies may differ between ranks, and whose sums need not be kept."""

    patterns: tuple[re.Pattern[str], ...]

    @classmethod
    def of(cls, patterns: str | Sequence[str] | None) -> Unchecked:
        """From one pattern or several.

        Raises:
            SettingError: a pattern is no regular expression.
        """
        return cls(_compile("unchecked", patterns))

    def leaves(self, label: str) -> bool:
        """Whether the site with that label is left unchecked."""
        return any(pattern.search(label) for pattern in self.patterns)

    def warn_of_strays(self, labels: Iterable[str]) -> None:
        """Warn of each pattern that was found in none of the sites' labels, and list near ones."""
        _warn_of_strays("unchecked", self.patterns, list(labels), "site")


def _warn_of_strays(
    option: str, patterns: Iterable[re.Pattern[str]], known: Sequence[str], what: str
) -> None:
    for pattern in patterns:
        if not any(pattern.search(name) for name in known):
            warn_of_stray(option, pattern.pattern, known, what)


def warn_of_stray(option: str, given: str, known: Sequence[str], what: str) -> None:
    """Warn of something given that matches none of the names that there are, and list near ones."""
    some = known[:MOST_COMPARED]
    near = get_close_matches(given, some, n=3, cutoff=0.3) or some[:3]
    warnings.warn(
        f"{option}={given!r} matches no {what}; near names are {', '.join(near) or 'none'}.",
        RankscopeWarning,
        stacklevel=_level_of_caller(),
    )


def _level_of_caller() -> int:
    """The `stacklevel` of whoever called this package: the ways to here are not equally long."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("rankscope."):
        frame, level = frame.f_back, level + 1
    return level


def _compile(option: str, patterns: str | Sequence[str] | None) -> tuple[re.Pattern[str], ...]:
    if patterns is None:
        return ()
    try:
        return tuple(
            re.compile(pattern)
            for pattern in ([patterns] if isinstance(patterns, str) else patterns)
        )
    except re.error as error:
        raise SettingError(
            f"{option}={error.pattern!r} is not a regular expression: {error}."
        ) from None


def _exact_counts(
    some: ExactCount | str | Sequence[ExactCount | str],
) -> tuple[ExactCount | str, ...]:
    """Those that are meant; a name that there is not stays a name."""
    several = [some] if isinstance(some, str) or not isinstance(some, Sequence) else some
    return tuple(_exact_count(one) if isinstance(one, str) else one for one in several)


def _exact_count(name: str) -> ExactCount | str:
    try:
        return exact_count_named(name)
    except SettingError:
        return name
