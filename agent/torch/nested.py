"""The tensors inside whatever a module returns, each with its element path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

MAX_DEPTH = 8
MAX_TENSORS = 256


def tensors_in(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(path, tensor) of each tensor in a tuple, list, mapping or dataclass, nested as it may be.

    The path of a lone tensor is empty; else it is dotted, as in `1.hidden`. None, numbers and
    whatever else is passed over, as is what lies deeper than `MAX_DEPTH`.
    """
    if isinstance(value, torch.Tensor):
        yield "", value
    else:
        for count, found in enumerate(_walk(value, "", MAX_DEPTH)):
            if count >= MAX_TENSORS:
                return
            yield found


def _walk(value: Any, path: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth:
        for key, element in _elements(value):
            yield from _walk(element, f"{path}.{key}" if path else str(key), depth - 1)


def _elements(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        yield from zip(names, value, strict=True)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name, None)) for field in fields(value))
