"""Finds what a process trains: the models and their optimizers, when a forward first needs it.

Modules are asked as they are called, in looks that end soon: training comes first. Another look
begins where an optimizer is made, or updates, of whose parameters no model is known. What stays is
a hook on the steps of optimizers.

Only torch is imported here: most processes that import it train nothing.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .environment import OPTIONS
from .models import (
    elements_of,
    is_compiled,
    kind_of,
    may_be_copies,
    modules_around,
    pipeline_of,
    scaler_of_job,
    size_of,
)

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from ..agent.torch.unmodified import Training

MOST = 8
"""Models that one process observes at most at once."""
MOST_IN_ALL = 32
"""Models that one process observes at most, one after another."""
STEPS = 2
"""After so many steps of all models that a look has found it ends."""
LONG, SHORT = 64, 8
"""Updates after which a look ends anyway: that has found a model, that has found none. So many as
the latter it waits for optimizers that have not updated."""
FRUITLESS = 8
"""Looks that find no model; after that no more are looked for."""
GLOBAL_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"
"""How a warning of torch's begins; our hook is gone before anything is compiled."""


def install() -> None:
    """Have models observed from their first forward that trains them on; once in a process."""
    Finder(json.loads(os.environ[OPTIONS])).install()


class Finder:
    """Asks of each module that is called whether an optimizer updates it, until all are known.

    Args:
        options: of `observe`.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._optimizers = WeakKeyDictionary[Optimizer, None]()
        """In the order in which they were made, which is the same on all ranks."""
        self._made = 0
        """How many optimizers there have ever been."""
        self._untrained = WeakKeyDictionary[nn.Module, int]()
        """By module that no optimizer updated: how many there had been then."""
        self._unlike = WeakKeyDictionary[nn.Module, int]()
        """By module that has not as many elements as are updated: how many had updated then."""
        self._known = WeakSet[nn.Module]()
        """Modules of models that are observed, or cannot be."""
        self._trainings: list[Training] = []
        """Those that are not over."""
        self._begun = 0
        """How many there have ever been."""
        self._new = WeakKeyDictionary[Optimizer, None]()
        """Those that were made while models were observed, and are not told to these yet."""
        self._met = WeakKeyDictionary[Optimizer, int]()
        """By optimizer that has updated: how many groups of parameters it had then."""
        self._elements = WeakKeyDictionary[Optimizer, int]()
        """By optimizer that has updated how many it had then; ZeRO 3 takes them away."""
        self._strangers = WeakSet[Optimizer]()
        """Those that have updated, and have parameters of which no model is known."""
        self._look: RemovableHandle | None = None
        """That of the hook on all modules, while models are looked for."""
        self._found: list[Training] = []
        """What this look has found."""
        self._updates = self._fruitless = 0
        """In this look; and looks that found nothing."""
        self._past = WeakSet[GradScaler]()
        """Those of models that are left."""
        self._told = set[str]()

    def install(self) -> None:
        """Watch optimizers as they are made, and modules as they are called."""
        init = Optimizer.__init__

        @wraps(init)
        def made(optimizer: Optimizer, *arguments: Any, **keywords: Any) -> None:
            init(optimizer, *arguments, **keywords)
            self._optimizers[optimizer] = None
            self._made += 1
            if self._made == 1:
                atexit.register(self._ends)
                # Of all optimizers: those come before an optimizer's own.
                register_optimizer_step_pre_hook(self._updating_soon)
            if self._begun:
                self._guarded(self._has_made, optimizer)

        setattr(Optimizer, "__init__", made)  # noqa: B010  # its parameters have other names
        self._watch_compiling()
        warnings.filterwarnings("ignore", GLOBAL_HOOKS, UserWarning)
        self._begin_look()

    def _watch_compiling(self) -> None:
        """See the calls of modules that compile themselves, with all hooks: `module.compile()`."""
        compile_itself = nn.Module.compile

        @wraps(compile_itself)
        def compiled(module: nn.Module, *arguments: Any, **keywords: Any) -> None:
            compile_itself(module, *arguments, **keywords)
            call: Callable[..., Any] = module._compiled_call_impl  # pyright: ignore[reportPrivateUsage, reportAssignmentType]

            @wraps(call)
            def called(*arguments: Any, **keywords: Any) -> Any:
                if self._look is not None:
                    self._called(module, arguments)
                return call(*arguments, **keywords)

            module._compiled_call_impl = called  # pyright: ignore[reportPrivateUsage]

        setattr(nn.Module, "compile", compiled)  # noqa: B010  # as above

    def _begin_look(self) -> None:
        if self._look is None:
            self._found, self._updates = [], 0
            self._look = register_module_forward_pre_hook(self._called)

    def _ends(self) -> None:
        """The process ends, which was to train something."""
        self._end_look()
        if not self._begun and not self._told:
            tell(
                "nothing was observed in this process: an optimizer was made, and no module that "
                "it updates was called in training mode (`model.train()`)."
            )

    def _end_look(self) -> None:
        if self._look is None:
            return
        self._look.remove()
        self._look = None
        if self._found:
            return
        self._fruitless += 1
        kinds = " and ".join(sorted({type(one).__name__ for one in self._strangers}))
        self._strangers.clear()
        if kinds:
            self._tell_once(
                "strangers",
                f"what {kinds} updates is not observed, or not all of it: no module with these "
                "parameters was called in training mode.",
            )
        if self._fruitless == FRUITLESS:
            self._tell_once(
                "looks", "no further models are looked for: looks have found none too often."
            )

    def _called(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled()):
            return
        has_looked = self._has_looked()
        if self._begun and has_looked:
            is_on = bool(self._found and self._strangers)
            self._end_look()
            if is_on:  # for what those update
                self._begin_look()
        if module in self._known:
            return
        try:
            if self._untrained.get(module) != self._made:
                self._consider(module)
            elif has_looked and not self._found and self._unlike.get(module) != len(self._met):
                self._consider_main_weights(module)
        except Exception as error:  # never into the training loop
            self._known.update(module.modules())
            sentence = f"{type(module).__name__} is not observed: {_words(error)}"
            self._tell_once(sentence, sentence)

    def _has_looked(self) -> bool:
        """Whether all that is trained has been called by now."""
        if not self._found:
            return self._updates > SHORT
        if self._updates > LONG:
            return True
        # An optimizer that has not updated may be of a model that is called later, as a generator
        # after some updates of its critic.
        has_waited = self._updates > SHORT or len(self._met) >= len(self._optimizers)
        return has_waited and all(one.steps >= STEPS for one in self._found)

    def _has_made(self, optimizer: Optimizer) -> None:
        """Another optimizer is there, and its model has not been called yet, if it is another."""
        self._new[optimizer] = None
        if self._look is None and self._is_of_others(optimizer):
            self._begin_look()

    def _updating_soon(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        """Before each update of any optimizer: it takes about a microsecond."""
        self._updates += 1
        if self._new or self._met.get(optimizer) != len(optimizer.param_groups):
            self._guarded(self._meet, optimizer)
        for training in self._trainings:
            training.updates(optimizer)

    def _meet(self, optimizer: Optimizer) -> None:
        """Tell models of optimizers that have been made since, and look for those of this one."""
        new = [one for one in self._new if one is not optimizer]
        self._new.clear()
        has_met = self._met.get(optimizer) == len(optimizer.param_groups)
        self._met[optimizer] = len(optimizer.param_groups)
        self._elements[optimizer] = elements_of(optimizer)
        for training in self._trainings:
            for one in new:
                # Where it shares parameters it is to replace another, which may update until then.
                if training.is_held_by(one) and not training.shares(one):
                    training.join(one)
            if not has_met and training.is_held_by(optimizer):
                for one in training.join(optimizer):
                    self._met.pop(one, None)  # it may come back
        if not has_met and self._is_of_others(optimizer):
            self._strangers.add(optimizer)
            self._begin_look()

    def _is_of_others(self, optimizer: Optimizer) -> bool:
        """Whether it has weights of models that are to be looked for; a plain tensor is none."""
        if self._begun == MOST_IN_ALL or self._fruitless == FRUITLESS:
            return False
        held = (one for group in optimizer.param_groups for one in group["params"])
        own = {id(one) for one in held if type(one) is not torch.Tensor and one.requires_grad}
        for training in self._trainings:
            own -= training.own
        known = (id(one) for module in list(self._known) for one in module.parameters(False))
        return bool(own) and not own.issubset(known)

    def _consider(self, module: nn.Module) -> None:
        root, optimizers = self._trained(module)
        if not optimizers:
            self._untrained[module] = self._made
            return
        self._known.update(root.modules())
        self._strangers.difference_update(optimizers)
        # It is compiled next, and would be once more were the hook gone later.
        is_last = is_compiled(root)
        agent = sys.modules.get("rankscope.agent.torch.scope")
        if agent is not None and (run := agent.observed_as(root)):
            self._tell_once(
                run,
                f"{kind_of(root)} is not observed twice: the script itself does, as run {run!r}.",
            )
        elif self._has_room(root):
            self._observe(root, optimizers)
        if is_last or self._begun == MOST_IN_ALL:
            self._end_look()

    def _consider_main_weights(self, module: nn.Module) -> None:
        """Observe a model of which an optimizer updates copies, as float32 ones of 16-bit weights.

        It has as many elements then, or a rank's share of them.
        """
        homeless = [one for one in self._met if not any(t.is_held_by(one) for t in self._trainings)]
        elements = sum(self._elements[one] for one in homeless)
        if not homeless or not may_be_copies(module, elements):
            self._unlike[module] = len(self._met)
            return
        root = max(modules_around(module), key=size_of, default=module)
        root = root if may_be_copies(root, elements) else module
        self._known.update(root.modules())
        self._strangers.difference_update(homeless)
        if self._has_room(root):
            self._observe(root, homeless)
            kinds = " and ".join(sorted({type(one).__name__ for one in homeless}))
            tell(
                f"{kind_of(root)} is observed without its optimizer's state: {kinds} updates "
                "other tensors, of as many elements, which may be main weights in float32."
            )

    def _has_room(self, root: nn.Module) -> bool:
        """Whether another model can be observed, once those are left that are trained no more."""
        self._leave_those_that_are_over()
        for most, when in ((MOST, "at once"), (MOST_IN_ALL, "one after another")):
            if (len(self._trainings) if most == MOST else self._begun) >= most:
                self._tell_once(
                    "room",
                    f"{kind_of(root)} is not observed, nor are further models: a process "
                    f"observes {most} {when} at most.",
                )
                return False
        return True

    def _observe(self, root: nn.Module, optimizers: list[Optimizer]) -> None:
        from ..agent.torch.unmodified import Training

        number = self._begun + 1
        was_compiled = is_compiled(root) and any(one in self._met for one in optimizers)
        training = Training.begin(
            root,
            optimizers,
            suffix="" if number == 1 else f"-{number}-{kind_of(root)}",
            scaler=scaler_of_job(self._past),
            options=self._options,
        )
        self._begun = number
        # As where the parts of a model were trained alone before, or its head was another.
        self._leave([one for one in self._trainings if one.is_part_of(root)])
        self._known.update(root.modules())
        self._trainings.append(training)
        self._found.append(training)
        if was_compiled:
            tell(
                f"{kind_of(root)} was compiled before it was found: what its modules return "
                "is not observed."
            )

    def _leave_those_that_are_over(self) -> None:
        """No optimizer is left that updates them."""
        if self._trainings:
            gc.collect()  # a scheduler and its optimizer hold each other
            made = list(self._optimizers)
            self._leave([one for one in self._trainings if not any(map(one.is_held_by, made))])

    def _leave(self, trainings: Sequence[Training]) -> None:
        for one in trainings:
            self._trainings.remove(one)
            self._known.difference_update(one.model.modules())
            if one.scaler is not None:
                self._past.add(one.scaler)
            one.end()

    def _trained(self, module: nn.Module) -> tuple[nn.Module, list[Optimizer]]:
        """The model that a module belongs to, and what updates it."""
        if not self._updating(module):
            return module, []
        stages = pipeline_of(module)
        if stages is not None:
            return stages, self._updating(stages)
        # A loop may call parts of a model, never the model itself.
        root = max(modules_around(module), key=size_of, default=module)
        root = root if size_of(root) > size_of(module) else module
        return root, self._updating(root)

    def _updating(self, module: nn.Module) -> list[Optimizer]:
        own = {id(parameter) for parameter in module.parameters()}
        return [
            one
            for one in list(self._optimizers)
            if any(id(held) in own for group in one.param_groups for held in group["params"])
        ]

    def _guarded(self, job: Callable[[Optimizer], None], optimizer: Optimizer) -> None:
        try:
            job(optimizer)
        except Exception as error:  # never into the training loop
            self._tell_once(
                "errors", f"what {type(optimizer).__name__} updates is not known: {_words(error)}"
            )

    def _tell_once(self, what: str, sentence: str) -> None:
        """Say it, unless something of the kind was said before."""
        if what not in self._told:
            self._told.add(what)
            tell(sentence)


def tell(sentence: str) -> None:
    """Say something to who has started the process."""
    sys.stderr.write(f"rankscope: {sentence}\n")


def _words(error: Exception) -> str:
    """Our own errors are whole sentences; of others their class tells, too."""
    from ..sketch.errors import RankscopeError  # loads NumPy

    return str(error) if isinstance(error, RankscopeError) else f"{type(error).__name__}: {error}"
