"""The agent for PyTorch: `with observe(model, optimizer, run="x") as scope: … scope.step()`."""

from ..schedule import Schedule
from .scope import Scope, observe, tap

__all__ = ["Schedule", "Scope", "observe", "tap"]
