"""Which rules a run is judged by: those that are built in, those of installed packages, settings.

Of a file of settings (docs/configuration.md) these tables are meant:

    [rules]
    mute = ["nonfinite activation:.*mask"]

    [rules.underflow]
    threshold = 0.4
    severity = "notice"

    [rules.loss-spike]
    off = true

    [closer_look]
    severity = "warning"
    steps = 16

    [[bounds]]
    quantity = "rank_me"
    of = "blocks"
    below = 8
    severity = "notice"
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, cast

from msgspec import UNSET, Meta, Struct, UnsetType

from ..settings import check_names, fault_of, given, read_settings, settings_of
from ..sketch.errors import SettingError
from ..sketch.quantities import COMBINED
from .bounds import BOUNDS, Bound, Side
from .builtin import BUILT_IN
from .exact import EXACT
from .rule import Rule, Severity

GROUP = "rankscope.rules"
"""Entry points of this group are rules, or sequences of rules, of installed packages."""
Positive = Annotated[int, Meta(ge=1)]
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


class RuleSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file may say of a rule."""

    threshold: float | UnsetType = UNSET
    """Above it a record is wrong."""
    clear: float | UnsetType = UNSET
    """At most the threshold: at this a record is right again."""
    records: Positive | UnsetType = UNSET
    """After so many records in a row that are wrong it is told."""
    calm: Positive | UnsetType = UNSET
    """After so many that are right it is over."""
    severity: Severity | UnsetType = UNSET
    """How bad it is."""
    off: bool = False
    """Whether the rule judges nothing."""


class CloserSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When agents look closer because of an alert, and how."""

    severity: Severity | UnsetType = UNSET
    """Of the alerts that make them, at least."""
    steps: Annotated[int, Meta(ge=0, le=MOST_STEPS)] | UnsetType = UNSET
    """In so many steps all sites are sketched, whatever schedules say."""
    ring: bool | UnsetType = UNSET
    """Whether all ranks send the steps that their rings keep."""


class BoundSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a derived quantity may be at most, or at least."""

    quantity: str
    """Its name, with its options, if it has any."""
    of: str = ""
    """Pattern of the names of modules and parameters; without it all."""
    above: float | UnsetType = UNSET
    """More than this is wrong; or give `below`."""
    below: float | UnsetType = UNSET
    """Less than this is wrong."""
    severity: Severity = "warning"
    """How bad it is."""
    records: Positive = 1
    """So many records in a row must be beyond it."""

    def __post_init__(self) -> None:
        """Refuse a bound on no side, or on both.

        Raises:
            ValueError: it is one.
        """
        if len(given(self).keys() & {"above", "below"}) != 1:
            raise ValueError("give one of above and below.")


def rule_book(settings: str | Path | None = None) -> RuleBook:
    """All rules, as a file of settings says; without one as they are.

    Raises:
        SettingError: the file cannot be read, or says what cannot be; the message lists all faults,
            and near names.
    """
    faults = list[str]()
    book = book_of({} if settings is None else read_settings(Path(settings)), f"{settings}", faults)
    if faults:
        raise SettingError("\n".join(faults))
    return book


def book_of(said: Mapping[str, Any], where: str, faults: list[str]) -> RuleBook:
    """All rules, as the tables of a file say, but for what is wrong of it.

    Args:
        said: by name of the table.
        where: what the file is called in a fault; faults are added to the list.

    Raises:
        SettingError: the rules of an installed package cannot be loaded.
    """
    rules, mute = _rules(said.get("rules", {}), f"{where}, [rules]", faults)
    closer = settings_of(
        said.get("closer_look", {}), CloserSettings, f"{where}, [closer_look]", faults
    )
    return RuleBook(
        rules=rules,
        mute=mute,
        closer=Closer() if closer is None else replace(Closer(), **given(closer)),
        bounds=_bounds(said.get("bounds", []), where, faults),
    )


@cache
def known_rules() -> Mapping[str, Rule]:
    """By name all rules and bounds that are there without settings."""
    theirs = list[Rule]()
    with suppress(SettingError):  # of a package whose rules cannot be loaded nothing is said
        theirs = installed()
    bounds = (bound.rule for bound in BOUNDS)
    return {rule.name: rule for rule in (*EXACT, *BUILT_IN, *bounds, *theirs)}


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


