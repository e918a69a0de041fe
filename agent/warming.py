"""The CPU kernels are made ready without disturbance: numba does not survive Ctrl-C.

What interrupts its import leaves half a module, which cannot be used any more in that process, and
what interrupts it as it compiles may leave half a table of functions.
"""

from __future__ import annotations

from .interruption import undisturbed


def warm() -> None:
    """Import numba, and compile the kernels or load them, on a thread of their own.

    What a signal's handler raises meanwhile is raised here; the thread goes on to its end.
    """
    undisturbed(_warm)


def _warm() -> None:
    from .kernel import warm  # here: it imports numba

    warm()
