"""The first law: nothing that the agent does disturbs, delays, breaks or leaks into training."""

from __future__ import annotations

import copy
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rankscope.agent import RankscopeWarning
from rankscope.agent.torch import FineExponents, observe
from rankscope.agent.torch.delivery import NO_BUFFER
from rankscope.agent.torch.recorder import NO_TABLE
from rankscope.agent.torch.tensors import Activations
from rankscope.agent.torch.threads import team
from rankscope.sketch import derive
from rankscope.store import open_run

from .gated import Gated

if TYPE_CHECKING:
    from conftest import Observed

Train = Callable[..., list[float]]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))


def test_losses_are_the_same_to_the_last_bit(observed: Observed, train: Train) -> None:
    batches = [torch.randn(16, 4) for _ in range(20)]
    losses: list[list[float]] = []
    for watched in (False, True):
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters())
        if watched:
            with observed.observe(model, optimizer) as scope:
                losses.append(train(scope, model, optimizer, batches))
        else:
            for_nobody = type("Nobody", (), {"step": lambda *_, **__: None})()
            losses.append(train(for_nobody, model, optimizer, batches))
    assert losses[0] == losses[1]


def test_a_weight_that_is_computed_is_not_computed_for_us(observed: Observed) -> None:
    """Spectral norms go on with their power iteration whenever somebody asks for the weight."""
    losses: list[list[float]] = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
        nn.utils.parametrizations.spectral_norm(model[1])
        nn.utils.parametrizations.weight_norm(model[2])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        observing = observed.observe(model, optimizer) if watched else nullcontext()
        with observing as scope:
            for _ in range(4):
                loss = model(torch.randn(6, 4)).square().mean()
                loss.backward()
                optimizer.step()
                if scope is not None:
                    scope.step()
                losses.append([loss.item()])
    assert losses[:4] == losses[4:]


def test_where_numba_fails_torch_reads_tensors_and_the_log_says_so(
    observed: Observed,
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails() -> None:
        raise ImportError("Numba needs NumPy 2.4 or less")

    monkeypatch.setattr("rankscope.agent.torch.meters.warm", fails)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.ones(2, 4)])
    assert "numba cannot be used, tensors are read some 20 times slower: Numba" in caplog.text
    assert derive(observed.sketches(0)["activation:0"], "count") == 2 * 8


