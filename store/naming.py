"""What a path holds, in words, for messages about a path that is not what was meant."""

from __future__ import annotations

from pathlib import Path

MOST_NAMES = 5


def holds_repository(path: Path) -> bool:
    """Whether there is an Icechunk repository at `path`; creates nothing."""
    return (path / "refs").is_dir() and (path / "snapshots").is_dir()


def repositories_in(folder: Path) -> list[Path]:
    """The repositories directly inside a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and holds_repository(path))


def is_vacant(path: Path) -> bool:
    """Whether a folder holds nothing."""
    return next(path.iterdir(), None) is None


def what_is_at(path: Path) -> str:
    """The rest of a sentence about a path that holds no run."""
    if not path.exists():
        return "does not exist"
    if not path.is_dir():
        return "is a file"
    if is_vacant(path):
        return "is an empty folder"
    names = [inner.name for inner in repositories_in(path)]
    if names:
        more = ", …" if len(names) > MOST_NAMES else ""
        return f"is a folder of runs: {', '.join(names[:MOST_NAMES])}{more}"
    if any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray")):
        return "is a plain Zarr store, not a run"
    return "is a folder without a run"
