"""A stand-in for PopTorch on torch's CPU: what observing needs of its public interface.

It does what PopTorch's own sources do, and not what the agent would like; where these are meant, a
docstring names the file of https://github.com/graphcore/poptorch (branch sdk-release-3.4, commit
c2a8b17) or of graphcore/popart. What the C++ side computes on the IPU is computed here with torch.
No IPU was at hand: that the hardware agrees is for `rankscope doctor --poptorch` to find out.
"""

from . import optim
from .executor import Error, PoplarExecutor, load, trainingModel
from .options import OldOptions, Options, OutputMode

__version__ = "3.4.0+standin"

__all__ = [
    "Error",
    "OldOptions",
    "Options",
    "OutputMode",
    "PoplarExecutor",
    "load",
    "optim",
    "trainingModel",
]
