"""Observing a script that nobody changed: `rankscope run -- torchrun train.py`.

The one rule of this room: the script runs as it would without us. What is not understood is told in
one line, and left alone; a process that trains nothing loads nothing of rankscope.
"""

from .environment import Observation, environment_of

__all__ = ["Observation", "environment_of"]
