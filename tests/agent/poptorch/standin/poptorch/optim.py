"""Optimizers as of python/optim.py: torch's, with a loss scale and the state of the IPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

State = dict[str, Any]


class Optimizer:
    """The mixin whose `state_dict` has `ipu_state` and `ipu_param`, None before compilation."""

    loss_scaling: float
    read: Callable[[], State] | None = None
    """Set by the executor, which replaces `state_dict` to read the IPU."""

    def state_dict(self) -> State:
        empty: State = {"ipu_state": None, "ipu_param": None}
        ipu = empty if self.read is None else self.read()
        return {**ipu, **torch.optim.Optimizer.state_dict(self)}  # pyright: ignore[reportArgumentType]


class SGD(Optimizer, torch.optim.SGD):
    def __init__(self, params: Any, lr: float, momentum: float = 0, loss_scaling: float = 1.0):
        torch.optim.SGD.__init__(self, params, lr, momentum)
        self.loss_scaling = loss_scaling


class Adam(Optimizer, torch.optim.Adam):
    def __init__(self, params: Any, lr: float = 1e-3, loss_scaling: float = 1.0):
        torch.optim.Adam.__init__(self, params, lr)
        self.loss_scaling = loss_scaling


class AdamW(Optimizer, torch.optim.AdamW):
    def __init__(self, params: Any, lr: float = 1e-3, loss_scaling: float = 1.0):
        torch.optim.AdamW.__init__(self, params, lr)
        self.loss_scaling = loss_scaling
