"""Forward hooks: they find the site of each tensor and pass both to the recorder, and do no more.

Activations are seen by forward hooks, their gradients by hooks on the output tensors. Never by
full-backward hooks: those wrap the output, and an in-place operation on it then raises. A hook that
is compiled leaves operators in the graph, which tell what it would have seen (`compiled`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.jit._trace import is_tracing

from ...sketch.labels import more_words
from ...wire.messages import Placement
from . import compiled
from .apart import Apart, wrapped_in
from .eager import eager
from .local import is_addend
from .names import Names
from .nested import tensors_in
from .placements import ModulePlacements
from .recorder import SCHEDULED_AS, Recorder
from .tensor_sums import ADDEND, SUM, watch_input


def recomputing() -> bool:
    """Whether a forward runs inside a backward: activation checkpointing computes it again.

    Grad mode does not tell (non-reentrant checkpointing has it on both times); the id of the
    running backward does, in both modes.
    """
    # torch has no public way to ask, and its stubs leave this one out.
    return torch._C._current_graph_task_id() != -1  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def _is_tried_out() -> bool:
    """Whether torch.distributed.pipelining runs a stage to learn the sizes of what it returns.

    It does so once, with the first micro-batch and gradients; nothing but the stack tells.
    """
    pipelining: Any = sys.modules.get("torch.distributed.pipelining.stage")
    stage = getattr(pipelining, "PipelineStage", None)
    trial = getattr(getattr(stage, "_forward_metadata_inference", None), "__code__", None)
    frame = inspect.currentframe() if trial is not None else None
    while frame is not None and frame.f_code is not trial:
        frame = frame.f_back
    return frame is not None


def _is_called_within(root: torch.nn.Module) -> bool:
    """Whether the forward of a root that begins is called by another one of it, which runs on.

    Lightning has `DistributedDataParallel` call `training_step` as the forward, and that calls it.
    """
    # torch has no public way to ask; a forward that was left by an error is not on the stack.
    call = torch.nn.Module._call_impl.__code__  # pyright: ignore[reportPrivateUsage]
    calls, frame = 0, inspect.currentframe()
    while frame is not None:
        calls += frame.f_code is call and frame.f_locals.get("self") is root
        frame = frame.f_back
    return calls > 1


class Hook:
    """A hook on a user's module: in a copy of the module it does nothing, nor in a file of it.

    Averages of weights are begun by `copy.deepcopy`, and `torch.save` takes whole models.
    """

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        """What torch calls."""
        self._call(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # What takes any arguments, returns None, is loaded where rankscope is not installed, and
        # can be compiled.
        return getattr, (nullcontext(), "__exit__")


class HookApart(Hook):
    """One that the compiler counts apart: hooks of one class may be compiled 8 times together."""

    def __call__(self, *arguments: Any) -> None:
        """What torch calls."""
        self._call(*arguments)


class ModuleHooks:
    """Hooks on the chosen modules of a model and on the gradients of their outputs.

    Args:
        names: of its modules, and the roots among them.
        modules: classes, or names of classes, to observe; None for all.
        recorder: takes what is seen.
        placements: how outputs relate to the whole.
        training_only: whether forwards are left out while the model is in evaluation mode, and
            those without gradients.
    """

    def __init__(
        self,
        names: Names,
        modules: Sequence[type | str] | None,
        recorder: Recorder,
        placements: ModulePlacements,
        *,
        training_only: bool,
    ) -> None:
        self._recorder, self._training_only = recorder, training_only
        self._roots = names.roots
        """The mode of the first is that of all stages."""
        self._placements = placements if placements.is_needed else None
        self._calls: dict[tuple[tuple[str, ...], bool], int] = {}
        self._trains = True
        """Whether the last forward of the root that began is one of training.

        What a loss calls after one that only tries a stage out belongs to that.
        """
        self._apart = Apart()
        self._unended: dict[torch.nn.Module, int] = {}
        """By root the step in which a forward of it began that has not ended."""
        self._tokens: list[torch.Tensor] = []
        self._handles: list[Any] = []
        self._root_token = compiled.watched_by(_CompiledRoot(self, recorder, "taps", ""))
        self._print_token = compiled.watched_by(_CompiledPrint(self, recorder, "prints", ""))
        self._tokens += [self._root_token, self._print_token]
        chosen = [pair for pair in names.modules() if _is_chosen(pair[1], modules)]
        scripted = {module for _, module in chosen if isinstance(module, torch.jit.ScriptModule)}
        self._chosen = [(name, module) for name, module in chosen if module not in scripted]
        self._without = [name for name, module in chosen if module in scripted]
        """Those that take no hooks."""

    def attach(self) -> None:
        """Put the hooks on the model."""
        begins, ends = Hook(self._root_begins), Hook(self._root_ends)
        wrapped = [module for root in self._roots for module in wrapped_in(root)]
        for root in self._roots:
            self._handles.append(root.register_forward_pre_hook(begins, with_kwargs=True))
        for module in wrapped:
            hook = HookApart(self._whole_begins)
            self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        for name, module in self._chosen:
            self._attach(name, module)
        for root in self._roots:
            self._handles.append(root.register_forward_hook(ends))
        for module in wrapped:
            self._handles.append(module.register_forward_hook(HookApart(self._whole_ends)))
        if self._without:
            first, *others = self._without
            what = f"{first}{more_words(others)}"
            self._recorder.report(f"What {what} returns is not seen: torch.jit compiled it")

    def remove(self) -> None:
        """Take all hooks off the model."""
        for handle in self._handles:
            handle.remove()
        for token in self._tokens:
            compiled.forget(token)

    def forget_calls(self) -> None:
        """Count the calls of each module from 0 again."""
        self._calls.clear()

    def next_call(self, *what: str) -> int:
        """Number of this call within the forward of the root, recomputed calls apart."""
        call = (what, recomputing())
        occurrence = self._calls.get(call, 0)
        self._calls[call] = occurrence + 1
        return occurrence

    def _attach(self, name: str, module: torch.nn.Module) -> None:
        kind = type(module).__name__
        token = compiled.watched_by(_CompiledModule(self, self._recorder, name, kind))
        self._tokens.append(token)
        with_inputs = self._recorder.timetable.observes("input")
        with_gradients = self._recorder.timetable.observes("activation_gradient")
        with_outputs = with_gradients or self._recorder.timetable.observes("activation")

        with_addends = self._recorder.timetable.observes("local_activation")
        if with_addends and self._placements is not None and self._placements.adds_up(module):
            own = Hook(lambda module, _, output: self._addends_arrive(name, module, output))
            # Before the hook of torch's that adds them up over ranks.
            self._handles.append(module.register_forward_hook(own, prepend=True))

        with_sums = any(map(self._recorder.timetable.observes, (ADDEND, SUM)))
        if with_sums and self._placements is not None and self._placements.spreads(module):
            own = Hook(lambda module, inputs: self._inputs_arrive(name, module, inputs))
            # After the hook of torch's that makes a DTensor of the input.
            self._handles.append(module.register_forward_pre_hook(own))

        def forward(module: torch.nn.Module, inputs: Any, keywords: Any, output: Any) -> None:
            if torch.compiler.is_compiling():
                if with_inputs:
                    compiled.note_all((*inputs, keywords) if keywords else inputs, token, "input")
                if with_outputs:
                    compiled.note_all(output, token, "activation", gradients=with_gradients)
            elif self.recording():
                self._returns(name, module, (*inputs, keywords) if keywords else inputs, output)

        self._handles.append(module.register_forward_hook(Hook(forward), with_kwargs=True))

    def tap(self, name: str, tensor: torch.Tensor, mode: str) -> None:
        """Measure a tensor that the user names, and its gradient; of anything else tell once."""
        # Users without a type checker may pass anything.
        if not isinstance(tensor, torch.Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            self._recorder.refuse(("tap", name, "", 0), tensor)
        elif torch.compiler.is_compiling():
            compiled.note(tensor, self._root_token, "tap", name, str(mode), gradient=True)
        elif self._recorder.wants("tap", name):
            self._measure_called("tap", name, tensor, str(mode), gradient=True)

    def end_compiled_forward(self) -> None:
        """Take what modules return from now on for another one, whose beginning nobody tells."""
        self.forget_calls()
        if self.recording():
            self.weights_are_used()
        self._trains = True

    def begin_forward(self) -> None:
        """Take what modules return from now on for another forward of the root."""
        self._trains = not _is_tried_out()
        if torch.is_grad_enabled():
            self._apart.trains()
        if self.recording() and not recomputing():
            self._calls.clear()
            self.weights_are_used()

    def print(self, name: str, tensor: torch.Tensor, words: str, *, gradient: bool) -> None:
        """Print a tensor, and its gradient, as `printouts.in_words` says; else as `tap`."""
        recorder = self._recorder
        # Users without a type checker may pass anything.
        if not isinstance(tensor, torch.Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            recorder.refuse(("print", name, "", 0), tensor)
        elif torch.compiler.is_compiling():
            compiled.note(tensor, self._print_token, "print", name, words, gradient=gradient)
        elif recorder.wants("tap", name):
            self._measure_called("print", name, tensor, words, gradient=gradient)

    def print_as(self, name: str, occurrence: int, words: str) -> None:
        """Say which calls are printed until the step ends, and how."""
        mode = words.partition("\n")[0]
        self._recorder.calls.take_as("print", name, occurrence, mode)
        self._recorder.printouts.print_as(name, occurrence, words)

    def recording(self) -> bool:
        """Whether what modules return now belongs to a step that is recorded."""
        return self._recorder.is_open and self.training()

    def training(self) -> bool:
        """Whether the forward that runs is one that is observed, in whatever step."""
        trains = self._roots[0].training and self._trains and not self._apart
        # While it is traced sizes are tensors, and nobody trains.
        return (trains or not self._training_only) and not is_tracing()

    @eager
    def weights_are_used(self) -> None:
        """A forward of the root begins, or has just ended."""
        with self._recorder.stopwatch:
            try:
                self._recorder.forward_runs()
            except Exception as error:  # never into the training loop: told in the run
                self._recorder.report("The weights could not be read", error)

    @eager
    def _measure_called(
        self, kind: str, name: str, tensor: torch.Tensor, mode: str, *, gradient: bool
    ) -> None:
        """Measure what the user taps or prints."""
        recorder = self._recorder
        with recorder.stopwatch:
            try:
                occurrence = self.next_call(kind, name, "")
                if kind == "print":
                    self.print_as(name, occurrence, mode)
                else:
                    recorder.calls.take_as(kind, name, occurrence, mode)
                if not recomputing():
                    recorder.measure((kind, name, "", occurrence), tensor)
                if gradient and torch.is_grad_enabled():
                    recorder.measure_gradient((kind, name, "gradient", occurrence), tensor)
            except Exception as error:  # never into the training loop: told in the run
                recorder.report(f"The {kind} {name} could not be read", error)

    @eager
    def _returns(self, name: str, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        """A module returns in a step that is recorded."""
        with self._recorder.stopwatch:
            try:
                self._recorder.arrivals()
                self._output_arrives(name, module, inputs, output)
            except Exception as error:  # never into the training loop: told in the run
                self._recorder.report(f"The output of {name} could not be walked through", error)

    def _whole_begins(self, module: torch.nn.Module, inputs: Any, keywords: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            self._apart.begins(module, (inputs, keywords))
        except Exception as error:  # never into the training loop: told in the run
            self._recorder.report("What a forward was given could not be walked through", error)
        # A weight that is bad already may end the job while it generates.
        if self._apart and self._recorder.is_open and self._roots[0].training:
            self.weights_are_used()

    def _whole_ends(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        if not torch.compiler.is_compiling():
            self._apart.ends(module)

    def _root_begins(self, root: torch.nn.Module, inputs: Any, keywords: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._whole_begins(root, inputs, keywords)
        self.begin_forward()
        step = self._recorder.peek()
        if step is not None and self.recording() and not recomputing():
            if self._unended.get(root) == step.step and not _is_called_within(root):
                self._recorder.report(
                    f"A forward in step {step.step} did not end, and another began: the step holds "
                    "what was seen of both"
                )
            self._unended[root] = step.step

    def _root_ends(self, root: torch.nn.Module, _: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            self._unended.pop(root, None)
            self._apart.ends(root)
        else:
            for slot, tensor in tensors_in(output):
                compiled.note(tensor, self._root_token, "end", slot)
                break

    def _output_arrives(self, name: str, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        recorder, again, kind = self._recorder, recomputing(), type(module).__name__
        occurrence = self.next_call(name)
        placed = self._placed(module, inputs, output)
        if not again and recorder.wants("input", name):
            for slot, tensor in tensors_in(inputs):
                recorder.measure(("input", name, slot, occurrence), tensor, kind)
        activation = not again and recorder.wants("activation", name)
        gradient = recorder.wants("activation_gradient", name) and torch.is_grad_enabled()
        if not (activation or gradient):
            return
        for slot, tensor in tensors_in(output):
            if isinstance(tensor, torch.nn.Parameter):
                continue  # a weight, whose hooks would stay; Megatron's layers return their biases
            key = name, slot, occurrence
            if activation:
                recorder.measure(("activation", *key), tensor, kind, placed=placed.get(slot))
            if gradient:
                recorder.measure_gradient(
                    ("activation_gradient", *key), tensor, kind, placed.get(slot)
                )

    def _addends_arrive(self, name: str, module: torch.nn.Module, output: Any) -> None:
        """Measure what a row-parallel layer returns before it is added up over ranks."""
        if torch.compiler.is_compiling() or not self.recording() or recomputing():
            return
        if is_addend(output):
            with self._recorder.stopwatch:
                occurrence = self._calls.get(((name,), False), 0)
                key = ("local_activation", name, "", occurrence)
                self._recorder.measure(key, output, type(module).__name__)

    def _inputs_arrive(self, name: str, module: torch.nn.Module, inputs: Any) -> None:
        """Have measured what the backward of a column-parallel layer adds up over ranks."""
        if torch.compiler.is_compiling() or not self.recording() or not torch.is_grad_enabled():
            return
        with self._recorder.stopwatch:
            try:
                occurrence = self._calls.get(((name,), recomputing()), 0)
                kind = type(module).__name__
                for tensor in inputs[:1]:
                    watch_input(self._recorder, tensor, name, occurrence, kind)
            except Exception as error:  # never into the training loop: told in the run
                self._recorder.report(f"The input of {name} could not be watched", error)

    def _placed(
        self, module: torch.nn.Module, inputs: Any, output: Any
    ) -> dict[str, dict[str, Placement]]:
        """By slot: how the outputs of a module relate to the whole."""
        if self._placements is None:
            return {}
        pairs = tensors_in(output)
        return {slot: self._placements.of(module, inputs, tensor) for slot, tensor in pairs}


class _CompiledModule:
    """Told of the tensors of one module by the operators in compiled code."""

    def __init__(self, hooks: ModuleHooks, recorder: Recorder, name: str, module: str) -> None:
        self._hooks, self._recorder = hooks, recorder
        self._name, self._module = name, module

    def arrives(self, kind: str, slot: str, mode: str, tensor: torch.Tensor) -> int:
        """Measure a tensor, unless it is computed again; the number of its call."""
        site = self._site(kind, slot)
        if site is None:
            return compiled.NOT_RECORDED
        with self._recorder.stopwatch:
            occurrence = self._hooks.next_call(*site)
            self._take_as(slot, occurrence, mode)
            if self._due(kind) and not recomputing():
                self._recorder.measure((*site, occurrence), tensor, self._module, borrowed=True)
        return occurrence

    def gradient_arrives(self, slot: str, occurrence: int, gradient: torch.Tensor) -> None:
        """Measure the gradient of an output of that call."""
        site = self._gradient_site(slot)
        if self._due(site[0]):
            with self._recorder.stopwatch:
                self._recorder.measure((*site, occurrence), gradient, self._module, borrowed=True)

    def failed(self, error: Exception) -> None:
        """Tell of an error in the run."""
        self._recorder.report(f"Compiled tensors of {self._name} could not be noted", error)

    def _site(self, kind: str, slot: str) -> tuple[str, str, str] | None:
        """(kind, name, slot), or None where this is not recorded."""
        return (kind, self._name, slot) if self._hooks.recording() else None

    def _gradient_site(self, slot: str) -> tuple[str, str, str]:
        return "activation_gradient", self._name, slot

    def _take_as(self, slot: str, occurrence: int, mode: str) -> None:
        """Of modules every call is measured."""

    def _due(self, kind: str) -> bool:
        return self._recorder.timetable.due(kind)


class _CompiledRoot(_CompiledModule):
    """Told of taps, whose name is in the slot, and of the end of a forward of the root.

    Of its end, for an operator at its beginning would take nothing that the others make, and might
    run after them.
    """

    def arrives(self, kind: str, slot: str, mode: str, tensor: torch.Tensor) -> int:
        """Count calls from 0 again at the end of a forward; else as of any module."""
        if kind == "tap":
            return super().arrives(kind, slot, mode, tensor)
        if not recomputing():
            self._hooks.end_compiled_forward()
        return compiled.NOT_RECORDED

    def _site(self, kind: str, slot: str) -> tuple[str, str, str] | None:
        return (kind, slot, "") if self._recorder.timetable.due(kind) else None

    def _gradient_site(self, slot: str) -> tuple[str, str, str]:
        return "tap", slot, "gradient"

    def _take_as(self, slot: str, occurrence: int, mode: str) -> None:
        self._recorder.calls.take_as("tap", slot, occurrence, mode)


class _CompiledPrint(_CompiledModule):
    """Told of what is to be printed, whose name is in the slot, and how in the mode."""

    def _site(self, kind: str, slot: str) -> tuple[str, str, str] | None:
        return (kind, slot, "") if self._due(kind) else None

    def _gradient_site(self, slot: str) -> tuple[str, str, str]:
        return "print", slot, "gradient"

    def _take_as(self, slot: str, occurrence: int, mode: str) -> None:
        self._hooks.print_as(slot, occurrence, mode)

    def _due(self, kind: str) -> bool:
        return super()._due(SCHEDULED_AS[kind])


def _is_chosen(module: torch.nn.Module, modules: Sequence[type | str] | None) -> bool:
    if modules is None:
        return True
    return any(
        type(module).__name__ == wanted if isinstance(wanted, str) else isinstance(module, wanted)
        for wanted in modules
    )
