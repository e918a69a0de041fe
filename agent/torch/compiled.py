"""Tensors of compiled code: operators that the compiled graph calls, and whom they tell.

A hook that torch.compile traces leaves such an operator in the graph. It is opaque to the compiler,
so that schedules are asked when it runs: switching them on and off compiles nothing anew. The
number of a call goes from forward to backward in a small tensor, its ticket.

A module is told apart by a number in a tensor: the compiler takes a number in Python for a
constant, and would compile each of many equal blocks, up to its limit, instead of one for all.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Protocol

import torch
from torch.fx.node import has_side_effect

from .nested import tensors_in


class Watcher(Protocol):
    """Who is told of the tensors of one module."""

    def arrives(self, kind: str, slot: str, tensor: torch.Tensor) -> int:
        """A tensor of the forward, whose memory is used again; returns the number of this call."""
        ...

    def gradient_arrives(self, slot: str, occurrence: int, gradient: torch.Tensor) -> None:
        """The gradient of an output of that call."""
        ...


_watchers: dict[int, Watcher] = {}
_numbers = count()


def watched_by(watcher: Watcher) -> torch.Tensor:
    """The token, int64 on the host, of who is told; until `forget`."""
    number = next(_numbers)
    _watchers[number] = watcher
    return torch.tensor(number)


def forget(token: torch.Tensor) -> None:
    """Tell nobody; a graph that still has the operators goes on."""
    _watchers.pop(int(token), None)


OUTSIDE_CUDA_GRAPHS = (torch.Tag.cudagraph_unsafe,)
"""The compiler records CUDA graphs around the operators, whose Python must run at each call."""

torch.library.define(
    "rankscope::note",
    "(Tensor tensor, Tensor token, str kind, str slot) -> Tensor",
    tags=OUTSIDE_CUDA_GRAPHS,
)
torch.library.define(
    "rankscope::note_gradient",
    "(Tensor gradient, Tensor ticket, str slot) -> ()",
    tags=OUTSIDE_CUDA_GRAPHS,
)


# Not `torch.library.custom_op`, whose checks take some 25 us at each call.
@torch.library.impl("rankscope::note", "default")
def _note(tensor: torch.Tensor, token: torch.Tensor, kind: str, slot: str) -> torch.Tensor:
    number = int(token)
    watcher = _watchers.get(number)
    occurrence = 0 if watcher is None else watcher.arrives(kind, slot, tensor)
    return torch.tensor([number, occurrence])


@torch.library.impl("rankscope::note_gradient", "default")
def _note_gradient(gradient: torch.Tensor, ticket: torch.Tensor, slot: str) -> None:
    number, occurrence = ticket.tolist()
    watcher = _watchers.get(number)
    if watcher is not None:
        watcher.gradient_arrives(slot, occurrence, gradient)


def _note_fake(tensor: torch.Tensor, token: torch.Tensor, kind: str, slot: str) -> torch.Tensor:
    return torch.empty(2, dtype=torch.int64)


def _note_gradient_fake(gradient: torch.Tensor, ticket: torch.Tensor, slot: str) -> None:
    return None


torch.library.register_fake("rankscope::note", _note_fake)
torch.library.register_fake("rankscope::note_gradient", _note_gradient_fake)

# Else the compiler would leave out what nobody uses. Not `register_effect`: with it torch 2.13
# cannot compile non-reentrant activation checkpointing.
has_side_effect(torch.ops.rankscope.note.default)
has_side_effect(torch.ops.rankscope.note_gradient.default)


def note(
    tensor: torch.Tensor, token: torch.Tensor, kind: str, slot: str, *, gradient: bool = False
) -> None:
    """Leave operators in the graph that is traced: for the tensor and, if asked, its gradient."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return
    ticket = torch.ops.rankscope.note(_local(tensor.detach()), token, kind, slot)
    if gradient and tensor.requires_grad:
        tensor.register_hook(
            lambda arrived: torch.ops.rankscope.note_gradient(_local(arrived), ticket, slot)
        )


def note_all(value: Any, token: torch.Tensor, kind: str, *, gradients: bool = False) -> None:
    """The same for all tensors in what a module takes or returns."""
    for slot, tensor in tensors_in(value):
        note(tensor, token, kind, slot, gradient=gradients)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """A DTensor's own piece: operators of ours know no sharding."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # pyright: ignore[reportAttributeAccessIssue]
