"""`rankscope doctor --poptorch`: whether PopTorch does what the agent takes for granted.

It trains a tiny model on the IPU, or on the IPU model where POPTORCH_IPU_MODEL=1 is set, and says
one line of each assumption. Nothing is stored, and no collector is needed.
"""

from __future__ import annotations

import copy
import importlib
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import click

from .compiling import poptorch_of
from .names import GRADIENT, UPDATED, anchors_of, numbers_of
from .returned import MODES, Returned

ROWS, WIDTH = 4, 3
"""Of a micro-batch, and of its samples."""
NEEDS = (3, 11)
"""The oldest Python that the agent runs on."""
INSTALLED = (
    "PopTorch's wheels come with the Poplar SDK, by its documents for Python 3.8; rankscope needs "
    "Python 3.11. What can work is PopTorch 3.3 or 3.4 built from its sources for "
    "Python 3.11, with torch 2.0.1. Nobody has tried that"
)


@dataclass(slots=True, kw_only=True)
class Assumption:
    """One line."""

    text: str
    holds: Callable[[Trial], bool]


@click.command()
@click.option("--poptorch", is_flag=True, required=True, help="Check what the agent assumes of it.")
def doctor(poptorch: bool) -> None:
    """Check PopTorch against what the agent for it takes for granted; a line each.

    It needs an IPU, or POPTORCH_IPU_MODEL=1. The exit code is 1 if something is otherwise.
    """
    is_bad = False
    for state, text in findings():
        click.echo(f"{state:<5} {text}")
        is_bad |= state == "bad"
    sys.exit(int(is_bad))


def findings() -> Iterator[tuple[str, str]]:
    """Of each assumption `ok` or `bad`, and what it is."""
    python = ".".join(map(str, NEEDS))
    yield "ok", f"Python {platform.python_version()}; rankscope needs {python} or newer."
    try:
        poptorch = importlib.import_module("poptorch")
    except ImportError as error:
        yield "bad", f"poptorch cannot be imported ({error}). {INSTALLED}."
        return
    yield "ok", f"poptorch {getattr(poptorch, '__version__', 'of unknown version')} is here."
    trial = Trial(poptorch)
    for assumption in ASSUMPTIONS:
        try:
            held = assumption.holds(trial)
            yield ("ok" if held else "bad"), assumption.text + ("." if held else ": it is not so.")
        except Exception as error:  # it is what the line is about
            yield "bad", f"{assumption.text}: {type(error).__name__}: {error}".rstrip(".") + "."


