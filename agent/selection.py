"""Which names are observed: patterns that apply to every kind alike."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from ..sketch.errors import SettingError


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
            for pattern in patterns:
                if not any(pattern.search(name) for name in known):
                    near = get_close_matches(pattern.pattern, known, n=3, cutoff=0.3) or known[:3]
                    warnings.warn(
                        f"{option}={pattern.pattern!r} matches no module or parameter; "
                        f"near names are {', '.join(near)}.",
                        RankscopeWarning,
                        stacklevel=4,
                    )


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
