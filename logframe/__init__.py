"""LogFrames, the logs of Track & Visualize: read from files, checked, and made into runs.

The one rule of this room: what a LogFrame does not hold was not observed, and nothing is made up
for it. docs/logframe.md says what is exact, what is as exact as the log, and what is not there.
"""

from ..store.logframe_file import write_logframe
from .files import read_logframe
from .importing import Imported, import_logframe
from .schema import validate

__all__ = ["Imported", "import_logframe", "read_logframe", "validate", "write_logframe"]
