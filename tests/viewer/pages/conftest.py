"""Pages without a browser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rankscope.store import open_run
from rankscope.viewer.follow import Follower
from rankscope.viewer.pages import Page, Visited
from rankscope.viewer.session import Others, Session
from rankscope.viewer.state import Choice
from rankscope.viewer.views import CONTENTS

NOW = 1_760_000_000.0 + 75


@pytest.fixture
def open_pages() -> Callable[..., Visited]:
    """Opens a run as a browser would, at what is chosen."""

    def open_(path: Path, *, beside: Path | Sequence[Path] = (), **chosen: object) -> Visited:
        others = [beside] if isinstance(beside, Path) else beside
        followers = {one.name: Follower(open_run(one)) for one in (path, *others)}
        found = Others(names=lambda: list(followers), find=followers.get) if beside else None
        session = Session(followers[path.name], Choice(**chosen), now=lambda: NOW, others=found)
        return Visited(session, {entry.name: entry.model for entry in CONTENTS})

    return open_


@pytest.fixture
def open_page(open_pages: Callable[..., Visited]) -> Callable[..., Page]:
    """Opens a run on one page, by default the Map; the page's model."""

    def open_(path: Path, *, page: str = "map", **chosen: object) -> Page:
        return open_pages(path, page=page, **chosen).page

    return open_
