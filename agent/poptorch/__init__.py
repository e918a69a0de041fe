"""The agent for PopTorch: `observe(model, options, optimizer, run="x")`, then `training_model`."""

from ...wire.messages import AlertSummary
from ..schedule import Schedule
from .observing import observe
from .scope import Scope, leave_scopes
from .training_model import TrainingModel

__all__ = ["AlertSummary", "Schedule", "Scope", "TrainingModel", "leave_scopes", "observe"]
