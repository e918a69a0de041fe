"""What one process computes, and whether a run of several ranks tells the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankscope.sketch import COUNTS, MOMENTS, SketchTable, sketch_array
from rankscope.sketch.reference import glance_at
from rankscope.store import Run, open_run

from .launching import run_of

DTYPES = {"float32": torch.float32, "float64": torch.float64}
COUNT = COUNTS.index("count")
SUM, S8, PROJECTION, MIN = (MOMENTS.index(name) for name in ("sum", "s8", "projection", "min"))

Tensors = dict[str, torch.Tensor]
"""By label."""


def runs_of(
    job: Path, ranks: int, mode: str, directory: Path, imports: Sequence[str] = ()
) -> dict[str, Run]:
    """By dtype: the finished runs of a job that trains the same model in each."""
    last = run_of(job, ranks, mode, directory, mode, imports=imports)
    return {"float32": open_run(directory / f"{mode}-float32"), "float64": last}


def one_process(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    train: Callable[[int], object],
    steps: int,
    *,
    updates: bool = False,
) -> list[Tensors]:
    """By step: what training on one process makes; at last the weights that are left.

    Args:
        updates: whether what steps add to weights is among it.
    """
    found = Tensors()

    def keep(label: str, tensor: torch.Tensor) -> None:
        found.setdefault(label, tensor.detach().clone())  # not what is computed again

    def returns(name: str) -> Callable[..., None]:
        def hook(_: Any, __: Any, output: torch.Tensor) -> None:
            keep(f"activation:{name}", output)
            output.register_hook(lambda made: keep(f"activation_gradient:{name}", made))

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(returns(name or "(root)"))
    made = list[Tensors]()
    for step in range(steps + 1):
        for name, parameter in model.named_parameters():
            keep(f"weight:{name}", parameter)
        if step < steps:
            train(step)
            optimizer.step()
        for name, parameter in model.named_parameters() if step < steps else ():
            assert parameter.grad is not None
            keep(f"weight_gradient:{name}", parameter.grad)
            if updates:
                keep(f"update:{name}", parameter - found[f"weight:{name}"])
            for slot, state in optimizer.state[parameter].items():
                if state.dim():
                    keep(f"optimizer_state:{name}[{slot}]", state)
        optimizer.zero_grad()
        made.append(found.copy())
        found.clear()
    return made


def as_ranks_see_it(tensors: Tensors, samples: int, *, gathered: bool) -> Tensors:
    """With what only ranks have, each of which averages the loss over its own samples.

    Args:
        samples: into how many parts they are cut.
        gathered: whether weights are gathered for a forward.
    """
    seen = Tensors()
    for label, tensor in tensors.items():
        kind = label.partition(":")[0]
        seen[label] = tensor * samples if kind == "activation_gradient" else tensor
        if kind == "weight_gradient" and samples > 1:
            seen[f"local_{label}"] = tensor * samples
        if kind == "weight" and gathered and f"weight_gradient{label[6:]}" in tensors:
            seen[f"unsharded_{label}"] = tensor  # but not of the weights that are left
    return seen


def natural_scale(whole: NDArray[Any]) -> NDArray[np.float64]:
    """By moment: how much a relative change of all elements moves it at most.

    That is the sum of the magnitudes of its addends, times the power that they are in. A sum near
    zero is no measure of its own error.
    """
    x = whole.astype(np.float64)
    size, central = np.abs(x), np.abs(x - x.mean())
    s8 = sketch_array(whole).moments[0, S8]
    sums = [size.sum(), size.sum(), *(k * np.sum(central**k) for k in (2, 3, 4)), 8 * s8]
    return np.array([*sums, size.sum(), *[size.max()] * 3])


def deviation(merged: SketchTable, whole: NDArray[Any]) -> NDArray[np.float64]:
    """By moment: how far a row is off, in units of the natural scale."""
    row, exact = merged.moments[0], sketch_array(whole).moments[0]
    # The extremes of no elements are infinite.
    off = np.abs(np.subtract(row, exact, out=np.zeros_like(row), where=row != exact))
    return np.divide(off, natural_scale(whole), out=off.copy(), where=off > 0)


def miscounted(merged: SketchTable, whole: NDArray[Any]) -> int:
    """By how much counts are off: 2 for an element in another bin, 1 for one of another sign."""
    exact = sketch_array(whole)
    off = np.hstack([merged.counts - exact.counts, merged.histogram - exact.histogram])
    return int(np.abs(off).sum())


def assert_same(merged: SketchTable, whole: torch.Tensor, label: str, *, numbered: bool) -> None:
    """A row tells what one process computed, but for the rounding of the training itself.

    That is measured: on one process, of 100 batches that were taken backwards, or in parts, float32
    gradients differ by 4.4e-7 at most, and optimizer state, which has their squares, by 9.7e-7.
    Ranks and one process differ by 4.1e-7 and 5.1e-7.

    Args:
        numbered: whether its elements have their numbers in the whole.
    """
    array, kind = whole.numpy(), label.partition(":")[0]
    single = whole.dtype == torch.float32
    most = 1e-10 if not single else 2e-6 if kind == "optimizer_state" else 1e-6
    off = deviation(merged, array)
    assert merged.counts[0, COUNT] == whole.numel(), label
    assert miscounted(merged, array) <= (4 if single else 0), label
    assert (off if numbered else np.delete(off, PROJECTION)).max() <= most, label


def assert_sums_same(
    merged: SketchTable, whole: torch.Tensor, label: str, *, numbered: bool
) -> None:
    """Of addends a row tells what is linear, and nothing else; `numbered` as of `assert_same`."""
    linear = [SUM, PROJECTION]
    most = 1e-10 if whole.dtype == torch.float64 else 1e-6
    assert merged.counts[0, COUNT] == whole.numel(), label
    off = deviation(merged, whole.numpy())[linear]
    assert off[: 2 if numbered else 1].max() <= most, label
    assert np.isnan(np.delete(merged.moments[0], linear)).all(), label


def assert_same_copy(merged: SketchTable, whole: torch.Tensor, label: str, *, exact: bool) -> None:
    """Of a copy that is there to be compared a row tells what a sentinel sees, and the checksum.

    Args:
        exact: whether it is that of one process to the last bit; else but for rounding.
    """
    expected = glance_at(whole.numpy(), compared=True)
    assert np.array_equal(merged.counts, expected.counts), label
    assert np.array_equal(merged.histogram, expected.histogram), label
    if exact:
        assert np.array_equal(merged.checksum, expected.checksum), label
        assert np.array_equal(merged.moments, expected.moments), label
    else:
        most = 1e-10 if whole.dtype == torch.float64 else 1e-6
        np.testing.assert_allclose(merged.moments, expected.moments, rtol=most, err_msg=label)


def assert_exact(merged: SketchTable, whole: torch.Tensor, label: str) -> None:
    """A row is that of one process to the last bit; sums to the rounding of the sketch."""
    array = whole.numpy()
    exact = sketch_array(array)
    assert np.array_equal(merged.counts, exact.counts), label
    assert np.array_equal(merged.histogram, exact.histogram), label
    assert np.array_equal(merged.checksum, exact.checksum), label
    assert np.array_equal(merged.moments[:, MIN:], exact.moments[:, MIN:]), label
    assert deviation(merged, array).max() <= 1e-12, label


def mode_and_dtype(run: Run) -> tuple[str, torch.dtype]:
    """Of a job's run, by its name."""
    mode, _, dtype = run.name.partition("-float")
    return mode, DTYPES[f"float{dtype or 64}"]