@dataclass
class Trial:
    """A tiny model under training, compiled when it is first asked for."""

    poptorch: Any
    torch: Any = field(init=False)

    def __post_init__(self) -> None:
        self.torch = importlib.import_module("torch")

    @cached_property
    def plain(self) -> Any:
        """An executor with no anchors, compiled."""
        executor = self.executor(self.poptorch.Options())
        executor.compile(*self.batch(1))
        return executor

    @cached_property
    def anchored(self) -> Any:
        """An executor with a gradient and a weight anchored, after one call."""
        return self.called(self.poptorch.Options(), "final")

    def executor(self, options: Any, optimizer: Any = None) -> Any:
        """A model of one layer, wrapped."""
        layer, loss = self.torch.nn.Linear(WIDTH, 1), self.torch.nn.MSELoss()

        class Model(self.torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.loss = layer, loss

            def forward(self, x: Any, y: Any) -> Any:
                return self.loss(self.layer(x), y)

        model = Model()
        made = optimizer(model.parameters()) if optimizer is not None else None
        return self.poptorch.trainingModel(model, options=options, optimizer=made)

    def batch(self, micro_batches: int) -> tuple[Any, Any]:
        """What so many take."""
        rows = ROWS * micro_batches
        return self.torch.ones(rows, WIDTH), self.torch.zeros(rows, 1)

    def called(self, options: Any, mode: str, period: int | None = None, asked: Any = None) -> Any:
        """An executor with two anchors, two device iterations and two accumulations, called."""
        options.deviceIterations(2)
        options.Training.gradientAccumulation(2)
        set_mode = getattr(options, "outputMode", None) or options.anchorMode
        set_mode(self.modes[mode], period)
        names = {
            one.key[0]: one.long_name for one in self.anchors() if one.key[1] == "layer.weight"
        }
        extra = () if asked is None else (self.modes[asked],)
        options.anchorTensor("gradient", names["weight_gradient"], *extra)
        options.anchorTensor("updated", names["weight"], *extra)
        executor = self.executor(options)
        executor(*self.batch(4))
        return executor

    def anchors(self) -> list[Any]:
        """What the agent finds among the names."""
        names = self.plain.getTensorNames()
        return list(anchors_of(names, ["layer.weight", "layer.bias"], "SGD"))

    @property
    def modes(self) -> dict[str, Any]:
        """Members of the enumeration by what the agent calls them."""
        modes = getattr(self.poptorch, "OutputMode", None) or self.poptorch.AnchorMode
        return {name: modes(value) for value, name in enumerate(MODES)}


def refuses(call: Callable[[], object], words: str) -> bool:
    """Whether an AssertionError says so."""
    try:
        call()
    except AssertionError as error:
        return words in str(error)
    return False


def folded(trial: Trial, mode: str, period: int | None, repeats: int) -> bool:
    """Whether a gradient [1, WIDTH] comes as [repeats, WIDTH]."""
    executor = trial.called(trial.poptorch.Options(), mode, period)
    returned = Returned.of(executor.options)
    gradient = executor.getAnchoredTensor("gradient")
    return returned.repeats == repeats and tuple(gradient.shape) == (repeats, WIDTH)


def is_last_of_all(trial: Trial) -> bool:
    """Whether the last of `all` is what was updated last."""
    executor = trial.called(trial.poptorch.Options(), "all")
    updated = executor.getAnchoredTensor("updated")
    executor.copyWeightsToHost()
    weight = dict(executor.model.named_parameters())["layer.weight"].detach()
    return bool(trial.torch.allclose(updated[-1:], weight))


def keeps_names_to_itself(trial: Trial) -> bool:
    """Whether getTensorNames is refused before compilation."""
    executor = trial.executor(trial.poptorch.Options())
    return refuses(executor.getTensorNames, "must be compiled")


def refuses_unknown_names(trial: Trial) -> bool:
    """Whether an anchor of no tensor is an error that names it."""
    options = trial.poptorch.Options()
    options.anchorTensor("x", f"{GRADIENT}no.such")
    try:
        trial.executor(options).compile(*trial.batch(1))
    except Exception as error:  # whichever PopTorch raises
        return "not in tensors" in str(error)
    return False


def ignores_modes_of_anchors(trial: Trial) -> bool:
    """Whether an anchor that asks for all gets what the model's final gives."""
    executor = trial.called(trial.poptorch.Options(), "final", asked="all")
    return tuple(executor.getAnchoredTensor("gradient").shape) == (1, WIDTH)


def has_hyperparameters(trial: Trial) -> bool:
    """Whether the optimizer's state tells the loss scale and learning rates."""
    made = list[Any]()

    def adam(parameters: Any) -> Any:
        made.append(trial.poptorch.optim.Adam(parameters, lr=0.25, loss_scaling=8.0))
        return made[0]

    executor = trial.executor(trial.poptorch.Options(), adam)
    if made[0].state_dict()["ipu_param"] is not None:
        return False
    executor.compile(*trial.batch(1))
    numbers = numbers_of(made[0].state_dict()["ipu_param"])
    return numbers.get("loss_scale") == 8.0 and numbers.get("lr") == 0.25


def copies_are_free(trial: Trial) -> bool:
    """Whether a copy of options that a model has taken can be changed."""
    options = trial.poptorch.Options()
    trial.executor(options)
    copied = copy.deepcopy(options)
    copied.deviceIterations(2)
    copied.enableExecutableCaching(None)
    return copied.device_iterations == 2


def starts_with(trial: Trial, prefix: str) -> bool:
    """Whether some name does."""
    return any(name.startswith(prefix) for name in trial.plain.getTensorNames())


def makes_tensors_anew(trial: Trial) -> bool:
    """Whether what an earlier call made stays as it was."""
    before = trial.anchored.getAnchoredTensor("updated")
    value = before.clone()
    trial.anchored(*trial.batch(4))
    after = trial.anchored.getAnchoredTensor("updated")
    return before.data_ptr() != after.data_ptr() and bool((before == value).all())


ASSUMPTIONS = (
    Assumption(
        text="poptorch.Options is found by its type, with its module",
        holds=lambda trial: poptorch_of(trial.poptorch.Options()) is trial.poptorch,
    ),
    Assumption(
        text="Copies of options that a model has taken can be changed", holds=copies_are_free
    ),
    Assumption(text="getTensorNames is refused before compilation", holds=keeps_names_to_itself),
    Assumption(
        text=f"Names of gradients begin with {GRADIENT}",
        holds=lambda trial: starts_with(trial, GRADIENT),
    ),
    Assumption(
        text=f"Names of updated weights begin with {UPDATED}",
        holds=lambda trial: starts_with(trial, UPDATED),
    ),
    Assumption(
        text="Each parameter is found among them, with or without `model.`",
        holds=lambda trial: (
            {one.key[:2] for one in trial.anchors()}
            >= {
                (k, f"layer.{n}") for k in ("weight", "weight_gradient") for n in ("weight", "bias")
            }
        ),
    ),
    Assumption(text="An anchor of no tensor is an error", holds=refuses_unknown_names),
    Assumption(
        text="An anchor without a tensor is an AssertionError",
        holds=lambda trial: refuses(
            lambda: trial.anchored.getAnchoredTensor("nothing"), "No tensor with name"
        ),
    ),
    Assumption(
        text="Of two iterations and two accumulations, final returns one micro-batch",
        holds=lambda trial: folded(trial, "final", None, 1),
    ),
    Assumption(
        text="sum returns one, too",
        holds=lambda trial: folded(trial, "sum", None, 1),
    ),
    Assumption(
        text="all returns four, folded into the first dimension",
        holds=lambda trial: folded(trial, "all", None, 4),
    ),
    Assumption(
        text="every(2) returns two",
        holds=lambda trial: folded(trial, "every", 2, 2),
    ),
    Assumption(text="The last of all is the last that was made", holds=is_last_of_all),
    Assumption(text="The mode of a single anchor is ignored", holds=ignores_modes_of_anchors),
    Assumption(
        text="Each call makes its anchored tensors anew",
        holds=makes_tensors_anew,
    ),
    Assumption(
        text="The optimizer's state tells the loss scale and learning rates once compiled",
        holds=has_hyperparameters,
    ),
)
