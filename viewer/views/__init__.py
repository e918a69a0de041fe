"""Where everything stands: Panel's panes and widgets, bound to the pages' texts and choice.

The only part of the viewer that knows Panel's widgets. `contents` lists the pages.
"""

from .contents import CONTENTS, Entry
from .shell import Shell, forget, prepare
from .widgets import text

__all__ = ["CONTENTS", "Entry", "Shell", "forget", "prepare", "text"]