def assert_same_as_one_process(
    run: Run,
    expected: list[Tensors],
    is_addend: Callable[[str], bool],
    is_numbered: Callable[[str], bool],
) -> None:
    """Every site of every step has the numbers that one process computes, and there is no other.

    Args:
        expected: by step.
        is_addend: whether ranks hold addends of what has that label.
        is_numbered: whether its elements have their numbers in the whole.
    """
    _, dtype = mode_and_dtype(run)
    for step, tensors in enumerate(expected):
        labels, merged = run.table(step)
        assert set(labels) == set(tensors)
        if step > 0 and dtype == torch.float32:
            continue  # by now rounding has been trained on
        for row, label in enumerate(labels):
            if label.startswith("unsharded_weight:"):
                assert_same_copy(merged.take([row]), tensors[label], label, exact=False)
                continue
            if label.startswith("update:") and dtype == torch.float32:
                continue  # what rounds a weight is no small part of its change
            check = assert_sums_same if is_addend(label) else assert_same
            check(merged.take([row]), tensors[label], label, numbered=is_numbered(label))


def assert_same_weights(run: Run, expected: Tensors) -> None:
    """The weights of the first step are those of one process to the last bit."""
    labels, merged = run.table(0)
    for row, label in enumerate(labels):
        if label.startswith("weight:"):
            assert_exact(merged.take([row]), expected[label], label)
        elif label.startswith("unsharded_weight:"):
            assert_same_copy(merged.take([row]), expected[label], label, exact=True)
