"""Servers and pages for one test each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rankscope.viewer import Server, serve

from .watching import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def server(broken_job: Path) -> Iterator[Server]:
    server = serve(broken_job)
    yield server
    server.stop()


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Starts servers for one test; its pages are closed before they stop."""
    servers: list[Server] = []

    # `Any`: what `serve` takes.
    def new(path: Path, **settings: Any) -> Server:
        servers.append(serve(path, **settings))
        return servers[-1]

    yield new
    for one in servers:
        one.stop()


SCREENSHOTS = Path(__file__).parents[3] / "build" / "screenshots"
"""What each page looked like at the end of its test; git ignores it."""


@pytest.fixture
def visit(
    browser: Browser,
    server: Server,
    start: Callable[..., Server],
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., Visit]]:
    """Opens pages; at the end none has asked elsewhere and none has failed."""
    visits: list[Visit] = []

    def new(address: str = server.address, size: tuple[int, int] = (1400, 1100)) -> Visit:
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        visits.append(Visit(page, address))
        return visits[-1]

    yield new
    for number, one in enumerate(visits):
        if not one.page.is_closed():
            one.page.screenshot(path=SCREENSHOTS / f"{request.node.name}-{number}.png")
            one.page.close()
    assert [url for one in visits for url in one.foreign] == []
    assert [error for one in visits for error in one.errors] == []
