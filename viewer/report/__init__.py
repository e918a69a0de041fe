"""A run's health as one file that opens anywhere, offline: `rankscope report`."""

from .writing import write_report

__all__ = ["write_report"]
