"""Compile the agent's CPU kernels: `python -m rankscope.examples.kernels`.

numba keeps them on disk. Done once before the ranks start, or each would do it for itself.
"""

from __future__ import annotations

import numpy as np

from rankscope.agent.kernel import absorb, sketch_items
from rankscope.sketch import SketchTable


def compile_kernels() -> None:
    """Call the kernels once, on nothing: that compiles them, or loads what is compiled."""
    nothing = sketch_items(np.array([(0, 0, 0, 0)], np.int64))
    absorb(SketchTable.empty(1), np.zeros(1, np.int64), nothing, np.ones(1, np.bool_))


if __name__ == "__main__":
    compile_kernels()
