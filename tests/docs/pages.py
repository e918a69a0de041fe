"""The pages of the documentation, and what stands in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code of a page."""

    page: str
    line: int
    """Of the first line in it."""
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```([\w{}-]*)\n(.*?)^```$", text, re.M | re.S)
    name = page.relative_to(ROOT).as_posix()
    return [
        Block(name, text[: match.start(2)].count("\n") + 1, match[1], match[2]) for match in found
    ]


def code_in_lines(page: Path) -> list[str]:
    """What stands between back ticks in a page's sentences and tables."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
    return [code.replace("\\|", "|") for code in re.findall(r"`([^`\n]+)`", text)]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
