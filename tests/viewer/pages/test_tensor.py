"""The page of one tensor without a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ORIGIN = "activation:blocks.2.mlp.act"


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", html)).strip()


def test_the_slider_has_a_place_for_each_recorded_step(
    new_job: Callable, open_page: Callable
) -> None:
    job = new_job(bad_step=None, every=10)
    job.commit(range(45))
    page = open_page(job.path, page="tensor", kind="activation", site=ORIGIN, step=20)
    assert (page.told.last, page.told.at) == (4, 2)
    assert plain(page.told.place) == "step 20 · 3 of 5"

    page.go_to(3)

    assert page.session.choice.step == 30
    assert page.told.at == 3
    page.go_to(99)
    assert page.session.choice.step == 30


# `Any`: bokeh's sources are untyped here.
def test_the_step_alone_is_drawn_anew_while_scrubbing(
    broken_job: Path, open_page: Callable
) -> None:
    page = open_page(broken_job, page="tensor", site=ORIGIN, step=20)
    drawn = list[str]()

    def watch(name: str, source: Any) -> None:
        source.on_change("data", lambda attr, old, new: drawn.append(name))

    watch("exponents", page.selection.exponents.bars)
    watch("training", page.training.lines.source)
    watch("ranks", page.selection.ranks.source)
    page.go_to(30)

    assert drawn == ["exponents"]
