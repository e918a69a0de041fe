"""The hands-on toolkit for JAX: arrays of pytrees by name, what they say, and plots of them.

    before = weights(params)
    params, state = train_step(params, state)
    update(before, weights(params)).describe()

It needs neither a collector nor a store. Nothing here talks to another process unless a mesh is
given as `across`.
"""

from ...toolkit.drawing import ecdf, heatmap, hist
from ...toolkit.updates import adam_update, trust_ratio, update
from .files import load, save
from .named import NamedArrays
from .noise import noise_scale
from .overview import compute_stats
from .snapshots import gradients, optimizer_state, snapshot, weights

__all__ = [
    "NamedArrays",
    "adam_update",
    "compute_stats",
    "ecdf",
    "gradients",
    "heatmap",
    "hist",
    "load",
    "noise_scale",
    "optimizer_state",
    "save",
    "snapshot",
    "trust_ratio",
    "update",
    "weights",
]