class Reads(TorchDispatchMode):
    """Counts `.item()` and its like."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.seen.append("item")
        return func(*args, **(kwargs or {}))


@contextmanager
def counted_reads(patch: pytest.MonkeyPatch) -> Generator[list[str]]:
    """Everything that would take a tensor from a device to the host in this thread."""
    here = threading.get_ident()
    with Reads() as reads:
        for name in ("cpu", "to", "tolist", "numpy", "item", "__array__"):
            original = getattr(torch.Tensor, name)

            def spy(
                self: Any, *args: Any, _name: str = name, _call: Any = original, **kw: Any
            ) -> Any:
                if threading.get_ident() == here:
                    reads.seen.append(_name)
                return _call(self, *args, **kw)

            patch.setattr(torch.Tensor, name, spy)
        yield reads.seen
        patch.undo()


@pytest.mark.parametrize("kernel", ["numba", "torch"])
def test_forward_and_backward_read_nothing_back(
    observed: Observed, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    if kernel == "torch":  # what an accelerator uses
        monkeypatch.setattr("rankscope.agent.torch.meters.find_spec", lambda _: None)
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(16, 4)
    with observed.observe(model, optimizer) as scope:
        for _ in range(3):
            with counted_reads(monkeypatch) as seen:
                loss = model(x).square().mean()
                loss.backward()
            assert seen == []
            optimizer.step()
            scope.step(loss=loss)
            optimizer.zero_grad()
    assert observed.sketches(2)["activation_gradient:3"].counts[0, 0] == 32


def test_leaving_the_block_waits_for_a_slow_device(
    observed: Observed, monkeypatch: pytest.MonkeyPatch, train: Callable[..., list[float]]
) -> None:
    monkeypatch.setattr("rankscope.agent.torch.meters.find_spec", lambda _: None)
    sent: dict[int, float] = {}

    def arrived(_: object, copy: object) -> bool:  # a CPU is never late
        return time.monotonic() - sent.setdefault(id(copy), time.monotonic()) > 0.3

    monkeypatch.setattr("rankscope.agent.torch.device.DeviceMeter.arrived", arrived)
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.randn(4, 4)] * 2)
    assert observed.steps() == [0, 1, 2]  # the last with the weights after the last step


def test_steps_for_which_a_slow_device_left_no_room_are_told_and_not_zero(
    observed: Observed, monkeypatch: pytest.MonkeyPatch, train: Callable[..., list[float]]
) -> None:
    monkeypatch.setattr("rankscope.agent.torch.meters.find_spec", lambda _: None)
    is_quick = threading.Event()
    monkeypatch.setattr(
        "rankscope.agent.torch.device.DeviceMeter.arrived", lambda _, copy: is_quick.is_set()
    )
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.randn(4, 4)] * 40)
        is_quick.set()
        while scope.statistics().sent == 0:
            time.sleep(0.05)
        train(scope, model, optimizer, [torch.randn(4, 4)])
        dropped = int(scope.health()["steps_dropped"])
    run = open_run(observed.path)
    gaps = run.gaps()

    assert dropped > 0
    assert sum(gaps["frames"].tolist()) == dropped
    assert set(gaps["cause"]) <= {NO_TABLE, NO_BUFFER}
    counts = run.scalar("count", sites="activation:0")
    assert set(counts.values[~np.isnan(counts.values)].tolist()) == {32.0}, "none, or all of it"


def test_each_frame_carries_what_the_agent_cost(
    observed: Observed, train: Callable[..., list[float]]
) -> None:
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    begun, batch = time.monotonic(), torch.randn(256, 64)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [batch] * 3)
        while scope.statistics().sent < 3:
            time.sleep(0.01)
        before = scope.statistics().sent_bytes
        train(scope, model, optimizer, [batch])
        wall = time.monotonic() - begun
        assert 0 < scope.health()["hook_seconds"] < scope.health()["wall_seconds"] < wall
    cost = open_run(observed.path).health().xs("total", axis=1, level="value").loc[0]
    assert 0 < cost["hook_seconds"] < cost["wall_seconds"]
    assert cost["thread_seconds"] > 0
    assert 0 < before <= cost["bytes_sent"] < scope.statistics().sent_bytes
    assert cost["frames_dropped"] == 0


class Odd(nn.Module):
    """Returns whatever it is given to return."""

    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.odd = nn.Linear(2, 2), _Maker(make)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        self.odd(y)
        return y


class _Maker(nn.Module):
    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda y: y.argmax(1),
        lambda y: y > 0,
        lambda y: y[:0],
        lambda y: y.detach().to(torch.float8_e4m3fn),
        lambda y: y.detach().to(torch.float8_e5m2),
        lambda y: torch.complex(y, y),
        lambda y: y.double(),
        lambda y: y.t(),
        lambda y: y[:, :1].expand(3, 5),
        lambda y: y.to_sparse(),
        lambda y: torch.empty(3, device="meta"),
        lambda y: object(),
        lambda y: {"self": [y] * 400},
        lambda y: torch.quantize_per_tensor(y.detach(), 0.1, 0, torch.qint8),
    ],
)
def test_odd_outputs_never_raise(
    observed: Observed, train: Train, make: Callable[[torch.Tensor], Any]
) -> None:
    model = Odd(make)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observed.observe(model, optimizer) as scope, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of sparse and quantized tensors
        train(scope, model, optimizer, [torch.ones(3, 2)] * 2)
        assert scope.health()["hook_errors"] == 0
    assert observed.sketches(1)["activation:layer"].counts[0, 0] == 6


def test_a_backward_that_gives_no_gradient_goes_on(observed: Observed) -> None:
    model = Gated(4)
    quantities = dict.fromkeys(("gate", "value"), "output_grad_cov_trace")
    with observed.observe(model, quantities=quantities) as scope:
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward()
            scope.step()
    assert model.value.weight.grad is not None
    assert "activation_gradient:gate" not in observed.labels()
    assert observed.means("activation_gradient", "value") == {0: 1.0, 1: 1.0}
    assert scope.health()["hook_errors"] == 0
    with Activations(model) as taken:
        model(torch.ones(3, 4)).sum().backward()
    assert "value" in taken.gradients
    assert "gate" not in taken.gradients


def test_a_tensor_that_refuses_everything_does_not_stop_its_tap(observed: Observed) -> None:
    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: Any) -> Any:
            raise RuntimeError("not with me")

    refusing = torch.ones(3).as_subclass(Refusing)
    with observed.observe(mlp()) as scope:
        assert scope.tap("odd", refusing) is refusing
        scope.step()
    assert "The tap odd could not be read: RuntimeError: not with me" in observed.reports()


class Reversible(nn.Module):
    """Takes the memory of its input away, which it can compute again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        x.untyped_storage().resize_(0)
        return y


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sample": 1 / 8},
        {"sentinel": True, "every": 100},
        {"exact_counts": {"activation": FineExponents()}},
    ],
    ids=["sketches", "sample", "sentinel", "exact_counts"],
)
def test_memory_that_is_taken_away_before_it_is_read_is_counted(
    observed: Observed, options: dict[str, Any]
) -> None:
    model = nn.Sequential(nn.Linear(4, 1 << 15), Reversible(), nn.Linear(1 << 15, 1))
    with observed.observe(model, kinds=["activation"], start=1, **options) as scope:
        for _ in range(2):
            with torch.no_grad():
                model(torch.ones(4, 4))
            scope.step()
    assert scope.health()["tensors_stale"] == 1
    assert scope.health()["hook_errors"] == 0
    first, second = (observed.sketches(step) for step in (1, 2))
    assert "activation:0" not in first
    assert "activation:0" in second  # it is read at once from then on
    assert "activation:1" in first


