"""The agent for JAX: `with observe(run="x") as scope: … scope.step(telemetry)`."""

from ...sketch.extras import brought_by as _brought_by

with _brought_by("jax", "The agent for JAX"):
    from ...sketch.exact_counts import BlockExponents, CastCounts, FineExponents
    from ...wire.messages import AlertSummary
    from ..schedule import Schedule
    from .collecting import Taps, TapSite, collect
    from .observing import observe
    from .scope import Scope, leave_scopes
    from .taps import tap
    from .telemetry import Telemetry

__all__ = [
    "AlertSummary",
    "BlockExponents",
    "CastCounts",
    "FineExponents",
    "Schedule",
    "Scope",
    "TapSite",
    "Taps",
    "Telemetry",
    "collect",
    "leave_scopes",
    "observe",
    "tap",
]
