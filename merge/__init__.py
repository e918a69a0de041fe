"""The numbers of a record from the frames of its ranks: copies counted once, parts united.

The one rule of this room: what comes out depends on the set of ranks that went in, never on the
order or the relays in which they came.
"""

from .copies import Divergence
from .joining import KEPT_RANKS, Topology, join
from .merging import Merged, merge_contributions
from .placement import CountedAt, DerivedAt, Layout, ReadingAt, groups_of, lay_out
from .plan import Contribution
from .series import Derived

__all__ = [
    "KEPT_RANKS",
    "Contribution",
    "CountedAt",
    "Derived",
    "DerivedAt",
    "Divergence",
    "Layout",
    "Merged",
    "ReadingAt",
    "Topology",
    "groups_of",
    "join",
    "lay_out",
    "merge_contributions",
]
