"""Sketches of tensors in one batch a device, by the agent's kernels, before the return."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache

import torch

from ....sketch.elements import Region
from ....sketch.table import SketchTable
from ...interruption import Lock
from ...reading import Reading
from ...sitebook import SiteBook
from ...steptable import StepRing, StepTable
from ..device import DeviceMeter
from ..found import Found
from ..local import READABLE, in_memory_order
from ..meters import meter_maker
from ..recorder import Meter

_lock = Lock()
"""Meters serve one batch at a time."""


def sketch_tensors(
    tensors: Sequence[torch.Tensor], regions: Sequence[Region | None]
) -> SketchTable:
    """The sketches of plain tensors, a row each: all of a device are read together.

    Integers and booleans are read as float64, of complex numbers their parts.

    Args:
        tensors: on any devices; they are not changed.
        regions: where each lies in the whole of which it is a piece; None for a whole.
    """
    by_device: dict[torch.device, list[int]] = defaultdict(list)
    for row, tensor in enumerate(tensors):
        by_device[tensor.device].append(row)
    ring = StepRing()
    step = ring.take(0)
    assert step is not None, "a new ring has free steps"
    step.reserve(len(tensors))
    with _lock:
        try:
            for device, rows in by_device.items():
                meter = _meter(device)
                found = dict[int, tuple[torch.Tensor, Found]]()
                for row in rows:
                    elements, how = _reading(tensors[row], regions[row])
                    one = Found.of(row, how, elements, elements, elements)
                    if meter.can_prepare(one):
                        found[row] = elements, one
                    else:
                        meter.add(step, row, elements, how)
                if found:
                    all_elements, ones = zip(*found.values(), strict=True)
                    meter.prepare(ones)(step, all_elements)
                _bring_home(meter, step)
        except BaseException:
            _meter.cache_clear()  # what it has noted is nobody's any more
            raise
    return step.table.take(slice(0, len(tensors)))


def _reading(tensor: torch.Tensor, region: Region | None) -> tuple[torch.Tensor, Reading]:
    """Which elements are read, in which order, and how."""
    tensor = real(tensor)
    if tensor.dtype not in READABLE:
        tensor = tensor.double()
    if region is not None and tensor.is_contiguous():
        return tensor, Reading(lasting=True, region=region)
    elements, copies = in_memory_order(tensor)
    return elements, Reading(lasting=True, copies=copies)


def real(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as they are; of complex numbers their parts, along one more axis."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg()


def _bring_home(meter: Meter, step: StepTable) -> None:
    """Have all read that was noted, and merged into the table: here it may wait for the device."""
    meter.barrier()
    if not isinstance(meter, DeviceMeter):
        meter.settle(step)
        return
    copy = meter.send_home()
    if copy is not None:
        if copy.ready is not None:
            copy.ready.synchronize()
        meter.receive(copy, step)


@cache
def _meter(device: torch.device) -> Meter:
    """Made once a device: kernels are compiled and tried, and buffers made, for it."""
    return meter_maker(SiteBook(lambda _: True), _at_once)(device)


def _at_once(job: Callable[[], object]) -> None:
    job()
