"""How an observed thing is written in one word, for people and patterns."""

from __future__ import annotations

from collections.abc import Sequence

OF_VALUES = "values"
"""The slot of a sparse gradient: of its values, which say not where they are."""
FOR_BACKWARD = "backward"
"""The slot of an unsharded weight that was gathered once more, for the backward."""


def site_label(kind: str, name: str, slot: str = "", occurrence: int = 0) -> str:
    """The unique name of a site within its run, as `activation:blocks.0.mlp[1]#2`."""
    slot = f"[{slot}]" if slot else ""
    call = f"#{occurrence}" if occurrence else ""
    return f"{kind}:{name}{slot}{call}"


def rank_words(ranks: Sequence[int], most: int = 16) -> str:
    """Some ranks in words, of many the first."""
    numbers = ", ".join(map(str, ranks[:most])) + (", …" if len(ranks) > most else "")
    return f"rank{'s' * (len(ranks) > 1)} {numbers}"


def more_words(others: Sequence[object]) -> str:
    """What follows the first of several where that alone is named; nothing if there is one."""
    return f" (and {len(others)} more)" if others else ""
