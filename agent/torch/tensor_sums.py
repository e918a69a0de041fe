"""What tensor parallelism adds up in the backward: gradients of inputs of column-parallel layers.

Each rank's part of the weight gives an addend of the input's gradient. Torch adds them up where the
input became a DTensor, or was gathered along the sequence: the node of the graph that does so is
given the addend, and makes the sum. So a hook on that node sees both, and waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...wire.messages import Placement
from .axes import placements_in_job
from .eager import eager
from .local import is_addend
from .recorder import Recorder

ADDEND, SUM = "local_input_gradient", "input_gradient"
SEEN = "rankscope"
"""What the metadata of a node has under this name when it has the hook."""


def watch_input(
    recorder: Recorder, tensor: object, name: str, occurrence: int, module: str
) -> None:
    """Measure the gradient of a layer's input before and after it is added up over ranks.

    Where several layers take the same input, theirs is one sum, under the name of the first.
    """
    node = getattr(tensor, "grad_fn", None)
    if not hasattr(tensor, "placements") or node is None or SEEN in node.metadata:
        return
    node.metadata[SEEN] = True
    node.register_hook(_hook(recorder, (name, "", occurrence), module))


def _hook(
    recorder: Recorder, key: tuple[str, str, int], module: str
) -> Callable[[Sequence[Any], Sequence[Any]], None]:
    @eager
    def has_run(made: Sequence[Any], given: Sequence[Any]) -> None:
        whole, own = made[0], given[0]
        if not is_addend(own) or whole is None or is_addend(whole):
            return
        with recorder.stopwatch:
            try:
                recorder.arrivals()
                recorder.measure((ADDEND, *key), own, module)
                recorder.measure((SUM, *key), whole, module, placed=_placed(own, whole))
            except Exception as error:  # never into the training loop: told in the run
                recorder.report(f"A gradient of the input of {key[0]} could not be read", error)

    return has_run


def _placed(own: Any, whole: torch.Tensor) -> dict[str, Placement]:
    """How a sum that is a plain tensor relates to the whole: it may have been scattered."""
    is_part = whole.numel() < own._local_tensor.numel()  # to_local() enters autograd
    pairs = placements_in_job(own.device_mesh, own.placements)
    word: Placement = "shard" if is_part else "replicate"
    return {axis: word for axis, placed in pairs if placed.is_partial()}