def test_weights_whose_memory_is_taken_away_leave_the_others_right(observed: Observed) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(6)))
    with observed.observe(model, kinds=["weight"]) as scope:
        for step in range(3):
            for number, parameter in enumerate(model.parameters()):
                parameter.data = torch.full((4, 4), float(number))
            if step == 2:
                model[2].get_parameter("weight").untyped_storage().resize_(0)
            scope.begin_forward()
            scope.step()
        model[2].get_parameter("weight").data = torch.zeros(4, 4)
    found = observed.sketches(2)
    assert {name: derive(one, "mean") for name, one in found.items()} == {
        f"weight:{number}.weight": float(number) for number in range(6) if number != 2
    }


def test_fp8_and_transposed_outputs_are_summarised(observed: Observed, train: Train) -> None:
    model = Odd(lambda y: (y.detach().to(torch.float8_e4m3fn), y.t(), y[:0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)])
    sketches = observed.sketches(0)
    assert [sketches[f"activation:odd[{i}]"].counts[0, 0] for i in range(3)] == [6, 6, 0]
    whole = sketches["activation:layer"]
    assert derive(sketches["activation:odd[1]"], "mean") == derive(whole, "mean")


def test_an_error_in_a_hook_disables_the_site_and_is_told(observed: Observed, train: Train) -> None:
    class Hostile(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("no items today")

    model = Odd(lambda y: Hostile())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.ones(3, 2)] * 3)
    assert "The output of odd could not be walked through: RuntimeError: no items today" in (
        observed.reports()
    )
    assert observed.sketches(2)["activation:layer"].counts[0, 0] == 6


def test_a_tensor_changed_in_place_is_found_and_then_read_at_once(
    observed: Observed, train: Train
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.randn(8, 4)] * 3)
        assert scope.health()["tensors_stale"] == 1
    for step in (1, 2):
        sketch = observed.sketches(step)["activation:0"]
        assert derive(sketch, "min")[0] < 0, "the value before the ReLU"
    assert "activation:0" not in observed.sketches(0)


def test_what_a_module_only_passes_on_is_found_changed_with_its_origin(
    observed: Observed, train: Train
) -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 4))
    model = nn.Sequential(block, nn.ReLU(inplace=True), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.randn(8, 4)] * 3)
        assert scope.health()["tensors_stale"] == 2
    first, second = observed.sketches(0), observed.sketches(1)
    for name in ("activation:0.0", "activation:0"):
        assert name not in first
        assert derive(second[name], "min")[0] < 0, "the value before the ReLU"


def test_torch_threads_record_the_same_as_ours_and_stay_as_many(observed: Observed) -> None:
    torch.manual_seed(0)
    tensors = {"large": torch.randn(6 << 20), "odd": torch.randn(300_001), "small": torch.randn(7)}
    tensors["large"][::1001] = torch.nan
    threads = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0))
    try:
        with observed.observe(mlp()) as scope:
            for step_threads in (1, cores):  # the agent's thread reads, then those of torch
                torch.set_num_threads(step_threads)
                assert (team() is not None) == (step_threads > 1)
                for name, tensor in tensors.items():
                    scope.tap(name, tensor)
                scope.step()
                assert torch.get_num_threads() == step_threads
    finally:
        torch.set_num_threads(threads)
    first, second = observed.sketches(0), observed.sketches(1)
    for name in tensors:
        mine, theirs = first[f"tap:{name}"], second[f"tap:{name}"]
        assert mine.counts[0, 0] == tensors[name].numel()
        for one, other in zip(mine.columns(), theirs.columns(), strict=True):
            assert np.array_equal(one, other, equal_nan=True)


