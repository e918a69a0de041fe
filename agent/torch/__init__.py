"""The agent for PyTorch: `with observe(model, optimizer, run="x") as scope: … scope.step()`."""

from ...sketch.extras import brought_by as _brought_by

with _brought_by("torch", "The agent for PyTorch"):
    from ...sketch.exact_counts import BlockExponents, CastCounts, FineExponents
    from ...wire.messages import AlertSummary
    from ..schedule import Schedule
    from .observing import observe
    from .scope import Scope, leave_scopes, tap

__all__ = [
    "AlertSummary",
    "BlockExponents",
    "CastCounts",
    "FineExponents",
    "Schedule",
    "Scope",
    "leave_scopes",
    "observe",
    "tap",
]
