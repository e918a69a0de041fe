"""All rules that need no setting up, in the order in which causes come before what follows."""

from __future__ import annotations

from collections.abc import Sequence

from .drift import DRIFT
from .gradients import GRADIENTS_AND_LOSS
from .pipeline import PIPELINE
from .ranks import OVER_RANKS
from .rule import Rule
from .start import START
from .tensors import TENSORS
from .updates import UPDATES

BUILT_IN: Sequence[Rule] = (
    *OVER_RANKS,
    *START,
    *UPDATES,
    *TENSORS,
    *GRADIENTS_AND_LOSS,
    *DRIFT,
    *PIPELINE,
)
