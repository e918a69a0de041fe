"""Links of the pages that are not on the site; `make docs` follows those of the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import ROOT

ABOVE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]


@pytest.mark.parametrize("page", ABOVE, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", page.read_text("utf-8")):
        file = page.parent / target if target else page

        assert file.exists(), target
        assert not anchor or anchor in anchors_of(file), f"{target}#{anchor}"


def anchors_of(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
