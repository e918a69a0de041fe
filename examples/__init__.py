"""What runs out of the box: the demo (`rankscope demo`), its training script, a first script.

The one rule of this room: it uses rankscope as its users do, through the rooms' faces.
"""

__all__: list[str] = []
