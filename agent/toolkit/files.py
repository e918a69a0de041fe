"""Named tensors in a file of safetensors: nothing in it is run when it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...sketch.errors import SettingError
from .extras import imported

ENDING = ".safetensors"
RESERVED = "__metadata__"
"""The name under which the format itself keeps what is no tensor."""
KEY = "rankscope"
"""Under which the file's metadata has, as JSON, what is no tensor."""


def checked(path: str | os.PathLike[str], names: Iterable[object]) -> str:
    """The path of a file to write, whose name says what it will be.

    Args:
        path: of the file.
        names: of the tensors that it will hold.

    Raises:
        SettingError: it ends in something else, or a name cannot be written.
        FileNotFoundError: its folder does not exist.
    """
    if Path(path).suffix != ENDING:
        raise SettingError(f"Tensors are saved as {ENDING}, got {Path(path).name!r}.")
    for name in names:
        if not isinstance(name, str) or name == RESERVED:
            raise SettingError(
                f"Tensors are saved under names that are text, and not {RESERVED}, which the "
                f"format has for itself; got {name!r}: save it under another."
            )
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {Path(path).parent} to save {Path(path).name} in; make it first."
        )
    return str(path)


@contextmanager
def writing(path: str) -> Generator[None]:
    """A block that has safetensors write a file.

    Raises:
        SettingError: a file cannot hold what it was given, as numbers of some dtype.
        OSError: the file cannot be written.
    """
    error_of_package = imported("safetensors", "Saving tensors").SafetensorError
    try:
        yield
    except KeyError as error:
        raise SettingError(f"Files of safetensors hold no {error.args[0]}; convert it.") from None
    except error_of_package as error:
        if "I/O error" in str(error):
            raise OSError(f"{path} cannot be written: {error}.") from None
        raise SettingError(f"{path} cannot hold these tensors: {error}.") from None


def metadata_of(kind: str, names: Iterable[str], **more: Any) -> dict[str, str]:
    """The metadata of a file: what the tensors are, and in which order."""
    return {KEY: json.dumps({"kind": kind, "order": list(names), **more})}


@contextmanager
def opened(
    path: str | os.PathLike[str], framework: str, device: str = "cpu"
) -> Generator[tuple[dict[str, Any], dict[str, Any]]]:
    """The tensors of a file by name, in their order, and what its metadata says of them.

    Args:
        path: of any file of safetensors.
        framework: as safetensors calls it: what the tensors are made by.
        device: where they are made.

    Raises:
        ImportError: safetensors is not installed.
        SettingError: it is no such file, or what is read from it within the block is not right.
        OSError: the file cannot be read.
    """
    package = imported("safetensors", "Loading tensors")
    try:
        with package.safe_open(str(path), framework=framework, device=device) as file:
            words = _words((file.metadata() or {}).get(KEY, "{}"))
            names = words.get("order", file.keys())
            yield {name: file.get_tensor(name) for name in names}, words
    except (package.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise SettingError(f"{Path(path)} is no file of named tensors: {error}.") from None


def _words(text: str) -> dict[str, Any]:
    words = json.loads(text)
    if not isinstance(words, dict):
        raise ValueError(f"its metadata is {type(words).__name__}")
    return words
