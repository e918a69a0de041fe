"""Compile the agent's CPU kernels: `python -m rankscope.examples.kernels`.

numba keeps them on disk. Done once before the ranks start, or each would do it for itself.
"""

from __future__ import annotations

from rankscope.agent.kernel import warm

if __name__ == "__main__":
    warm()
