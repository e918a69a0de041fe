"""Which steps of a run have histograms, and which of them stands for the run. Pure."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

NEARLY = 0.9
"""A record with this part of the most histograms has nearly all: a site more is chance."""


def sketched_steps(records: pd.DataFrame) -> NDArray[np.int64]:
    """int64 [steps]: those that have histograms, ascending.

    Args:
        records: as `Run.records` gives them.
    """
    return np.unique(np.asarray(_with_histograms(records)["step"], np.int64))


def fullest_step(records: pd.DataFrame) -> int | None:
    """The last step in which nearly all sites have histograms; None where no step has any.

    A final record is the state after training, of weights alone: it counts only where nothing else
    has histograms.

    Args:
        records: as `Run.records` gives them.
    """
    found = _with_histograms(records)
    trained = found.loc[~found["final"].to_numpy(bool)]
    found = trained if len(trained) else found
    if not len(found):
        return None
    sketched = found["sketched"].to_numpy()
    return int(found["step"].to_numpy()[sketched >= NEARLY * sketched.max()].max())


def _with_histograms(records: pd.DataFrame) -> pd.DataFrame:
    """Retention deletes histograms, and leaves the rows of their records."""
    return records.loc[(records["sketched"].to_numpy() > 0) & ~records["deleted"].to_numpy(bool)]
