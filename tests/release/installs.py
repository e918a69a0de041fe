"""Install the wheel with each extra alone, each into an environment of its own, and use it there.

    python tests/release/installs.py WHEEL [EXTRA …]

Without extras: the base, and each of them in turn; 5 minutes and 3 GB, one after the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = frozenset({"jax", "panel", "torch", "zarr"})


@dataclass(frozen=True)
class Extra:
    """What an extra is for, as lines of Python, and which of the heavy libraries it may bring."""

    use: str
    may_bring: Set[str] = frozenset()


STORED = frozenset({"zarr"})
SHOWN = STORED | {"panel"}
TRAINED = frozenset({"torch"})
EXTRAS = {
    "": Extra("import rankscope.agent, rankscope.relay, rankscope.wire, rankscope.merge"),
    "torch": Extra("import rankscope.agent.torch", TRAINED),
    "jax": Extra("import rankscope.agent.jax", frozenset({"jax"})),
    "accelerate": Extra("import accelerate, rankscope.agent.torch", TRAINED),
    "lightning": Extra("import rankscope.agent.torch.lightning", TRAINED),
    "transformers": Extra("import rankscope.agent.torch.transformers", TRAINED),
    "poptorch": Extra("import rankscope.agent.poptorch, rankscope.agent.kernel"),
    "collector": Extra("import rankscope.collector, rankscope.store, rankscope.rules", STORED),
    "parquet": Extra("import pyarrow, rankscope.store", STORED),
    "viewer": Extra("import rankscope.viewer, rankscope.viewer.report", SHOWN),
    "notebook": Extra("import ipykernel, rankscope.viewer.plots", SHOWN),
    "toolkit": Extra("import rankscope.agent.toolkit", frozenset({"panel"})),
    "prometheus": Extra("import prometheus_client, rankscope.agent"),
    "tensorboard": Extra("import tensorboard, rankscope.agent"),
    "wandb": Extra("import wandb, rankscope.agent"),
}


def install(wheel: Path, extra: str, folder: Path) -> float:
    """MiB that an extra takes beyond numpy.

    Raises:
        AssertionError: it brings what it must not, or it cannot be used.
        subprocess.CalledProcessError: it cannot be installed.
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    wanted = f"rankscope[{extra}] @ {wheel.resolve().as_uri()}" if extra else str(wheel.resolve())
    limits = ("-c", str(ROOT / "deploy" / "constraints.txt"))
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    if subprocess.run([*uv, *limits, wanted], check=False).returncode:
        subprocess.run([*pip, *limits, wanted], check=True)
    listed = json.loads(
        subprocess.check_output(
            [sys.executable, "-m", "pip", "--python", str(python), "list", "--format", "json"]
        )
    )
    there = {package["name"] for package in listed}
    brought = there & (HEAVY - EXTRAS[extra].may_bring)
    assert not brought, f"rankscope[{extra}] brings {', '.join(sorted(brought))}."
    subprocess.run([python, "-c", EXTRAS[extra].use], check=True, cwd=folder)
    subprocess.run([folder / "bin" / "rankscope", "--help"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([python, "-m", "pip", "check"], check=True, stdout=subprocess.DEVNULL)
    [packages] = folder.glob("lib/python*/site-packages")
    left_out = ("numpy", "numpy.libs", "pip", "setuptools", "pkg_resources", "_distutils_hack")
    rest = [entry for entry in packages.iterdir() if entry.name.split("-")[0] not in left_out]
    files = [file for entry in rest for file in [entry, *entry.rglob("*")] if file.is_file()]
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc") / 2**20


def main(wheel: str, *asked: str) -> None:
    """Print a line of a table for each extra."""
    print("| extra | MiB beyond numpy |\n|---|---|", flush=True)
    for extra in asked or EXTRAS:
        with tempfile.TemporaryDirectory() as folder:
            size = install(Path(wheel), extra, Path(folder) / "venv")
        print(f"| {extra or 'none'} | {size:.0f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
