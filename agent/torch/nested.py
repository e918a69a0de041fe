"""The tensors inside whatever a module returns, each with its element path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

MAX_DEPTH = 8
MAX_TENSORS = 256


def tensors_in(value: Any) -> list[tuple[str, torch.Tensor]]:
    """(path, tensor) of each tensor in a tuple, list, mapping or dataclass, nested as it may be.

    The path of a lone tensor is empty; else it is dotted, as in `1.hidden`. None, numbers and
    whatever else is passed over, as is what lies deeper than `MAX_DEPTH`, or beyond `MAX_TENSORS`.
    """
    found: list[tuple[str, torch.Tensor]] = []
    _gather(value, "", MAX_DEPTH, found)
    return found


# It is compiled with the model, and torch 2.14 and 2.15 fail at `yield from`.
def _gather(value: Any, path: str, depth: int, into: list[tuple[str, torch.Tensor]]) -> None:
    if isinstance(value, torch.Tensor):
        into.append((path, value))
    elif depth:
        for key, element in _elements(value):
            if len(into) >= MAX_TENSORS:
                return
            _gather(element, f"{path}.{key}" if path else str(key), depth - 1, into)


def _elements(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, tuple | list):
        return zip(getattr(value, "_fields", range(len(value))), value, strict=True)
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    return ()
