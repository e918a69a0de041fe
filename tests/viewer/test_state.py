"""The address says what is looked at, and nothing else is needed to look again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.viewer.state import KEYS, Choice

text = st.text(max_size=20)
steps = st.none() | st.integers(-(2**53), 2**53)
zooms = st.none() | st.tuples(st.integers(0, 99), st.integers(100, 999)).map(
    lambda ends: (float(ends[0]), float(ends[1]))
)


lines = st.text(st.characters(exclude_characters="\n"), min_size=1, max_size=20)


@given(
    text, text, steps, zooms, st.sampled_from(["", "log2", "linear"]), st.lists(lines, max_size=4),
)  # fmt: skip
def test_an_address_restores_the_choice(
    site: str,
    pattern: str,
    step: int | None,
    zoom: tuple[float, float] | None,
    scale: str,
    beside: list[str],
) -> None:
    choice = Choice(site=site, pattern=pattern, step=step, zoom=zoom, scale=scale, beside=beside)

    again, problems = Choice.from_query(choice.query())

    assert problems == []
    assert all(getattr(again, name) == getattr(choice, name) for name in KEYS)


def test_defaults_do_not_lengthen_the_address() -> None:
    assert Choice().query() == {}


def test_what_cannot_be_used_is_told_and_left_out() -> None:
    choice, problems = Choice.from_query({"step": "forty", "zoom": "9:2", "kind": "weight"})

    assert (choice.step, choice.zoom, choice.kind) == (None, None, "weight")
    assert problems == [
        "The address says step=forty, which cannot be used.",
        "The address says zoom=9:2, which cannot be used.",
    ]


@pytest.mark.parametrize("asked", ["step=1e30", f"step={2**63}", "zoom=0:inf", "zoom=-1e300:4"])
def test_a_step_that_no_run_can_have_is_told_and_left_out(asked: str) -> None:
    key, _, value = asked.partition("=")

    choice, problems = Choice.from_query({key: value})

    assert (choice.step, choice.zoom) == (None, None)
    assert problems == [f"The address says {asked}, which cannot be used."]
