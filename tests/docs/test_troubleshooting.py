"""The messages on the page of troubleshooting are those that the code has."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from .pages import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
MESSAGES = re.findall(r"^> (.*)$", PAGE.read_text(encoding="utf-8"), re.M)
NO_CODE = {"benchmarks", "build", "deploy", "docs", "tests"}
SHORT = 6
"""Fixed parts of fewer characters say nothing."""


@cache
def strings() -> list[str]:
    """All texts in the code, with a mark where something is put in."""
    files = [file for file in ROOT.rglob("*.py") if is_ours(file.relative_to(ROOT).parts)]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    return [text_of(node) for tree in trees for node in ast.walk(tree) if is_text(node)]


def is_ours(parts: tuple[str, ...]) -> bool:
    return parts[0] not in NO_CODE and not parts[0].startswith(".")


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else "\0"


@pytest.mark.parametrize("message", MESSAGES)
def test_each_message_is_one_of_the_code(message: str) -> None:
    # Sentences are put together at colons and semicolons.
    parts = [part.strip(" .") for part in re.split("[…:;]", message)]
    long = [part for part in parts if len(part) >= SHORT]

    assert long, "nothing of it is fixed"
    assert [part for part in long if not any(part in text for text in strings())] == []


def test_no_message_is_there_twice() -> None:
    assert len(MESSAGES) > 60
    assert len(set(MESSAGES)) == len(MESSAGES)
