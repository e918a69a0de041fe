"""What a place holds, in words, for messages about one that is not what was meant."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from .objects import names_in
from .place import ObjectUrl, Place

MOST_NAMES = 5
DEFAULT_FOLDER = Path("rankscope-runs")
"""Where a collector puts runs unless it is told otherwise."""


def holds_repository(place: Place) -> bool:
    """Whether there is an Icechunk repository; creates nothing."""
    if isinstance(place, ObjectUrl):
        return {"refs/", "snapshots/"}.issubset(names_in(place))
    return (place / "refs").is_dir() and (place / "snapshots").is_dir()


def repositories_in(folder: Place) -> list[Place]:
    """The repositories directly inside a folder, by name."""
    if isinstance(folder, ObjectUrl):
        inside = [folder / name[:-1] for name in names_in(folder) if name.endswith("/")]
    else:
        inside = sorted(path for path in folder.iterdir() if path.is_dir())
    return [place for place in inside if holds_repository(place)]


def is_there(place: Place) -> bool:
    """Whether it can hold something: an object store has no folders that are not there."""
    return isinstance(place, ObjectUrl) or place.is_dir()


def is_vacant(place: Place) -> bool:
    """Whether a folder holds nothing."""
    if isinstance(place, ObjectUrl):
        return not names_in(place)
    return next(place.iterdir(), None) is None


def what_is_at(place: Place) -> str:
    """The rest of a sentence about a place that holds no run."""
    if isinstance(place, ObjectUrl):
        if is_vacant(place):
            return "holds nothing"
    elif not place.exists():
        meant = _meant(place)
        return "does not exist" if meant is None else f"does not exist, but {meant} does"
    elif not place.is_dir():
        return "is a file"
    elif is_vacant(place):
        return "is an empty folder"
    names = [inner.name for inner in repositories_in(place)]
    if names:
        more = ", …" if len(names) > MOST_NAMES else ""
        return f"is a folder of runs: {', '.join(names[:MOST_NAMES])}{more}"
    if holds_repository(place):
        return "is a run"
    if is_plain_zarr(place):
        return "is a plain Zarr store, not a run"
    return "is a folder without a run"


def _meant(place: Path) -> Path | None:
    """The run that somebody may mean who names a folder that is not there; None: there is none."""
    whole = DEFAULT_FOLDER / place
    if holds_repository(whole):
        return whole
    for folder in (place.parent, whole.parent):
        with suppress(OSError):  # it is not there, or not for us
            near = get_close_matches(place.name, [run.name for run in repositories_in(folder)], n=1)
            if near:
                return folder / near[0]
    return None


def is_plain_zarr(place: Place) -> bool:
    """Whether Zarr's own metadata lies there."""
    names = ("zarr.json", ".zgroup", ".zarray")
    if isinstance(place, ObjectUrl):
        return not set(names).isdisjoint(names_in(place))
    return any((place / name).exists() for name in names)
