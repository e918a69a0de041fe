"""The framework-free half of the hands-on toolkit: what follows from sketches of named tensors.

`rankscope.agent.torch.tensors` and `rankscope.agent.jax.tensors` take the tensors, and give their
numbers as these.
"""

from .columns import GROUPS, NNSTAT
from .noise import NoiseScale, noise_scale_of
from .ranks import Held, RankPart, merge_ranks
from .sketches import By, Sketches

__all__ = [
    "GROUPS",
    "NNSTAT",
    "By",
    "Held",
    "NoiseScale",
    "RankPart",
    "Sketches",
    "merge_ranks",
    "noise_scale_of",
]
