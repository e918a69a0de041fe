"""Channels that never speak."""

from __future__ import annotations

import torch

from .registry import add_alias, quantity


@quantity(
    "dead_neurons",
    needs=["output", "output_channel_axis"],
    merge="maximum",
    statistic="share_at_most",
)
def dead_neurons(output: torch.Tensor, axis: int) -> torch.Tensor:
    """The share of channels whose output is at most `threshold` (0) in all samples, from 0 to 1.

    Of an activation function as ReLU, or with `threshold=-2`, as Taiyi's LinearDeadNeuronNum, of
    the layer before. Each channel's greatest output goes out, so that a channel is dead only if it
    is on all ranks, in all micro-batches. It reads the output once. `channels` is their axis where
    it is not the last, or the second of a convolution: 1 for an activation function behind a
    convolution. A share that grows and does not come back: the learning rate is too large, or
    biases have run off.
    """
    others = [other for other in range(output.dim()) if other != axis]
    return output.amax(others) if others else output


add_alias("LinearDeadNeuronNum", "dead_neurons(threshold=-2)")
