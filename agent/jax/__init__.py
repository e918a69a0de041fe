"""The agent for JAX."""

from .collecting import Taps, TapSite, collect
from .taps import tap

__all__ = ["TapSite", "Taps", "collect", "tap"]