def test_an_exception_keeps_its_failing_step_and_passes_through(observed: Observed) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def job() -> None:
        with observed.observe(model, optimizer) as scope:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            scope.step()
            model(torch.full((2, 4), 1e30)).sum()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job()
    records = open_run(observed.path).records()
    assert records["step"].tolist() == [0, 1]
    assert records["partial"].tolist() == [False, True]
    assert derive(observed.sketches(1)["activation:0"], "abs_max")[0] > 1e29
    assert "Training ended in step 1: ZeroDivisionError" in observed.reports()


@pytest.mark.parametrize("every", [1, 2])
def test_an_exception_before_any_tensor_is_told_too(observed: Observed, every: int) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def job() -> None:
        with observed.observe(model, optimizer, every=every) as scope:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            scope.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job()
    assert "Training ended in step 1: ZeroDivisionError" in observed.reports()


def test_a_step_that_hangs_has_told_what_it_saw(observed: Observed) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observed.observe(model, optimizer) as scope:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scope.step()
        model(torch.ones(2, 4))
        deadline = time.monotonic() + 30  # the collector closes a record that stays partial at 10 s
        while 1 not in observed.steps():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert observed.sketches(1)["activation:0"].counts[0, 0] == 16
        assert "No tensor was seen for 1 s; last was activation:" in observed.reports()


def test_without_a_collector_training_goes_on_and_losses_are_told(
    monkeypatch: pytest.MonkeyPatch, train: Train
) -> None:
    monkeypatch.setattr("rankscope.agent.block.CLOSE_S", 0.5)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def job() -> None:
        with observe(model, optimizer, run="nobody", to="tcp://127.0.0.1:9") as scope:
            train(scope, model, optimizer, [torch.randn(3, 4)] * 400)
            assert scope.statistics().pending_frames <= 256

    with pytest.warns(
        RankscopeWarning, match=r"stored: no collector has answered at tcp://127.0.0.1:9\."
    ):
        job()


def test_hooks_are_gone_after_the_block(observed: Observed, train: Train) -> None:
    model = mlp()
    before = copy.deepcopy(model.__dict__)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.randn(3, 4)])
    for module in model.modules():  # torch has no public list of hooks
        assert not module._forward_hooks  # pyright: ignore[reportPrivateUsage]
    assert model.__dict__.keys() == before.keys()
    model(torch.randn(3, 4)).sum().backward()


def test_copies_and_files_of_an_observed_model_do_nothing(
    observed: Observed, train: Train, tmp_path: Path
) -> None:
    model, x = mlp(), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = model(x)
    with observed.observe(model, optimizer, kinds=("activation",)) as scope:
        average = copy.deepcopy(model)
        torch.save(model, tmp_path / "model.pt")
        stored = torch.load(tmp_path / "model.pt", weights_only=False)
        for other in (average, stored):
            assert torch.equal(other(x), expected)
            torch.compile(other, fullgraph=True, backend="eager")(x)
        train(scope, model, optimizer, [x])
        torch.save(model(x), tmp_path / "output.pt")
    assert observed.sketches(0)["activation:0"].counts[0, 0] == 3 * 8
    code = "import sys, torch; torch.load(sys.argv[1], weights_only=False)(torch.ones(1, 4))"
    code += "; assert 'rankscope' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model.pt")], check=True)


def test_tracing_a_model_is_not_training_it(observed: Observed) -> None:
    model, x = mlp(), torch.randn(3, 4)
    with observed.observe(model) as scope:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated
            traced: Any = torch.jit.trace(model, x, check_trace=False)
        assert torch.equal(traced(x), model(x))
        scope.step()
    assert observed.sketches(0)["activation:0"].counts[0, 0] == 3 * 8


def fork_a_child_that_ends() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own warning of threads and fork
        child = multiprocessing.get_context("fork").Process(target=os._exit, args=(0,))
        child.start()
    child.join(20)
    assert child.exitcode == 0


def test_a_child_forked_in_the_middle_of_a_step_does_not_hang(observed: Observed) -> None:
    model = nn.Linear(256, 256)
    optimizer = torch.optim.Adam(model.parameters())
    with observed.observe(model, optimizer) as scope:
        for _ in range(2):
            model(torch.randn(512, 256)).sum().backward()  # starts torch's threads
            optimizer.step()  # its state is noted, and not read yet
            fork_a_child_that_ends()
            scope.step()
    assert "optimizer_state:weight[exp_avg]" in observed.sketches(0)


def test_a_forked_child_is_silent_and_does_not_hang(observed: Observed, train: Train) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observed.observe(model, optimizer) as scope:
        train(scope, model, optimizer, [torch.randn(3, 4)])
        fork_a_child_that_ends()
        train(scope, model, optimizer, [torch.randn(3, 4)])
    assert open_run(observed.path).records()["step"].tolist() == [0, 1, 2]
