"""What all tests share."""

import gc
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import settings

# A law that holds slowly still holds: how long an example takes is the machine's affair.
settings.register_profile("rankscope", deadline=None)
settings.load_profile("rankscope")

HERE = Path(__file__).parent
COMPUTE = "rules/test_bench.py", "viewer/browser", "end_to_end", "examples", "agent"
WAIT = "chaos", "relay", "object_store"
"""What takes longest, which is begun first: where files run side by side none is left for last. In
turns, so that those that compute run beside those that wait for processes and time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files, and leave the tests of each in their order."""
    files = list(dict.fromkeys(map(_file_of, items)))
    long = [
        [file for at in some for file in files if file.startswith(at)] for some in (COMPUTE, WAIT)
    ]
    in_turns = [file for both in zip_longest(*long) for file in both if file]
    places = {file: place for place, file in enumerate(in_turns)}
    items.sort(key=lambda item: places.get(_file_of(item), len(places)))


def pytest_collection_finish() -> None:
    """Have no garbage collection go through all that was imported, some million objects."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """At the end all is gone through once more, or nanobind tells of leaks."""
    gc.unfreeze()


def _file_of(item: pytest.Item) -> str:
    """Its path in this folder."""
    return item.path.relative_to(HERE).as_posix()
