"""Functions that torch.compile leaves alone, whatever calls them.

Where a compiled function is not one graph, as a whole training step never is, the compiler looks
into each Python function that runs meanwhile, hooks among them. Ours hold locks and give addresses
to kernels: compiled, they would end the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._C._dynamo import eval_frame

REASON = "rankscope's hooks run as they are"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def eager(function: _Function) -> _Function:
    """Have a function, and all that it calls, run as it is.

    What `torch.compiler.disable` does, without a wrapper at each call, and without importing the
    compiler, which takes a second where nothing is compiled.
    """
    made: Any = function  # its attributes are the compiler's
    private: Any = eval_frame  # it has no stubs
    if not hasattr(private, "set_code_exec_strategy"):
        return torch._disable_dynamo(function)  # pyright: ignore
    skip = private._FrameAction.SKIP
    private.set_code_exec_strategy(made.__code__, private._FrameExecStrategy(skip, skip))
    made._torchdynamo_disable, made._torchdynamo_disable_msg = True, REASON
    return function
