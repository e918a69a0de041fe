"""A trial of one engine against another on the device at hand, before training begins.

Compilers and devices differ in what the tests cannot see: subnormal numbers that are flushed to
zero, a dtype that is not supported. What differs is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from ...sketch.elements import Region
from ...sketch.table import ABS_MIN, M2, MIN, SketchTable
from ..reading import Reading
from ..steptable import StepRing
from .device import DeviceMeter, Engine
from .found import Found
from .local import READABLE, dtype_name

ELEMENTS = 20_000
"""So many that a tensor has several chunks, whose leaves are merged."""


def differences(device: torch.device, engine: Engine, other: Engine) -> list[str]:
    """The dtypes for which two engines of a device do not agree; waits for the device."""
    names, tensors = zip(*trial_tensors(), strict=True)
    copies = [tensor.to(device) for tensor in tensors]
    wrong = set[str]()
    for how in (Reading(), Reading(sentinel=True), Reading(sentinel=True, compared=True)):
        mine, theirs = (sketches(device, one, copies, how) for one in (engine, other))
        for row, name in enumerate(names):
            if not agree(mine.take(slice(row, row + 1)), theirs.take(slice(row, row + 1))):
                wrong.add(name)
    return sorted(wrong)


def trial_tensors() -> Iterator[tuple[str, torch.Tensor]]:
    """Any bit patterns of each dtype; of float64 numbers of ordinary size."""
    generator = torch.Generator("cpu").manual_seed(0)
    for dtype in sorted(READABLE, key=str):
        if dtype == torch.float64:  # of any size their powers overflow, each engine in its own way
            numbers = torch.randn(ELEMENTS, dtype=dtype, generator=generator, device="cpu")
        else:
            size = (ELEMENTS * dtype.itemsize,)
            bits = torch.randint(256, size, dtype=torch.uint8, generator=generator, device="cpu")
            numbers = bits.view(dtype)
        yield dtype_name(dtype), numbers


def sketches(
    device: torch.device, engine: Engine, tensors: list[torch.Tensor], how: Reading
) -> SketchTable:
    """The sketches of tensors as a step would get them: one by one and together, and of pieces."""
    meter, step = DeviceMeter(device, engine), StepRing().take(0)
    assert step is not None, "a new ring has free steps"
    for region in (None, Region(5, 700, 9_000)):
        way = replace(how, region=region)
        for row, tensor in enumerate(tensors):
            meter.add(step, row, tensor, way)
        found = [Found.of(row, way, one, one, one) for row, one in enumerate(tensors)]
        meter.prepare(found)(step, tensors)
    for row, tensor in enumerate(tensors):
        meter.add(step, row, tensor[1:], how)  # not aligned
    copy = meter.send_home()
    assert copy is not None, "a new meter has free buffers"
    if copy.ready is not None:
        copy.ready.synchronize()
    meter.receive(copy, step)
    return step.table.take(slice(0, len(tensors)))


def agree(mine: SketchTable, theirs: SketchTable) -> bool:
    """Whether two sketches are equal in what is exact, and to rounding in the sums."""
    exact = all(
        np.array_equal(getattr(mine, column), getattr(theirs, column))
        for column in ("counts", "histogram", "checksum")
    )
    extremes = slice(MIN, ABS_MIN + 1)
    exact = exact and np.array_equal(mine.moments[:, extremes], theirs.moments[:, extremes])
    with np.errstate(all="ignore"):
        scale = np.sqrt(np.abs(theirs.moments[:, M2] * theirs.counts[:, 0]))
        sums = np.abs(mine.moments[:, :MIN] - theirs.moments[:, :MIN])
        close = sums <= 1e-9 * np.maximum(np.abs(theirs.moments[:, :MIN]), scale[:, None])
    same = mine.moments[:, :MIN] == theirs.moments[:, :MIN]
    return bool(exact and (close | same).all())
