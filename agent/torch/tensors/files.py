"""Named tensors in a file of safetensors: nothing in it is run when it is read."""

from __future__ import annotations

import os

import torch

from ...toolkit.extras import imported
from ...toolkit.files import checked, metadata_of, opened, writing
from .named import NamedTensors
from .places import place_as_words, place_of_words


def save(tensors: NamedTensors, path: str | os.PathLike[str]) -> None:
    """Write tensors to a file, with their kind, and how each relates to the whole.

    Any reader of safetensors can read the tensors; on several ranks give each its own path.

    Args:
        tensors: what is written.
        path: ends in .safetensors.

    Raises:
        ImportError: safetensors is not installed.
        SettingError: the path ends in something else, a name is no text or `__metadata__`, or the
            format has not the dtype.
        OSError: the file cannot be written, as where there is no such folder.
    """
    imported("safetensors", "Saving tensors")
    files = imported("safetensors.torch", "Saving tensors")
    path = checked(path, tensors)
    places = {name: place_as_words(place) for name, place in tensors.places.items()}
    # It refuses tensors that share memory, and strided ones.
    whole = {
        name: tensor.clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    metadata = metadata_of(tensors.kind, tensors, places=places)
    with writing(path):
        files.save_file(whole, path, metadata=metadata)


def load(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> NamedTensors:
    """Read tensors from a file that `save` wrote, or from any other file of safetensors.

    Raises:
        ImportError: safetensors is not installed.
        SettingError: it is no such file.
        OSError: the file cannot be read.
    """
    with opened(path, "pt", str(device)) as (tensors, words):
        places = {name: place_of_words(words["places"][name]) for name in words.get("places", ())}
        return NamedTensors(tensors, kind=str(words.get("kind", "")), places=places)