def _rules(
    said: Any, where: str, faults: list[str]
) -> tuple[Sequence[Rule], Sequence[re.Pattern[str]]]:
    """The rules as they are wanted, and what is not told."""
    rules = {rule.name: rule for rule in (*BUILT_IN, *installed())}
    exact = [rule.name for rule in EXACT]
    if not isinstance(said, dict):
        faults.append(f"{where} is a table of settings, got {said!r}.")
        return tuple(rules.values()), ()
    changes = dict(cast("dict[str, Any]", said))
    mute = changes.pop("mute", [])
    check_names(changes, ("mute", *rules, *exact), where, faults)
    for name in exact:
        if name in changes:
            faults.append(f"{where}: {name} is exact; it can only be muted.")
    for name in changes.keys() & rules.keys():
        place = f"{where[:-1]}.{name}]"
        wanted = settings_of(changes[name], RuleSettings, place, faults)
        if wanted is not None:
            rules[name] = _changed(rules[name], wanted, place, faults)
    off = {name for name in changes if isinstance(changes[name], dict) and changes[name].get("off")}
    fault = fault_of(mute, list[str])
    if fault:
        faults.append(f"{where}: mute {fault}")
        mute = []
    patterns = [_pattern(one, f"{where}: mute", faults) for one in mute]
    return tuple(rule for rule in rules.values() if rule.name not in off), patterns


def _changed(rule: Rule, wanted: RuleSettings, where: str, faults: list[str]) -> Rule:
    """The rule as it is wanted."""
    said = {name: value for name, value in given(wanted).items() if name != "off"}
    if "threshold" in said:
        said.setdefault("clear", min(rule.clear, said["threshold"]))
    changed = replace(rule, **said)
    if changed.clear > changed.threshold:
        faults.append(f"{where}: clear is at most the threshold, {changed.threshold}.")
    return changed


def _bounds(wanted: Any, where: str, faults: list[str]) -> list[Bound]:
    """The bounds of quantities; what is said of one and side takes the place of a built-in one."""
    bounds = {(one.quantity, one.side): one for one in BOUNDS}
    if not isinstance(wanted, list):
        faults.append(f"{where}: bounds are tables, as [[bounds]], got {wanted!r}.")
        return list(bounds.values())
    said = set[tuple[str, Side]]()
    for number, one in enumerate(cast("list[Any]", wanted), 1):
        place = f"{where}, [[bounds]] {number}"
        found = settings_of(one, BoundSettings, place, faults)
        if found is None:
            continue
        bound = _bound(found, place, faults)
        key = bound.quantity, bound.side
        if key in said:
            faults.append(f"{place}: {bound.quantity} has a bound {bound.side} it already.")
        said.add(key)
        bounds[key] = bound
    return list(bounds.values())


def _bound(said: BoundSettings, where: str, faults: list[str]) -> Bound:
    side: Side = "below" if said.above is UNSET else "above"
    name = _label(said.quantity)
    if name in COMBINED:
        faults.append(f"{where}: {name} cannot have a bound. {COMBINED[name].instead}")
    elif not name:
        faults.append(
            f"{where}: quantity is a name, with its options if it has any, as "
            f"dead_neurons(threshold=-2), got {said.quantity!r}."
        )
    return Bound(
        quantity=name,
        side=side,
        value=float(given(said)[side]),
        of=_pattern(said.of, f"{where}: of", faults),
        severity=said.severity,
        records=said.records,
    )


def _label(said: str) -> str:
    """What a run calls a quantity: its name, with the options sorted; empty: none is called so."""
    if not {*said} & {*"()"}:
        return said.strip()
    try:
        call = ast.parse(said.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        return ""
    call.keywords.sort(key=lambda one: one.arg or "")
    return ast.unparse(call)


def _pattern(said: str, where: str, faults: list[str]) -> re.Pattern[str]:
    try:
        return re.compile(said)
    except re.error as error:
        faults.append(f"{where} holds no regular expression {said!r}: {error}.")
        return re.compile("")
