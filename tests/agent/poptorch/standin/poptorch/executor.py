"""The executor as of python/_poplar_executor.py, and the device behind it, on torch's CPU."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from . import optim
from .options import Options, OutputMode

Tensor = torch.Tensor
Values = dict[str, Tensor]
STATES = {"exp_avg": "Accl1___", "exp_avg_sq": "Accl2___", "momentum_buffer": "Accl___"}


class Error(RuntimeError):
    """python/_impl.py, `createPoptorchError`; what PopART throws comes as one."""


class _Graph:
    """What `compile` captured: a copy of the model, its hooks included, with weights of its own."""

    def __init__(self, model: torch.nn.Module, optimizer: Any, options: Options) -> None:
        self.model = copy.deepcopy(model)
        self.prefix = "model." if options.Jit.trace_model else ""
        self.parameters = dict(self.model.named_parameters())
        self.loss_scaling = getattr(optimizer, "loss_scaling", 1.0)
        old = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = [
            {**group, "params": [self.parameters[old[id(one)]] for one in group["params"]]}
            for group in optimizer.param_groups
        ]
        base = next(one for one in type(optimizer).__mro__ if one.__module__.startswith("torch."))
        self.optimizer = base(groups)  # which have all their settings
        self.traced: Values = {}
        self.structure: TreeSpec | None = None
        for name, module in self.model.named_modules():
            if name:
                module.register_forward_hook(self._keep(f"{name}/{type(module).__name__}:0"))

    def update(self, optimizer: Any) -> None:
        """`setOptimizer` takes hyper-parameters to the device."""
        self.loss_scaling = getattr(optimizer, "loss_scaling", 1.0)
        for mine, theirs in zip(self.optimizer.param_groups, optimizer.param_groups, strict=True):
            mine.update({key: value for key, value in theirs.items() if key != "params"})

    def run(self, inputs: tuple[Tensor, ...]) -> tuple[list[Tensor], Values]:
        """Forward and backward of one micro-batch: what the model returns, and traced tensors."""
        self.traced = {f"input{'' if not at else f'/{at}'}": x for at, x in enumerate(inputs)}
        self.optimizer.zero_grad()
        returned = self.model(*inputs)
        outputs, self.structure = tree_flatten(returned)
        loss = next(one for one in outputs if one.requires_grad and one.numel() == 1)
        (loss * self.loss_scaling).backward()
        gradients = {
            f"Gradient___{self.prefix}{name}": one.grad.clone()
            for name, one in self.parameters.items()
            if one.grad is not None
        }
        kept = {name: value.detach().clone() for name, value in self.traced.items()}
        return [one.detach() for one in outputs], {**kept, "loss": loss.detach(), **gradients}

    def apply(self, gradients: list[Values]) -> None:
        """The update, of the mean over micro-batches and replicas, without the loss scale."""
        for name, parameter in self.parameters.items():
            key = f"Gradient___{self.prefix}{name}"
            if key in gradients[0]:
                mean = torch.stack([one[key] for one in gradients]).mean(0)
                parameter.grad = mean / self.loss_scaling
        self.optimizer.step()

    def variables(self) -> Values:
        """After an update: `UpdatedVar___` of weights, and the state as the optimizer has it."""
        found: Values = {}
        for name, parameter in self.parameters.items():
            found[f"{self.prefix}{name}"] = parameter.detach().clone()
            if parameter.requires_grad:
                found[f"UpdatedVar___{self.prefix}{name}"] = parameter.detach().clone()
        return {**found, **self.state(), **self.hyperparameters()}

    def state(self) -> Values:
        """Zero before the first update, as PopART makes them."""
        found: Values = {}
        group = self.optimizer.param_groups[0]
        names = ("exp_avg", "exp_avg_sq") if "betas" in group else ("momentum_buffer",)
        for name, parameter in self.parameters.items():
            state = self.optimizer.state.get(parameter, {})
            for key in names if "betas" in group or group["momentum"] else ():
                value = state.get(key)
                value = torch.zeros_like(parameter) if value is None else value
                found[f"{STATES[key]}{self.prefix}{name}"] = value.detach().clone()
        return found

    def hyperparameters(self) -> Values:
        """Named as test_read_ipu_state of tests/optimizers_test.py has them."""
        found = {"lossScaling_FLOAT": torch.tensor(self.loss_scaling)}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                name = next(key for key, one in self.parameters.items() if one is parameter)
                key = "learningRate" if "betas" in group else "scaledLearningRate0"
                scale = 1.0 if "betas" in group else self.loss_scaling
                value = torch.tensor(group["lr"] / scale)
                found[f"{key}___specific___{self.prefix}{name}"] = value
        return found

    def names(self) -> set[str]:
        """Of all tensors, as `_getTensorNames` of the C++ side gives them after compilation."""
        trained = {name for name, one in self.parameters.items() if one.requires_grad}
        return {
            *(f"{self.prefix}{name}" for name in self.parameters),
            *(
                f"{kind}___{self.prefix}{name}"
                for kind in ("Gradient", "UpdatedVar")
                for name in trained
            ),
            *(f"{name}/{type(one).__name__}:0" for name, one in self.model.named_modules() if name),
            *self.state(),
            *self.hyperparameters(),
            "input",
            "loss",
        }

    def _keep(self, name: str) -> Any:
        def hook(_: torch.nn.Module, given: Any, returned: Any) -> None:
            if isinstance(returned, Tensor):
                self.traced[name] = returned

        return hook


class PoplarExecutor:
    """Wraps a model for training. Options are cloned, and both copies frozen."""

    _cache: ClassVar[set[tuple[str, str]]] = set()
    """What lies in folders of executables."""

    def __init__(self, model: torch.nn.Module, options: Options | None, optimizer: Any) -> None:
        options = options or Options()
        options.freeze()
        self._options = options.clone()
        if self._options.defaultOutputMode():
            Options.outputMode(self._options, OutputMode.Final)
        self._user_model = model
        self._optimizer = optimizer or optim.SGD(model.parameters(), lr=0.01)
        self._executable: _Graph | None = None
        self._is_from_cache = False
        self._anchor_memory: Values = {}
        for anchor in self._options.anchored_tensors.values():
            if anchor[1]:
                anchor[2], anchor[3] = self._options.mode()
        self.setOptimizer(self._optimizer)
        self._options.freeze()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_user_model"], name)

    @property
    def options(self) -> Options:
        return self._options

    @property
    def model(self) -> torch.nn.Module:
        return self._user_model

    def isCompiled(self) -> bool:
        return self._executable is not None

    def compile(self, *args: Tensor) -> None:
        """PopART's Ir::validateAnchors (willow/src/ir.cpp) refuses anchors of no tensor."""
        self._micro_batches(args)
        graph = _Graph(self._user_model, self._optimizer, self._options)
        for name, *_ in self._options.anchored_tensors.values():
            if name not in graph.names():
                raise Error(f"Anchor tensor `{name}' not in tensors. ")
        self._check_period()
        anchors = repr(sorted(self._options.anchored_tensors.values(), key=repr))
        if self._options.cache_path is not None:
            key = self._options.cache_path, f"{sorted(graph.names())} {anchors}"
            self._is_from_cache = key in self._cache
            self._cache.add(key)
        self._executable = graph

    def getTensorNames(self) -> list[str]:
        """Of an executable from a cache or a file what the backward makes is not known."""
        assert self._executable is not None, "Model must be compiled before calling getTensorNames"
        names = self._executable.names()
        if self._is_from_cache:
            names = {one for one in names if not one.startswith(("Gradient___", "UpdatedVar___"))}
        return list(names)

    def getAnchoredTensor(self, short_name: str) -> Tensor:
        assert short_name in self._anchor_memory, f"No tensor with name {short_name} found."
        return self._anchor_memory[short_name]

    def setOptimizer(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        if isinstance(optimizer, optim.Optimizer):
            optimizer.read = self._read_state
        if self._executable is not None:
            self._executable.update(optimizer)

    def __call__(self, *args: Tensor) -> Any:
        if self._executable is None:
            self.compile(*args)
        graph = self._executable
        assert graph is not None
        outputs: list[list[Tensor]] = []
        traced: list[Values] = []
        for iteration in self._micro_batches(args):
            made = [graph.run(inputs) for inputs in iteration]
            graph.apply([values for _, values in made])
            variables = graph.variables()
            outputs += [returned for returned, _ in made]
            traced += [{**values, **variables} for _, values in made]
        self._fill_anchors(traced)
        returned = [
            self._returned([one[place] for one in outputs]) for place in range(len(outputs[0]))
        ]
        assert graph.structure is not None
        return tree_unflatten(returned, graph.structure)

    def copyWeightsToHost(self) -> None:
        if self._executable is None:
            raise Error("Model has not been compiled or has been destroyed.")
        self._user_model.load_state_dict(self._executable.model.state_dict())

    def save(self, filename: str) -> None:
        if self._executable is None:
            raise Error("Model has not been compiled or has been destroyed.")
        Path(filename).write_bytes(pickle.dumps((self._user_model, self._options.values())))

    def load_executable(self) -> None:
        """What is in a file knows no names of the backward."""
        self._executable = _Graph(self._user_model, self._optimizer, self._options)
        self._is_from_cache = True

    def destroy(self) -> None:
        if self._executable is not None:
            self.copyWeightsToHost()
            self._executable = None

    def _read_state(self) -> dict[str, Any]:
        if self._executable is None:
            return {"ipu_state": None, "ipu_param": None}
        graph = self._executable
        return {"ipu_state": graph.state(), "ipu_param": graph.hyperparameters()}

    def _sizes(self) -> tuple[int, int, int]:
        options = self._options
        accumulation = options.Training.gradient_accumulation
        return options.device_iterations, accumulation, options.replication_factor

    def _micro_batches(self, args: tuple[Tensor, ...]) -> Iterator[list[tuple[Tensor, ...]]]:
        """By device iteration: [accumulation x replicas]."""
        iterations, accumulation, replicas = self._sizes()
        count = iterations * accumulation * replicas
        for tensor in args:
            assert tensor.shape[0] % count == 0, (
                f"Invalid batch dimension: the batch dimension ({tensor.shape[0]}) must be a "
                f"multiple of {count}"
            )
        parts = list(zip(*(tensor.chunk(count) for tensor in args), strict=True))
        each = accumulation * replicas
        return iter([parts[at * each : (at + 1) * each] for at in range(iterations)])

    def _check_period(self) -> None:
        mode, period = self._options.mode()
        if mode is OutputMode.EveryN and self._options.device_iterations % period:
            raise Error(f"EveryN: {period} must be a factor of the device iterations")

    def _fill_anchors(self, traced: list[Values]) -> None:
        """The mode of single anchors is not looked at: LowerToPopart.cpp:526 only logs it."""
        for short, (name, *_) in self._options.anchored_tensors.items():
            self._anchor_memory[short] = self._returned([one[name] for one in traced])

    def _returned(self, values: list[Tensor]) -> Tensor:
        """source/PoplarExecutable.cpp: `dims[0] *= popartBatchDimForAnchor(id)`, scalars as [1].

        Args:
            values: by micro-batch, in the order iterations, accumulation, replicas.
        """
        iterations, accumulation, replicas = self._sizes()
        whole = torch.stack([one.reshape(1) if not one.dim() else one for one in values])
        whole = whole.reshape(iterations, accumulation, replicas, *whole.shape[1:])
        mode, period = self._options.mode()
        match mode:
            case OutputMode.All:
                chosen = whole
            case OutputMode.EveryN:
                chosen = whole[period - 1 :: period]
            case OutputMode.Sum:
                chosen = whole.sum((0, 1))
            case _:
                chosen = whole[-1, -1]
        shape = whole.shape[3:]
        return chosen.reshape(-1, *shape[1:]).contiguous()


def trainingModel(
    model: torch.nn.Module, options: Options | None = None, optimizer: Any = None
) -> PoplarExecutor:
    """python/__init__.py."""
    return PoplarExecutor(model, options, optimizer)


def load(filename: str) -> PoplarExecutor:
    """python/__init__.py; tests/debug_tensors_test.py, test_tensor_names_from_precompiled_model."""
    model, values = pickle.loads(Path(filename).read_bytes())
    options = Options()
    options.set(**values)
    executor = PoplarExecutor(model, options, None)
    executor.load_executable()
    return executor
