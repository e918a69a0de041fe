"""The gradient noise scale of a model, from batches that a closure draws."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch

from ....sketch.errors import SettingError
from ...selection import Selection
from ...toolkit.arithmetic import Patterns
from ...toolkit.named import Group
from ...toolkit.noise import NoiseScale, measured, norm_of
from ..names import Names
from ..stages import Observable, stages_of
from .named import NamedTensors
from .places import Place
from .snapshots import Parameters


def noise_scale(
    model: Observable,
    closure: Callable[[], object],
    *,
    batch_size: int,
    reduction: Literal["mean", "sum"] = "mean",
    sizes: Sequence[int] = (1, 32),
    rounds: int = 20,
    include: Patterns = None,
    exclude: Patterns = None,
    across: Group | None = None,
) -> NoiseScale:
    """Measure the gradient noise scale by backwards over fresh batches; see `NoiseScale`.

    No sample is in two batches: each is drawn anew. A large batch is made of several calls of the
    closure. With two sizes it is McCandlish's estimate from two batch sizes, with more a weighted
    fit over all. Where an element of a gradient is not finite, all that is told is NaN.

    Gradients, buffers (as BatchNorm's) and nothing else are as before afterwards: the generators of
    random numbers go on, so that another call sees other batches. Weights must not change: the
    closure must not step an optimizer. Within the block of `observe` its forwards would be counted
    to the open step.

    Args:
        model: as of `weights`.
        closure: computes the loss of `batch_size` samples that it has not seen in this call, and
            its backward; unscaled. Under DistributedDataParallel, where gradients are averages over
            ranks, `batch_size` is that of all ranks together.
        batch_size: samples a call of the closure, of all its ranks.
        reduction: whether the closure's loss is the mean over its samples, or their sum.
        sizes: of batches, in calls of the closure: two or more different ones. The largest decides
            how well |G|² is known.
        rounds: how many batches there are of the largest size; of smaller ones there are more, by
            the root of how much smaller they are.
        include: as of `snapshot`, for the parameters that are looked at.
        exclude: as of `snapshot`.
        across: as of `NamedTensors.sketches`: needed where ranks hold pieces of gradients.

    Raises:
        SettingError: a number is not positive, there are fewer than two sizes, the closure gives no
            gradient, or gradients are pieces and `across` is not given.
    """
    with _as_before(model):
        gradient = _Gradient(model, closure, Selection.of(include, exclude), across)
        return measured(
            gradient.norm, batch_size=batch_size, reduction=reduction, sizes=sizes, rounds=rounds
        )


class _Gradient:
    """The gradient of a closure's loss, in the chosen parameters of a model."""

    def __init__(
        self,
        model: Observable,
        closure: Callable[[], object],
        selection: Selection,
        across: Group | None,
    ) -> None:
        self._model, self._parameters, self._selection = model, Parameters(model), selection
        selection.warn_of_strays(self._parameters.names())
        self._closure, self._across = closure, across

    def norm(self, calls: int) -> float:
        """Of the sum over so many calls, added up in float32 at least; see `norm_of`.

        Raises:
            SettingError: there is none, or the ranks that hold the rest are not known.
        """
        total = dict[str, torch.Tensor]()
        places = dict[str, Place]()
        for _ in range(calls):
            _forget_gradients(self._model)
            with torch.enable_grad():
                self._closure()
            for name, gradient, place in self._parameters.pieces(
                lambda one: one.grad, self._selection
            ):
                places[name] = place
                if name in total:
                    total[name] += gradient
                else:
                    wide = torch.promote_types(gradient.dtype, torch.float32)
                    total[name] = gradient.to(wide, copy=True)
        if not total:
            raise SettingError(
                "The closure left no gradient in the chosen parameters; it must compute a loss and "
                "call its backward()."
            )
        held = {word for place in places.values() for word in place.placement.values()}
        if self._across is None and not held <= {"replicate"}:
            raise SettingError(
                "This rank holds pieces of gradients; give the process group of the ranks that "
                "hold the others as `across`."
            )
        return norm_of(NamedTensors(total, places=places), self._across)


def _forget_gradients(model: Observable) -> None:
    for module, _ in stages_of(model):
        module.zero_grad(set_to_none=True)


@contextmanager
def _as_before(model: Observable) -> Generator[None]:
    """Put gradients and buffers back at the end: the same tensors, with what they held."""
    parameters = list(Names(stages_of(model)).parameters())
    gradients = [(parameter, parameter.grad) for parameter in parameters]
    buffers = [
        (owner, name, buffer, buffer.detach().clone())
        for module, _ in stages_of(model)
        for owner in module.modules()
        for name, buffer in owner.named_buffers(recurse=False)
    ]
    try:
        # What is None is made anew, and does not change what was there.
        _forget_gradients(model)
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for owner, name, buffer, held in buffers:
                buffer.copy_(held)
                setattr(owner, name, buffer)
