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

from .eager import eager
from .local import PLAIN
from .nested import tensors_in


class Watcher(Protocol):
    """Who is told of the tensors of one module."""

    def arrives(self, kind: str, slot: str, mode: str, tensor: torch.Tensor) -> int:
        """A tensor of the forward, whose memory is used again.

        `mode` is that of a tap, and empty for all else. Returns the number of this call, or
        `NOT_RECORDED`.
        """
        ...

    def gradient_arrives(self, slot: str, occurrence: int, gradient: torch.Tensor) -> None:
        """The gradient of an output of that call."""
        ...

    def failed(self, error: Exception) -> None:
        """One of the above raised, which must not reach training."""
        ...


NOT_RECORDED = -1
"""What a call is numbered whose gradients shall not be measured either."""

_watchers: dict[int, Watcher] = {}
_numbers = count()


def watched_by(watcher: Watcher) -> torch.Tensor:
    """The token, int64 on the host, of who is told; until `forget`."""
    number = next(_numbers)
    _watchers[number] = watcher
    return torch.tensor(number, device="cpu")


def forget(token: torch.Tensor) -> None:
    """Tell nobody; a graph that still has the operators goes on."""
    _watchers.pop(int(token), None)


OUTSIDE_CUDA_GRAPHS = (torch.Tag.cudagraph_unsafe,)
"""The compiler records CUDA graphs around the operators, whose Python must run at each call."""

# It is said to change the token: so the compiler keeps the calls of one module in their order.
# `calls` is a mode; torch 2.13 mistakes an argument of that name for its own.
torch.library.define(
    "rankscope::note",
    "(Tensor tensor, Tensor(a!) token, str kind, str slot, str calls) -> Tensor",
    tags=OUTSIDE_CUDA_GRAPHS,
)
torch.library.define(
    "rankscope::note_gradient",
    "(Tensor gradient, Tensor ticket, str slot) -> ()",
    tags=OUTSIDE_CUDA_GRAPHS,
)


# Not `torch.library.custom_op`, whose checks take some 25 us at each call.
@torch.library.impl("rankscope::note", "default")
@eager
def _note(
    tensor: torch.Tensor, token: torch.Tensor, kind: str, slot: str, calls: str
) -> torch.Tensor:
    number, occurrence = int(token), NOT_RECORDED
    watcher = _watchers.get(number)
    if watcher is not None:
        try:
            occurrence = watcher.arrives(kind, slot, calls, tensor)
        except Exception as error:  # never into the training loop: told in the run
            watcher.failed(error)
    return torch.tensor([number, occurrence], device="cpu")


@torch.library.impl("rankscope::note_gradient", "default")
@eager
def _note_gradient(gradient: torch.Tensor | None, ticket: torch.Tensor, slot: str) -> None:
    number, occurrence = ticket.tolist()
    watcher = _watchers.get(number)
    # The compiler hands over None where a function of the user's gives no gradient.
    if gradient is not None and watcher is not None and occurrence != NOT_RECORDED:
        try:
            watcher.gradient_arrives(slot, occurrence, gradient)
        except Exception as error:  # never into the training loop: told in the run
            watcher.failed(error)


def _note_fake(
    tensor: torch.Tensor, token: torch.Tensor, kind: str, slot: str, calls: str
) -> torch.Tensor:
    return torch.empty(2, dtype=torch.int64, device="cpu")


def _note_gradient_fake(gradient: torch.Tensor, ticket: torch.Tensor, slot: str) -> None:
    return None


torch.library.register_fake("rankscope::note", _note_fake)
torch.library.register_fake("rankscope::note_gradient", _note_gradient_fake)


# Under `torch.func.vmap` they are told of all batches at once, as they lie in memory.
def _note_batches(_: Any, __: Any, *arguments: Any) -> tuple[torch.Tensor, None]:
    return torch.ops.rankscope.note(*arguments), None


def _note_gradient_batches(_: Any, __: Any, *arguments: Any) -> tuple[None, None]:
    torch.ops.rankscope.note_gradient(*arguments)
    return None, None


torch.library.register_vmap("rankscope::note", _note_batches)
torch.library.register_vmap("rankscope::note_gradient", _note_gradient_batches)

# Else the compiler would leave out what nobody uses. Not `register_effect`: with it torch 2.13
# cannot compile non-reentrant activation checkpointing.
has_side_effect(torch.ops.rankscope.note.default)
has_side_effect(torch.ops.rankscope.note_gradient.default)


def note(
    tensor: torch.Tensor,
    token: torch.Tensor,
    kind: str,
    slot: str,
    mode: str = "",
    *,
    gradient: bool = False,
) -> None:
    """Leave operators in the graph that is traced: for the tensor and, if asked, its gradient."""
    if torch.compiler.is_exporting():
        return
    piece = _local(tensor.detach())
    if piece is None:
        return
    ticket = torch.ops.rankscope.note(piece, token, kind, slot, mode)
    if gradient and tensor.requires_grad:
        tensor.register_hook(lambda arrived: _note_gradient_of(arrived, ticket, slot))


def _note_gradient_of(gradient: torch.Tensor | None, ticket: torch.Tensor, slot: str) -> None:
    # None where nothing that the loss is made of depends on the output.
    piece = None if gradient is None else _local(gradient)
    if piece is not None:
        torch.ops.rankscope.note_gradient(piece, ticket, slot)


def note_all(value: Any, token: torch.Tensor, kind: str, *, gradients: bool = False) -> None:
    """The same for all tensors in what a module takes or returns."""
    for slot, tensor in tensors_in(value):
        note(tensor, token, kind, slot, gradient=gradients)


def _local(tensor: torch.Tensor) -> torch.Tensor | None:
    """A plain tensor, or a DTensor's own piece; None for what operators of ours cannot take."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()  # pyright: ignore[reportAttributeAccessIssue]
    numbers = tensor.is_floating_point() or tensor.is_complex()
    return tensor if type(tensor) in PLAIN and numbers else None
