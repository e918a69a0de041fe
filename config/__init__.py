"""The one schema of all settings: what a file may say, whether one does, and what holds now.

The one rule of this room: what a command takes is read off the command, never written down again.
"""

from .defaults import defaults_of
from .options import settings_struct
from .variables import strays_of

__all__ = ["defaults_of", "settings_struct", "strays_of"]
