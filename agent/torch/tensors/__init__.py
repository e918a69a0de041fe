"""The hands-on toolkit for PyTorch: tensors of a model by name, what they say, and plots of them.

    before = weights(model)
    optimizer.step()
    update(before, weights(model)).describe()

It needs neither a collector nor a store. Nothing here talks to another rank unless a process group
is given as `across`.
"""

from ...toolkit.drawing import ecdf, heatmap, hist
from ...toolkit.updates import adam_update, trust_ratio, update
from .files import load, save
from .named import NamedTensors
from .noise import noise_scale
from .overview import compute_stats
from .passing import Activations
from .snapshots import gradients, learning_rates, optimizer_state, snapshot, weights

__all__ = [
    "Activations",
    "NamedTensors",
    "adam_update",
    "compute_stats",
    "ecdf",
    "gradients",
    "heatmap",
    "hist",
    "learning_rates",
    "load",
    "noise_scale",
    "optimizer_state",
    "save",
    "snapshot",
    "trust_ratio",
    "update",
    "weights",
]
