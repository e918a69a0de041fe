"""The watch: rules that judge each record of a run, on every rank.

The one rule of this room: an alert follows from records alone, and from a bounded memory of them.
It does no I/O and asks no clock, so that a stored run is judged again as it was live.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .book import RuleBook, rule_book
from .builtin import BUILT_IN
from .rule import Memory, Rule, Told, Verdict, of_rows, of_run
from .seen import Seen
from .watch import Watch

if TYPE_CHECKING:
    from .again import judge_again
    from .evidence import Evidence, Exponents, Moment
    from .explain import Finding, RankPlace, Why, why

__all__ = [
    "BUILT_IN",
    "Evidence",
    "Exponents",
    "Finding",
    "Memory",
    "Moment",
    "RankPlace",
    "Rule",
    "RuleBook",
    "Seen",
    "Told",
    "Verdict",
    "Watch",
    "Why",
    "judge_again",
    "of_rows",
    "of_run",
    "rule_book",
    "why",
]

_FOR_READERS = {
    "Evidence": "evidence",
    "Exponents": "evidence",
    "Finding": "explain",
    "Moment": "evidence",
    "RankPlace": "explain",
    "Why": "explain",
    "judge_again": "again",
    "why": "explain",
}


def __getattr__(name: str) -> Any:
    # Not imported before they are used: a collector judges, and needs no pandas.
    if name in _FOR_READERS:
        return getattr(import_module(f".{_FOR_READERS[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
