"""LogFrames to read, and a run to make one of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rankscope.sketch import SketchTable, sketch_array
from rankscope.store import Run, RunWriter, SiteInfo, open_run

from ..store.conftest import build_record
from .tandv import Tensor, build

SITES = [
    SiteInfo(kind="activation", name="layers.0", dtype="float32", module="Linear", order=0),
    SiteInfo(kind="activation", name="layers.0", slot="1", dtype="float32", order=1),
    SiteInfo(kind="activation", name="layers.0", occurrence=1, dtype="float32", order=2),
    SiteInfo(kind="tap", name="scores", dtype="float16", order=3),
    SiteInfo(kind="weight", name="layers.0.weight", dtype="bfloat16", order=4),
    SiteInfo(kind="weight", name="layers.0.bias", dtype="float32", order=5),
    SiteInfo(kind="optimizer_state", name="layers.0.weight", slot="exp_avg", order=6),
]


@pytest.fixture
def log() -> pd.DataFrame:
    """Three steps of two layers: what they give, gradients, weights and the optimizer's state."""
    draw = np.random.default_rng(7)
    tensors: list[Tensor] = []
    for step in range(3):
        for name, tensor_type, scale in (
            ("layers.0", "Activation", 1.0),
            ("layers.1", "Activation", 2.0),
            ("layers.1", "Gradient", 1e-3),
            ("layers.0", "Weights", 0.1),
            ("layers.0.bias", "Weights", 0.1),
            ("layers.0", "Weight_Gradients", 1e-4),
            ("layers.0", "Optimiser_State.exp_avg", 1e-9),
        ):
            value = (scale * draw.normal(size=200)).astype(np.float32)
            tensors.append((step, name, tensor_type, value))
    return build(tensors)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Three steps of seven sites, with zeros, NaN, infinities and a wide range of exponents."""
    draw = np.random.default_rng(3)
    with RunWriter.open(tmp_path / "origin", run="origin") as writer:
        attempt = writer.catalog.attempt_of("launch")
        writer.catalog.set_attempt(attempt, 1, {}, [])
        writer.catalog.add_sites(SITES)
        for step in range(3):
            tensors = {
                site: (10.0 ** draw.uniform(-30, 30) * draw.normal(size=64)).astype(np.float32)
                for site in range(len(SITES))
            }
            tensors[0][:4] = 0, np.nan, np.inf, -np.inf
            tensors[1][:] = 0
            writer.commit([build_record(step, tensors)], streams={})
        writer.finish()
    return open_run(tmp_path / "origin")


def sketch_of(values: np.ndarray) -> SketchTable:
    """What rankscope itself says of a tensor."""
    return sketch_array(values)
