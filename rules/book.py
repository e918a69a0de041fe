"""Which rules a run is judged by: those that are built in, those of installed packages, settings.

Settings are a TOML file:

    mute = ["nonfinite activation:.*mask"]

    [rules.underflow]
    threshold = 0.4
    severity = "notice"

    [rules.loss-spike]
    off = true

    [agents]
    severity = "warning"
    steps = 16

    [[quantities]]
    quantity = "rank_me"
    of = "blocks"
    below = 8
    severity = "notice"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from ..sketch.errors import SettingError
from ..store.incidents import SEVERITIES
from .bounds import BOUNDS, Bound, Side
from .builtin import BUILT_IN
from .exact import EXACT
from .rule import Rule, Severity

GROUP = "rankscope.rules"
"""Entry points of this group are rules, or sequences of rules, of installed packages."""
NUMBERS = "threshold", "clear", "records", "calm"
"""What can be set of a rule, beside its severity and whether it is off."""
MOST_STEPS = 64
"""In more steps than these agents are not asked to look closer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closer:
    """When the agents of a job look closer because of an alert, and how."""

    severity: Severity = "error"
    """Of the alerts that make them, at least."""
    steps: int = 8
    """In so many steps all sites are sketched, whatever schedules say; 0: never. A job that has a
    budget for its agents is not asked for this."""
    ring: bool = True
    """Whether all ranks send the steps that their rings keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleBook:
    """The rules of a collector, what is not told, and when agents look closer."""

    rules: Sequence[Rule] = BUILT_IN
    mute: Sequence[re.Pattern[str]] = field(default=())
    """Searched for in a rule's name, a space and a site's label."""
    closer: Closer = field(default_factory=Closer)
    bounds: Sequence[Bound] = BOUNDS
    """Of derived quantities."""

    def is_muted(self, rule: str, site: str) -> bool:
        """Whether nothing is told of a rule at a site."""
        return any(pattern.search(f"{rule} {site}") for pattern in self.mute)


def rule_book(settings: str | Path | None = None) -> RuleBook:
    """All rules, as a TOML file says; without one as they are.

    Raises:
        SettingError: the file cannot be read, or says what cannot be; the message lists near names.
    """
    rules = {rule.name: rule for rule in (*BUILT_IN, *installed())}
    if settings is None:
        return RuleBook(rules=tuple(rules.values()))
    said = _read(Path(settings))
    _check_names(said, ("mute", "rules", "agents", "quantities"), f"{settings}")
    for name, wanted in said.get("rules", {}).items():
        exact = [rule.name for rule in EXACT]
        _check_names({name: None}, (*rules, *exact), f"{settings}, [rules]")
        if name in exact:
            raise SettingError(f"{settings}: rule {name} is exact; it can only be muted.")
        rule = _changed(rules[name], wanted, f"{settings}, [rules.{name}]")
        if rule is None:
            del rules[name]
        else:
            rules[name] = rule
    mute = [_pattern(one, f"{settings}: mute") for one in said.get("mute", [])]
    closer = _closer(said.get("agents", {}), f"{settings}, [agents]")
    bounds = _bounds(said.get("quantities", []), settings)
    return RuleBook(rules=tuple(rules.values()), mute=mute, closer=closer, bounds=bounds)


def installed() -> list[Rule]:
    """The rules of installed packages.

    Raises:
        SettingError: one of them cannot be loaded, or is none.
    """
    found = list[Rule]()
    for entry in entry_points(group=GROUP):
        try:
            loaded: Any = entry.load()
        except Exception as error:  # whatever another package's module raises
            raise SettingError(f"Rules of {entry.value} cannot be loaded: {error!r}") from error
        for one in loaded if isinstance(loaded, Sequence) else [loaded]:
            if not isinstance(one, Rule):
                raise SettingError(f"{entry.value} holds {one!r}, no rankscope.rules.Rule.")
            found.append(one)
    return found


def _read(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise SettingError(f"Rules cannot be read from {file}: {error.strerror}.") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{file} is no TOML: {error}") from error


def _check_names(said: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for name in said:
        if name not in known:
            near = get_close_matches(name, known, n=3, cutoff=0.4) or known
            raise SettingError(f"{where}: there is no {name!r}; there are {', '.join(near)}.")


def _changed(rule: Rule, wanted: Any, where: str) -> Rule | None:
    """The rule as it is wanted; None where it is off."""
    _check_names(_table(wanted, where), (*NUMBERS, "severity", "off"), where)
    if wanted.get("off", False):
        return None
    severity = _severity(wanted.get("severity", rule.severity), where)
    numbers = {name: wanted[name] for name in NUMBERS if name in wanted}
    for name, number in numbers.items():
        least = 1 if name in ("records", "calm") else None
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if not (is_whole if least else is_whole or isinstance(number, float)):
            raise SettingError(f"{where}: {name} is a number, got {number!r}.")
        if least is not None and number < least:
            raise SettingError(f"{where}: {name} is at least {least}, got {number!r}.")
    if "threshold" in numbers and "clear" not in numbers:
        numbers["clear"] = min(rule.clear, numbers["threshold"])
    changed = replace(rule, severity=severity, **numbers)
    if changed.clear > changed.threshold:
        raise SettingError(f"{where}: clear is at most the threshold, {changed.threshold}.")
    return changed


def _closer(wanted: Any, where: str) -> Closer:
    """When agents look closer, as it is wanted."""
    usual = Closer()
    _check_names(_table(wanted, where), ("severity", "steps", "ring"), where)
    steps, ring = wanted.get("steps", usual.steps), wanted.get("ring", usual.ring)
    if not isinstance(steps, int) or isinstance(steps, bool) or not 0 <= steps <= MOST_STEPS:
        raise SettingError(f"{where}: steps is a number from 0 to {MOST_STEPS}, got {steps!r}.")
    if not isinstance(ring, bool):
        raise SettingError(f"{where}: ring is true or false, got {ring!r}.")
    severity = _severity(wanted.get("severity", usual.severity), where)
    return Closer(severity=severity, steps=steps, ring=ring)


def _bounds(wanted: Any, settings: str | Path) -> list[Bound]:
    """The bounds of quantities; what is said of one and side takes the place of a built-in one."""
    if not isinstance(wanted, list):
        raise SettingError(f"{settings}: quantities are tables, as [[quantities]].")
    bounds = {(one.quantity, one.side): one for one in BOUNDS}
    said = set[tuple[str, Side]]()
    for number, one in enumerate(cast("list[Any]", wanted), 1):
        where = f"{settings}, [[quantities]] {number}"
        bound = _bound(_table(one, where), where)
        key = bound.quantity, bound.side
        if key in said:
            raise SettingError(f"{where}: {bound.quantity} has a bound {bound.side} it already.")
        said.add(key)
        bounds[key] = bound
    return list(bounds.values())


def _bound(said: Mapping[str, Any], where: str) -> Bound:
    _check_names(said, ("quantity", "of", "above", "below", "severity", "records"), where)
    quantity, records = said.get("quantity"), said.get("records", 1)
    sides: list[Side] = [side for side in ("above", "below") if side in said]
    if not isinstance(quantity, str) or len(sides) != 1:
        raise SettingError(f"{where}: give quantity, and one of above and below.")
    value = said[sides[0]]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingError(f"{where}: {sides[0]} is a number, got {value!r}.")
    if isinstance(records, bool) or not isinstance(records, int) or records < 1:
        raise SettingError(f"{where}: records is at least 1, got {records!r}.")
    return Bound(
        quantity=quantity,
        side=sides[0],
        value=float(value),
        of=_pattern(said.get("of", ""), f"{where}: of"),
        severity=_severity(said.get("severity", "warning"), where),
        records=records,
    )


def _table(wanted: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(wanted, dict):
        raise SettingError(f"{where}: expected a table of settings, got {wanted!r}.")
    return cast("Mapping[str, Any]", wanted)


def _severity(said: Any, where: str) -> Severity:
    if said not in SEVERITIES:
        raise SettingError(f"{where}: severity is one of {', '.join(SEVERITIES)}, got {said!r}.")
    return said


def _pattern(said: Any, where: str) -> re.Pattern[str]:
    try:
        return re.compile(said)
    except (re.error, TypeError) as error:
        raise SettingError(f"{where} holds no regular expression {said!r}: {error}") from error
