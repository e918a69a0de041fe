"""Healthy."""
from .job import Job
HEALTHY: tuple[Job, ...] = ()
