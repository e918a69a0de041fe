"""Print docs/licences.md: what rankscope and its extras install, under which licence.

    python tests/release/licences.py > docs/licences.md

It reads what is installed beside it, so run it with the environment of `make .venv`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires

from installs import EXTRAS
from packaging.requirements import Requirement

HEAD = """\
# Licences

rankscope is under the Apache License 2.0. This is what it and its extras install on Linux with
CPython, made by `make licences` of {count} distributions. A CUDA build of torch or JAX brings
libraries of NVIDIA's besides. icechunk's wheel does not say its licence; its repository's is the
MIT License.
"""


def closure(name: str, extra: str = "") -> set[str]:
    """The distributions that one needs, with those that they need."""
    needed: set[str] = set()
    waiting = [(name, extra)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        for line in _requires(here[0]):
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate({"extra": here[1]}):
                needed.add(_plain(wanted.name))
                waiting += [(wanted.name, each) for each in ("", *wanted.extras)]
    return needed - {name}


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Print the page."""
    names = set[str]().union(*(closure("rankscope", extra) for extra in EXTRAS))
    table = subprocess.check_output(
        [
            *(sys.executable, "-m", "piplicenses", "--from=mixed", "--format=markdown"),
            *("--no-version", "--packages", *sorted(names)),
        ],
        text=True,
    )
    print(HEAD.format(count=len(table.splitlines()) - 2))
    # One blank on each side: the width of a column is not worth a line of difference.
    print(re.sub(r" {2,}", " ", re.sub(r"-{4,}", "---", table)), end="")


if __name__ == "__main__":
    main()
