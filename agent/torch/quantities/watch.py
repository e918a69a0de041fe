"""Hooks on modules, for the length of one step: what passes through them goes to their tasks.

Gradients come by hooks on tensors; full-backward hooks wrap the output, and an in-place operation
on it then raises. A forward that is recomputed in the backward counts once, each call of a module
within a forward of the root is told apart, and micro-batches of a step are merged call by call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.jit._trace import is_tracing

from ...stopwatch import Stopwatch
from ..eager import eager
from ..gradients import GradientHook
from ..hooks import Hook, recomputing
from ..local import in_transform
from .passing import Passing, laid_out, readable, real
from .placing import Axes, Places
from .quantity import BACKWARD, BUFFER
from .rows import channel_axis
from .task import Task


class Watch:
    """Hooks on modules that something is computed of.

    Args:
        roots: the modules whose forward is called.
        modules: by task, the module that it is of.
        recording: whether what modules return now belongs to training.
        places: where tensors are on the mesh.
        stopwatch: runs while the training thread is here.
    """

    def __init__(
        self,
        roots: Sequence[torch.nn.Module],
        modules: Mapping[Task, torch.nn.Module],
        recording: Callable[[], bool],
        places: Places,
        stopwatch: Stopwatch,
    ) -> None:
        self._roots, self._modules = roots, modules
        self._recording, self._places, self._stopwatch = recording, places, stopwatch
        self._handles: list[Any] = []
        self._calls: dict[tuple[torch.nn.Module, bool], int] = {}
        self._axes: dict[Task, Axes] = {}
        """Of what is gathered: it is placed as what it was gathered from."""

    def install(self, tasks: Collection[Task]) -> None:
        """Put hooks on the modules of these tasks."""
        self._calls.clear()
        by_module: dict[torch.nn.Module, list[Task]] = {}
        for task in tasks:
            by_module.setdefault(self._modules[task], []).append(task)
        if by_module:
            begins = Hook(self._root_begins)
            self._handles += [root.register_forward_pre_hook(begins) for root in self._roots]
        for module, theirs in by_module.items():
            self._handles.append(module.register_forward_hook(self._hook(theirs), with_kwargs=True))

    def remove(self) -> None:
        """Take all hooks off."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def forget(self) -> None:
        """Look at nothing more; the hooks stay, for a forked child must not disturb a forward."""
        self._handles = []

    def gathered(self, task: Task) -> None:
        """A step ends in which a task is due that keeps something of every step."""
        module = self._modules[task]
        with undisturbed("cpu"):
            buffers = [_buffer(module, name) for name in task.kept_needs]
            task.take_gathered(buffers, self._axes.get(task, {}))

    def _hook(self, tasks: Sequence[Task]) -> Hook:
        def forward(module: torch.nn.Module, inputs: Any, keywords: Any, output: Any) -> None:
            if torch.compiler.is_compiling() or is_tracing():
                return
            if self._handles and self._recording() and not in_transform():
                with self._stopwatch:
                    self._passes(tasks, Passing(module, inputs, keywords, output))

        return Hook(forward)

    def _root_begins(self, *_: Any) -> None:
        if not torch.compiler.is_compiling() and not recomputing():
            self._calls.clear()

    @eager
    def _passes(self, tasks: Sequence[Task], passing: Passing) -> None:
        again = recomputing()
        key = passing.module, again
        call = self._calls.get(key, 0)
        self._calls[key] = call + 1
        for task in tasks:
            if task.is_off or (again and not task.waits_for_backward):
                continue
            try:
                if task.waits_for_backward:
                    self._await(task, call, passing)
                else:
                    self._take(task, call, passing)
            except Exception as error:  # never into the training loop: told in the run
                task.fail(error)

    def _take(self, task: Task, call: int, passing: Passing) -> None:
        """Compute what needs the forward alone."""
        main = passing.output if task.quantity.needs[0] in _OF_OUTPUT else passing.input
        if main is None or not main.numel():
            task.misses("what passed through it had no elements")
            return
        channels = task.quantity.channels
        device = main.device.type
        with undisturbed(device):
            axes = self._axes_of(task, passing)
            if task.gathers:
                self._axes[task] = axes
                task.gather(call, _need(passing, task.quantity.needs[0], channels))
            elif task.is_due:
                tensors = [_need(passing, need, channels) for need in task.quantity.needs]
                task.take(call, tensors, _samples(passing.module, main, channels), axes)

    def _await(self, task: Task, call: int, passing: Passing) -> None:
        """Compute what needs gradients, once those of this call are there."""
        needs, channels = task.quantity.needs, task.quantity.channels
        found = {need: _need(passing, need, channels) for need in needs if need not in BACKWARD}
        missing = {need for need in needs if need in BACKWARD}
        axes, module = self._axes_of(task, passing), passing.module

        def arrives(gradient: torch.Tensor, of_input: bool) -> None:
            theirs = [need for need in missing if need.startswith("input") is of_input]
            for need in theirs:
                found[need] = laid_out(module, real(gradient), need, channels)
            if missing <= found.keys():
                tensors = [found[need] for need in needs]
                task.take(call, tensors, _samples(module, gradient, channels), axes)
                for need in missing:
                    del found[need]

        if any(need.startswith("output") for need in missing):
            self._listen(task, passing.output, lambda gradient: arrives(gradient, False))
        if any(need.startswith("input") for need in missing):
            self._listen(task, passing.input, lambda gradient: arrives(gradient, True))

    def _listen(
        self,
        task: Task,
        tensor: torch.Tensor | None,
        arrives: Callable[[torch.Tensor], None],
    ) -> None:
        """Have a function called with a tensor's gradient, while this step is open."""
        if tensor is None or not tensor.requires_grad or not tensor.numel():
            return
        handles = self._handles

        def arrived(gradient: torch.Tensor) -> None:
            if task.is_off or handles is not self._handles:
                return
            with self._stopwatch:
                try:
                    with undisturbed(gradient.device.type):
                        arrives(gradient)
                except Exception as error:  # never into the training loop: told in the run
                    task.fail(error)

        tensor.register_hook(GradientHook(arrived))

    def _axes_of(self, task: Task, passing: Passing) -> Axes:
        first, channels = task.quantity.needs[0], task.quantity.channels
        if first in _OF_OUTPUT or first.startswith("output"):
            return self._places.of_output(passing.module, passing.input, passing.output, channels)
        return self._places.of_input(passing.module, passing.input, channels)


_OF_OUTPUT = frozenset({"output", "output_by_channel", "output_channel_axis", "probabilities"})


@contextmanager
def undisturbed(device: str) -> Generator[None]:
    """Compute without a graph, and in the dtypes that are asked for."""
    with torch.no_grad(), torch.autocast(device, enabled=False):
        yield


def _need(passing: Passing, need: str, channels: int | None) -> Any:
    if need.startswith(BUFFER):
        return _buffer(passing.module, need.removeprefix(BUFFER))
    found = passing.tensor(need, channels)
    if found is None:
        raise ValueError(f"there is no {need.replace('_', ' ')}")
    return found


def _buffer(module: torch.nn.Module, name: str) -> torch.Tensor:
    found = readable(getattr(module, name, None))
    if found is None:
        raise ValueError(f"{type(module).__name__} has no buffer {name}")
    return found


def _samples(module: torch.nn.Module, tensor: torch.Tensor, channels: int | None) -> float:
    """How many rows of channels a tensor has, from its sizes alone."""
    shape = getattr(tensor, "_local_tensor", tensor).shape
    axis = channel_axis(module, tensor, channels)
    return float(shape.numel() // shape[axis]) if shape else 1.0
