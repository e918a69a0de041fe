"""The agent for JAX: `with observe(run="x") as scope: … scope.step(telemetry)`."""

from ...sketch.quantities import BlockExponents, CastCounts, FineExponents
from ...wire.messages import AlertSummary
from ..schedule import Schedule
from .scope import Scope, observe
from .telemetry import Telemetry

__all__ = [
    "AlertSummary",
    "BlockExponents",
    "CastCounts",
    "FineExponents",
    "Schedule",
    "Scope",
    "Telemetry",
    "observe",
]
