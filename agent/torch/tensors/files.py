"""Named tensors in a file of safetensors: nothing in it is run when it is read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from ....sketch.errors import SettingError
from ...toolkit.extras import imported
from .named import NamedTensors
from .places import place_as_words, place_of_words

KEY = "rankscope"
"""Under which the file's metadata has, as JSON, what is no tensor."""


def save(tensors: NamedTensors, path: str | os.PathLike[str]) -> None:
    """Write tensors to a file, with their kind, and how each relates to the whole.

    Any reader of safetensors can read the tensors; on several ranks give each its own path.

    Raises:
        ImportError: safetensors is not installed.
        OSError: the file cannot be written.
    """
    imported("safetensors", "Saving tensors")
    files = imported("safetensors.torch", "Saving tensors")
    words = {
        "kind": tensors.kind,
        "order": list(tensors),
        "places": {name: place_as_words(place) for name, place in tensors.places.items()},
    }
    # It refuses tensors that share memory, and strided ones.
    whole = {
        name: tensor.clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    files.save_file(whole, str(path), metadata={KEY: json.dumps(words)})


def load(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> NamedTensors:
    """Read tensors from a file that `save` wrote, or from any other file of safetensors.

    Raises:
        ImportError: safetensors is not installed.
        SettingError: it is no such file.
        OSError: the file cannot be read.
    """
    package = imported("safetensors", "Loading tensors")
    try:
        with package.safe_open(str(path), framework="pt", device=str(device)) as file:
            words = _words((file.metadata() or {}).get(KEY, "{}"))
            names = words.get("order", file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
        places = {name: place_of_words(words["places"][name]) for name in words.get("places", ())}
        return NamedTensors(tensors, kind=str(words.get("kind", "")), places=places)
    except (package.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise SettingError(f"{Path(path)} is no file of named tensors: {error}.") from None


def _words(text: str) -> dict[str, Any]:
    words = json.loads(text)
    if not isinstance(words, dict):
        raise ValueError(f"its metadata is {type(words).__name__}")
    return words
