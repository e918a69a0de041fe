"""A token and a proxy between the browser and the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..proxying import Proxy

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TOKEN = "correct horse"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """One that keeps its path, so that all that lies outside of it is missing."""
    proxy = Proxy(path="/user/x/runs", strips=False)
    yield proxy
    proxy.stop()


def test_the_token_is_asked_for_once_also_behind_a_proxy(
    proxy: Proxy, visit: Callable, start: Callable, broken_job: Path
) -> None:
    settings = {"prefix": "/user/x/runs", "origins": [f"127.0.0.1:{proxy.port}"]}
    server = start(broken_job.parent, token=TOKEN, **settings)
    port = int(server.address.split(":")[2].partition("/")[0])
    proxy.target = f"http://127.0.0.1:{port}"
    page = visit(proxy.address)

    page.page.goto(f"{proxy.address}?run=broken&page=map&step=7&theme=dark")
    page.page.get_by_label("Token of this viewer").fill(TOKEN)
    page.page.keyboard.press("Enter")
    page.settle()
    assert page.page.url.startswith(f"{proxy.address}?run=broken&page=map&theme=dark")
    page.page.get_by_title("All runs").click()
    page.page.get_by_role("link", name="gpt-small").click()
    page.sees("What is wrong")
    assert TOKEN.split()[0] not in page.page.content()

    server.stop()
    start(broken_job.parent, port=port, token=TOKEN + " battery", **settings)
    page.page.get_by_label("Token of this viewer").wait_for()
    page.page.goto(f"{proxy.address}?run=broken&token=correct%20horse%20battery&page=map")
    page.settle()
    assert page.page.url.startswith(f"{proxy.address}?run=broken&page=map&")
    assert "token" not in page.page.url
    # While there was no server the proxy said so.
    page.errors = [error for error in page.errors if "502 (Bad Gateway)" not in error]


def test_a_page_of_an_unknown_host_says_which_flag_lets_it_in(
    browser: Browser, start: Callable, broken_job: Path, proxy: Proxy
) -> None:
    server = start(broken_job, prefix="/user/x/runs")
    proxy.target = server.address.removesuffix("/user/x/runs/")
    page = browser.new_page()

    page.goto(proxy.address)
    told = page.get_by_role("alert").text_content()
    page.close()

    assert told == (
        f"The viewer does not answer pages of 127.0.0.1:{proxy.port}. "
        f"If you reach it so, start it with --allow-origin 127.0.0.1:{proxy.port}"
    )
