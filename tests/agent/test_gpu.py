"""Training on a GPU, observed: on a machine that has one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from rankscope.agent.torch.fused import Fused
from rankscope.agent.torch.meters import engine_for
from rankscope.sketch import derive, sketch_array

if TYPE_CHECKING:
    from .conftest import Observed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

WIDTH, STEPS = 300, 6
DTYPES = [torch.float32, torch.bfloat16]


class Model(nn.Sequential):
    """A class of its own: those of torch are not compiled."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        for layer in self:
            input = layer(input)
        return input


def model_of(dtype: torch.dtype = torch.float32) -> Model:
    torch.manual_seed(0)
    layers = nn.Linear(WIDTH, 1000), nn.ReLU(), nn.LayerNorm(1000), nn.Linear(1000, WIDTH)
    return Model(*layers).to("cuda", dtype)


def batches_of(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(1)
    return [
        torch.randn(64, WIDTH, device="cuda", generator=generator).to(dtype) for _ in range(STEPS)
    ]


def trained(
    model: nn.Module, batches: list[torch.Tensor], end: Callable[..., None]
) -> list[torch.Tensor]:
    """The losses of a loop that never waits for the device."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    losses: list[torch.Tensor] = []
    for batch in batches:
        loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        end(loss=loss)
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def nothing(**_: object) -> None:
    """In place of the end of a step."""


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """On the host; bfloat16 as float32, which has the same numbers."""
    return tensor.detach().cpu().float().numpy()


def test_the_kernels_in_cuda_c_are_those_that_read(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(engine_for(torch.device("cuda")), Fused)
    assert not caplog.messages  # of kernels that were tried before, and are not used


@contextmanager
def waiting_is_an_error() -> Generator[None]:
    """Where torch would wait for the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_training_is_the_same_and_never_waits_for_the_gpu(
    observed: Observed, dtype: torch.dtype
) -> None:
    batches = batches_of(dtype)
    alone = trained(model_of(dtype), batches, nothing)
    model = model_of(dtype)
    with observed.observe(model) as scope:
        with waiting_is_an_error():
            losses = trained(model, batches, scope.step)
        torch.cuda.synchronize()
        health = scope.health()

    assert torch.equal(torch.stack(losses), torch.stack(alone))
    assert not health["hook_errors"]
    assert not health["tensors_stale"]
    assert "error" not in observed.reports().lower()
    assert observed.steps() == list(range(STEPS + 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_stored_is_what_the_tensors_held(observed: Observed, dtype: torch.dtype) -> None:
    model, batch = model_of(dtype), batches_of(dtype)[0]
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    weights = {name: one.detach().clone() for name, one in model.named_parameters()}
    outputs = [batch]
    for layer in model:
        outputs.append(layer(outputs[-1]))
    with observed.observe(model, optimizer) as scope:
        loss = model(batch).float().square().mean()
        loss.backward()
        gradients = {name: one.grad.clone() for name, one in model.named_parameters()}  # pyright: ignore
        optimizer.step()
        scope.step(loss=loss)

    stored = observed.sketches(0)
    held = {f"weight:{name}": one for name, one in weights.items()}
    held |= {f"weight_gradient:{name}": one for name, one in gradients.items()}
    for name, one in model.named_parameters():
        state = optimizer.state[one]
        held |= {
            f"optimizer_state:{name}[{slot}]": state[slot] for slot in ("exp_avg", "exp_avg_sq")
        }
    held |= {f"activation:{place}": one for place, one in enumerate(outputs[1:])}
    assert stored.keys() >= held.keys()
    for label, tensor in held.items():
        right, own = sketch_array(as_array(tensor)), stored[label]
        assert (own.counts[0, :5] == right.counts[0, :5]).all(), label
        assert (own.histogram == right.histogram).all(), label
        assert derive(own, "rms") == pytest.approx(derive(right, "rms"), rel=1e-12), label
        assert derive(own, "max") == derive(right, "max"), label


def captured_losses(observe: Callable[..., AbstractContextManager[Any]]) -> tuple[list[float], Any]:
    """Of a step that was captured as a CUDA graph, and is replayed."""
    model, batch = model_of(), batches_of()[0]
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    losses: list[float] = []
    with observe(model, optimizer) as scope:
        end = scope.step if scope else nothing
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
                end()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            loss = step()
        end()
        for _ in range(5):
            graph.replay()
            end(loss=loss)
            losses.append(loss.item())
        return losses, scope and scope.health()


def test_a_captured_step_is_replayed_and_what_is_captured_is_counted(observed: Observed) -> None:
    alone, _ = captured_losses(lambda *_: nullcontext())
    losses, health = captured_losses(observed.observe)

    assert losses == alone
    assert health["tensors_stale"] > 0
    assert not health["hook_errors"]
    assert len(observed.means("weight", "0.weight")) >= 5


def test_tensors_of_another_stream_are_read_after_they_are_written(observed: Observed) -> None:
    side = torch.cuda.Stream()

    class OnItsOwn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.last = nn.ReLU(), nn.Linear(1, 1, device="cuda")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(200):
                    x = x * 1.01
                y = self.act(x)
            torch.cuda.current_stream().wait_stream(side)
            return y

    model = OnItsOwn()
    x = torch.ones(1 << 22, device="cuda")
    right = model(x).double().mean().item()
    with observed.observe(model, kinds="activation") as scope:
        for _ in range(STEPS):
            model(x)
            scope.step()

    means = observed.means("activation", "act")
    assert list(means.values()) == pytest.approx([right] * STEPS, rel=1e-9)


def test_what_changes_in_place_later_is_read_as_it_was(observed: Observed) -> None:
    model = Model(nn.Identity(), nn.ReLU(inplace=True), nn.Linear(1024, 1)).cuda()
    x = torch.full((1 << 12, 1024), -1.0, device="cuda")
    with observed.observe(model, kinds="activation") as scope, torch.no_grad():
        model(x)
        scope.step()
    assert observed.means("activation", "0") == {0: -1.0}
    assert observed.means("activation", "1") == {0: 0.0}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:.*_prims_common.check:FutureWarning")
def test_a_compiled_model_keeps_its_graph_and_losses(observed: Observed) -> None:
    batches, plain = batches_of(), model_of()
    watched = copy.deepcopy(plain)
    plain.compile(fullgraph=True)
    alone = trained(plain, batches, nothing)
    with observed.observe(watched) as scope:
        watched.compile(fullgraph=True)
        losses = trained(watched, batches, scope.step)
        health = scope.health()

    assert torch.stack(losses).tolist() == pytest.approx(torch.stack(alone).tolist(), rel=1e-5)
    assert not health["hook_errors"]
    assert set(observed.means("activation", "1")) == set(range(STEPS))


def test_memory_that_the_agent_takes_on_the_gpu_does_not_grow(observed: Observed) -> None:
    model = model_of()
    with observed.observe(model) as scope:
        trained(model, batches_of(), scope.step)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(5):
            trained(model, batches_of(), scope.step)
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() <= before + (1 << 20)
