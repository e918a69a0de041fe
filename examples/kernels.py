"""Compile the agent's CPU kernels: `python -m rankscope.examples.kernels`.

numba keeps them on disk. Else the first process that observes does it, and the others wait.
"""

from __future__ import annotations

from rankscope.agent.kernel import warm

if __name__ == "__main__":
    warm()
