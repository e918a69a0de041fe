"""Named arrays in a file of safetensors: nothing in it is run when it is read."""

from __future__ import annotations

import os

import numpy as np

from ....sketch.errors import SettingError
from ...toolkit.extras import imported
from ...toolkit.files import checked, metadata_of, opened, writing
from .named import NamedArrays


def save(arrays: NamedArrays, path: str | os.PathLike[str]) -> None:
    """Write arrays to a file, with their kind; any reader of safetensors can read them.

    Args:
        arrays: what is written.
        path: ends in .safetensors.

    Raises:
        ImportError: safetensors is not installed.
        SettingError: the path ends in something else, a name is no text or `__metadata__`, the
            format has not the dtype, or an array lies on devices of several processes.
        OSError: the file cannot be written, as where there is no such folder.
    """
    files = imported("safetensors.numpy", "Saving tensors")
    path = checked(path, arrays)
    for name, array in arrays.items():
        if not array.is_fully_addressable:
            raise SettingError(
                f"{name} lies on devices of several processes, of which a file would have a part; "
                "gather it first, by jax.experimental.multihost_utils.process_allgather."
            )
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with writing(path):
        files.save_file(whole, path, metadata=metadata_of(arrays.kind, arrays))


def load(path: str | os.PathLike[str]) -> NamedArrays:
    """Read arrays from a file that `save` wrote, or from any other file of safetensors.

    Raises:
        ImportError: safetensors is not installed.
        SettingError: it is no such file, or has pieces that the ranks of a torch job held.
        OSError: the file cannot be read.
    """
    with opened(path, "flax") as (arrays, words):
        places = words.get("places", {})
        pieces = [name for name in places if places[name].get("placement")]
        if pieces:
            raise ValueError(f"{pieces[0]} is the piece that one rank held")
        return NamedArrays(arrays, kind=str(words.get("kind", "")))
