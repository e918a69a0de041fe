"""The pages: each owns its figures and texts, and shows what its session's `Choice` says.

They know no Panel. What a page is to others is in `page`; `rankscope.viewer.views` lists them.
"""

from .compare import Compare
from .formats import Formats
from .map import Map
from .page import Drawn, Page
from .quantities import Quantities
from .ranks import Ranks
from .tensor import Tensor
from .triage import Triage
from .visited import Pages, Visited

__all__ = [
    "Compare",
    "Drawn",
    "Formats",
    "Map",
    "Page",
    "Pages",
    "Quantities",
    "Ranks",
    "Tensor",
    "Triage",
    "Visited",
]
