"""A training whose script says nothing of rankscope: its steps end where its optimizers say so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.amp.grad_scaler import GradScaler

from ..selection import RankscopeWarning
from ..settings import run_name
from .hooks import Hook
from .observing import observe
from .replaceable import ReplaceableOptimizers
from .scope import Scope
from .settings import as_list, is_compiled
from .stages import stages_around, stages_made

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

PATIENCE = 8
"""Steps for which an optimizer that does not update is waited for."""
SKIPS = 32
"""Updates that a GradScaler leaves out one after another, at most; each is a step."""


class Training:
    """One model under observation, from the first forward that trains it until nothing can.

    A step ends after the update. Of several optimizers it ends when each has updated, or before
    one does for the second time; one whose parameters stay frozen, or that has long not updated, is
    not waited for. Whether they do is known when the next forward begins: in a GAN each network may
    be frozen while the other is trained. Where a GradScaler leaves the update out, it ends with
    `GradScaler.update()`.

    Args:
        scope: that of the model.
        optimizers: those that update it.
        observed: the same without what a library wraps around them, which the scope was given.
        scaler: the job's, if it has one.
        asks: whether forwards may be asked what is frozen; what is compiled might be once more.
    """

    def __init__(
        self,
        scope: Scope,
        optimizers: Sequence[torch.optim.Optimizer],
        observed: ReplaceableOptimizers,
        scaler: GradScaler | None,
        *,
        asks: bool,
    ) -> None:
        self._scope, self._observed = scope, observed
        self.scaler = scaler
        self._has_copies = not observed
        """Whether the optimizers update copies of the weights, of which the scope knows nothing."""
        self._optimizers = ReplaceableOptimizers(optimizers)
        self.own = frozenset(map(id, scope.model.parameters())).union(*map(_held_by, optimizers))
        """The model's parameters, and what is updated in their place, by identity."""
        self._updated = WeakSet[torch.optim.Optimizer]()
        """Those that have updated in the step that is open."""
        self._idle = WeakKeyDictionary[torch.optim.Optimizer, int]()
        """For how many steps each has not updated."""
        self._frozen = WeakSet[torch.optim.Optimizer]()
        """Those whose parameters were frozen in the forward after the others' update."""
        self._asks = asks
        self._asking: list[RemovableHandle] = []
        """Hooks that tell of the next forward, while it is to be asked which are frozen."""
        self._joined = WeakSet[torch.optim.Optimizer]()
        """Those that were added in the step that is open."""
        self._replaced = WeakSet[torch.optim.Optimizer]()
        self._handles = WeakKeyDictionary[torch.optim.Optimizer, Any]()
        self._has_ended = False
        """Whether a step has ended since the scaler was updated."""
        self._left_out = 0
        """Steps without an update, since the last one."""
        self._scaled = WeakSet[torch.optim.Optimizer]()
        """Those that the scaler was given since it was updated; their updates may be left out."""
        self._is_over = False
        self.steps = 0
        """Those that have ended."""

    @classmethod
    def begin(
        cls,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        suffix: str,
        scaler: GradScaler | None,
        options: Mapping[str, Any],
    ) -> Training:
        """Observe a model from the forward on that is about to begin.

        Whoever calls it says before each update of whatever optimizer that it `updates`.

        Args:
            model: with its wrappers.
            optimizers: all that update it, or copies of its weights.
            suffix: what is added to the name of the run.
            scaler: the job's, if it has one.
            options: further ones of `observe`.

        Raises:
            RankscopeError: it cannot be observed.
        """
        name = run_name(None) + suffix
        own = set(map(id, model.parameters()))
        direct = [one for one in optimizers if not own.isdisjoint(_held_by(one))]
        observed = ReplaceableOptimizers(dict.fromkeys(as_list(direct)))
        with warnings.catch_warnings():  # it is compiled, but has not run so in training
            warnings.filterwarnings("ignore", "The model is compiled already", RankscopeWarning)
            start = updates_made(as_list(optimizers))
            # A list, as of two critics, is one model, but for the stages of a pipeline.
            whole = model if stages_around(stages_made(), [model]) else [model]
            scope = observe(whole, observed, run=name, scaler=scaler, start=start, **options)
        training = cls(scope, optimizers, observed, scaler, asks=not is_compiled(model))
        scope.__enter__()
        scope.ends_with_process = True
        for one in optimizers:
            training._listen(one)
        if scaler is not None:
            _call_after(scaler, "step", training._is_scaled)
            _call_after(scaler, "update", training._has_scaled)
        scope.begin_forward()
        return training

    @property
    def model(self) -> torch.nn.Module:
        """What is observed."""
        return self._scope.model

    def is_held_by(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer has some of the model's parameters."""
        return not self.own.isdisjoint(_held_by(optimizer))

    def is_part_of(self, other: torch.nn.Module) -> bool:
        """Whether another model has all parameters that this one has by now."""
        return set(map(id, self.model.parameters())) <= set(map(id, other.parameters()))

    def updates(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to update, this model or another.

        To be called before the optimizer's own hooks are, so that the scope sees the update in the
        step that it begins, and may put its hooks on and off meanwhile.
        """
        if optimizer in self._updated:
            self._end_step()

    def join(self, optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
        """An optimizer that the script has made meanwhile updates the model.

        It replaces those that hold some of the same parameters, which are returned; not where it
        comes back itself after it was replaced, for then both are used.
        """
        if optimizer in self._optimizers:
            return []
        has_come_back = optimizer in self._replaced
        old = [] if has_come_back else self._alike(optimizer)
        for one in old:
            self._handles.pop(one).remove()
            self._replaced.add(one)
            self._optimizers.remove(one)
        self._optimizers.add(optimizer)
        if not self._has_copies:
            self._scope.replace_optimizers(self._observed, *as_list(optimizer), old=as_list(old))
        self._joined.add(optimizer)
        self._listen(optimizer)
        return old

    def shares(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer has parameters of the model that another one has, too."""
        own = self.own.intersection(_held_by(optimizer))
        return any(not own.isdisjoint(_held_by(one)) for one in self._optimizers)

    def end(self) -> None:
        """Observe the model no longer: nothing is left of us in the script."""
        self._is_over = True
        self._stop_asking()
        for handle in self._handles.values():
            handle.remove()
        self._scope.leave_behind()
        del self._scope  # what has been called for the scaler keeps this object, and no model

    def _alike(self, optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
        """Those of the same parameters, but for who is at work: one around another is, too."""
        held = self.own.intersection(_held_by(optimizer))
        return [
            one
            for one in self._optimizers
            if one not in self._updated
            and one not in self._joined
            and not held.isdisjoint(_held_by(one))
        ]

    def _listen(self, optimizer: torch.optim.Optimizer) -> None:
        self._handles[optimizer] = optimizer.register_step_post_hook(self._has_updated)

    def _has_updated(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._updated.add(optimizer)
        self._frozen.discard(optimizer)
        awaited = self._awaited()
        if not awaited:
            self._end_step()
        elif all(map(_is_frozen, awaited)):
            self._ask_at_next_forward()

    def _awaited(self) -> list[torch.optim.Optimizer]:
        """Those that may yet update in the step that is open."""
        return [
            one
            for one in self._optimizers
            if one not in self._updated
            and self._idle.get(one, 0) < PATIENCE
            and not (one in self._frozen and _is_frozen(one))
        ]

    def _ask_at_next_forward(self) -> None:
        """Have it asked whether those that are awaited are frozen then, too.

        Where that cannot be, the step ends before the next update.
        """
        if self._asks and not self._asking:
            self._asking = [
                module.register_forward_pre_hook(Hook(self._begins), prepend=True)
                for module in self.model.modules()
                if not isinstance(module, torch.jit.ScriptModule)
            ]

    def _begins(self, module: torch.nn.Module, _: Any) -> None:
        """A forward, or a part of one, begins after an update."""
        if not (module.training and torch.is_grad_enabled()):
            return
        self._stop_asking()
        awaited = self._awaited()
        if self._updated and all(map(_is_frozen, awaited)):
            self._end_step()

    def _stop_asking(self) -> None:
        for handle in self._asking:
            handle.remove()
        self._asking = []

    def _is_scaled(self, optimizer: object, *_: Any, **__: Any) -> None:
        if isinstance(optimizer, torch.optim.Optimizer):
            self._scaled.add(optimizer)

    def _has_scaled(self, *_: Any, **__: Any) -> None:
        if not self._has_ended:
            self._updated.update(one for one in self._scaled if one in self._optimizers)
        self._scaled.clear()
        # Where that goes on for long the scaler is another model's by now.
        is_left_out = not self._has_ended and self._left_out < SKIPS
        if not self._is_over and (self._updated or is_left_out):
            awaited = self._awaited()
            # A scaler may be updated after each update of a GAN, as by Lightning.
            if self._updated and awaited and all(map(_is_frozen, awaited)):
                self._ask_at_next_forward()
            else:
                self._end_step()
        self._has_ended = False

    def _end_step(self) -> None:
        self._left_out = 0 if self._updated else self._left_out + 1
        if self._updated:
            for one in self._optimizers:
                self._idle[one] = 0 if one in self._updated else self._idle.get(one, 0) + 1
            self._frozen.update(filter(_is_frozen, self._awaited()))
        self._stop_asking()
        self._updated.clear()
        self._joined.clear()
        self._has_ended = True
        self._scope.step()
        self.steps += 1


def updates_made(optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """How many updates there were before, as far as their state says: that of a checkpoint does."""
    states = (state for one in optimizers for state in one.state.values())
    steps = (state.get("step", 0) for state in states if isinstance(state, dict))
    # A DTensor would be asked for by a collective.
    return max((int(one) for one in steps if type(one) in (int, float, torch.Tensor)), default=0)


def _is_frozen(optimizer: torch.optim.Optimizer) -> bool:
    """Whether none of its parameters is to have a gradient."""
    held = (one for group in optimizer.param_groups for one in group["params"])
    return not any(one.requires_grad for one in held)


def _held_by(optimizer: torch.optim.Optimizer) -> set[int]:
    """By identity its parameters."""
    return {id(one) for group in optimizer.param_groups for one in group["params"]}


def _call_after(owner: object, name: str, call: Callable[..., None]) -> None:
    """Have `call` called after each call of a method of one object, with its arguments."""
    method = getattr(owner, name)

    @wraps(method)
    def both(*arguments: Any, **keywords: Any) -> Any:
        result = method(*arguments, **keywords)
        call(*arguments, **keywords)
        return result

    setattr(owner, name, both)
